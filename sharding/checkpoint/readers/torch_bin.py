"""Read the files of torch.save: find the bytes of each tensor, each tensor once. Runs no code from them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.readers.reader import Found, Weights
from sharding.core.dtypes import BY_TORCH, item_bytes
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_EXPANDED_BYTES, MAX_NAMES_OF_A_TENSOR
from sharding.core.protocols import Files
from sharding.core.recipe import Recipe
from sharding.core.text import format_bytes, name_problem, name_some, shown_name
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Finding, Tensor, folder_of
from sharding.formats.names import CONFIG_NAME, POINTER_BYTES, what_is
from sharding.formats.torch_file import Locate, Place, ZipRefused, open_bin
from sharding.formats.torch_globals import Other, PickleRefused, StoredTensor
from sharding.model_class.class_table import EMBEDDINGS, HEAD_BIASES, HEADS, ties
from sharding.recipes.laid import Box, Laid, is_contiguous
from sharding.recipes.stored import Stored

_HINT = "Ask its author for safetensors, or load it on an isolated machine and save it as safetensors."


def read_torch_bin(found: Found) -> Weights:
    """Return the weights in files of torch.save: `pytorch_model.bin` and its shards."""
    files = found.files
    # A tied name may be left out only if the loader fills it in again. transformers does; others do not.
    is_tied = ties(read_json(found.source, found.weight_set.folder + CONFIG_NAME)) is True
    is_tied = is_tied and found.weight_set.stem == "model" and not found.weight_set.is_whole
    with readers(found.source.ranges_at_once) as pool:
        archives = list(pool.map(partial(read_archive, found.source, unites_tied=is_tied), files))
    tensors = [tensor for archive in archives for tensor in archive.tensors]
    tied = [name for archive in archives for name in archive.tied]
    return Weights(files, tensors, list(_describe(files, archives)), tied=tied)


@dataclass(frozen=True, slots=True)
class Archive:
    """The content of a `.bin` file: each tensor once, in stored order.

    `tied` maps names that are left out to the name that stands for the same tensor. `ignored` has the names of other
    entries that are left out. If it `is_wrapped`, the tensors are under `state_dict`, and all beside it is left out.
    """

    tensors: tuple[Tensor, ...]
    tied: Mapping[str, str]
    ignored: tuple[str, ...]
    is_wrapped: bool


def read_archive(source: Files, file: FileEntry, *, unites_tied: bool = True) -> Archive:
    """Return where the tensors of `file` lie. Its folder stands before their names.

    Every name is a separate tensor, except that `unites_tied` lets one name stand for embeddings and output heads that
    share a tensor, as in transformers after tying. Raises SourceError if torch's weights-only reader would refuse the
    file, if safetensors cannot hold its content, or if its parts contradict each other.
    """
    try:
        value, locate = open_bin(source, file)
        wrapper = value if isinstance(value, dict) and isinstance(value.get("state_dict"), dict) else {}
        tensors, ignored = _sort(wrapper.get("state_dict", value), folder_of(file.path))
        ignored += [shown_name(str(key)) for key in wrapper if key != "state_dict"]
        tied = _tied(tensors) if unites_tied else {}
        kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
        return Archive(_lay_out(file, kept, locate), tied, tuple(ignored), bool(wrapper))
    except (PickleRefused, ZipRefused) as error:
        what, hint = what_is(b"".join(source.read(file.path, 0, min(file.bytes, POINTER_BYTES))), "torch")
        if what:
            raise SourceError(f"{file.path} is {what}.", hint) from error
        hint = _HINT if isinstance(error, PickleRefused) else "Download the file again, or ask its author."
        raise SourceError(f"The pickled weights {file.path} cannot be read: {error}.", hint) from error


def _describe(files: Iterable[FileEntry], archives: Sequence[Archive]) -> Iterator[Finding]:
    names = name_some([file.path for file in files])
    message = f"The weights are pickled ({names}). They become safetensors byte for byte, and no code in them is run."
    yield Finding("info", "pickled", message)
    tied = {name: kept for archive in archives for name, kept in archive.tied.items()}
    if tied:
        pairs = name_some([f"{name} (as {kept})" for name, kept in tied.items()])
        yield Finding("info", "tied", f"Tied weights are written once, as in transformers. Left out: {pairs}.")
    views = [tensor for archive in archives for tensor in archive.tensors if not isinstance(tensor.recipe, Stored)]
    if views:
        size = format_bytes(sum(tensor.bytes for tensor in views))
        message = f"{len(views)} views (transposed, sliced or expanded) of {size} are written row by row."
        yield Finding("info", "views", message)
    ignored = [name for archive in archives for name in archive.ignored]
    is_wrapped = any(archive.is_wrapped for archive in archives)
    if ignored or is_wrapped:
        where = "The tensors are under state_dict. " if is_wrapped else ""
        reason = "beside it, or not a tensor" if is_wrapped else "not a tensor"
        left = f"Left out: {name_some(ignored)} ({reason})." if ignored else ""
        yield Finding("info", "no-tensors", (where + left).strip())


def _sort(state: Any, folder: str) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return the tensors of a dictionary by name, with `folder` before it, and the keys of everything else."""
    if not isinstance(state, dict):
        raise PickleRefused("it has no dictionary from names to tensors")
    tensors, ignored, seen = {}, [], set[int]()
    below = []
    for name, value in state.items():
        if isinstance(value, Other) and value.is_tensor:
            raise PickleRefused(f"{str(name)[:100]} is {value.what}, which safetensors does not support")
        if not isinstance(value, StoredTensor):
            ignored.append(shown_name(str(name)))
            below += ignored[-1:] if _holds_tensors(value, seen) else []
        elif not BY_TORCH[value.dtype].name:
            raise PickleRefused(f"{name!s:.100} has the dtype {value.dtype}, which safetensors does not support")
        elif not isinstance(name, str) or name == "__metadata__":
            raise PickleRefused(f"it has a tensor with the name {name!r:.100}, which safetensors does not allow")
        elif problem := name_problem(name):
            raise PickleRefused(f"the name of the tensor {shown_name(name)} {problem}")
        else:
            tensors[folder + name] = value
    if not tensors:
        only = f", only {name_some(ignored)}" if ignored else ""
        raise PickleRefused(f"it has no tensors by name{only}"[:300])
    if below:
        raise PickleRefused(f"it has tensors inside {name_some(below)} and others beside it"[:300])
    return tensors, ignored


def _holds_tensors(value: Any, seen: set[int]) -> bool:
    """Return whether there is a tensor in `value`, at any depth. Values in `seen` have none."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, StoredTensor) or (isinstance(value, Other) and value.is_tensor):
            return True
        if isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            waiting += value.values() if isinstance(value, dict) else value
    return False


def _tied(tensors: Mapping[str, StoredTensor]) -> dict[str, str]:
    """Return the names that are not kept, each with the name that stands for the same tensor."""
    same: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        is_weight = bool(EMBEDDINGS.search(name) or HEADS.search(name))
        if is_weight or HEAD_BIASES.search(name):
            place = tensor.storage.key, tensor.dtype, tensor.offset, tensor.shape, _moving_strides(tensor)
            same.setdefault((is_weight, place if prod(tensor.shape) else name), []).append(name)
    # In 280 of 285 groups of such names in its classes, transformers 5.23 keeps this one: the first stored one that is
    # not an output head, else the first. The others are biases of heads, which it can tie again from either name.
    tied = dict[str, str]()
    for (is_weight, _), names in same.items():
        if not is_weight or any(map(EMBEDDINGS.search, names)):
            kept = min(names, key=lambda name: any(part.endswith("head") for part in name.split(".")))
            tied |= {name: kept for name in names if name != kept}
    return tied


def _lay_out(file: FileEntry, kept: Mapping[str, StoredTensor], locate: Locate) -> tuple[Tensor, ...]:
    places = locate(tensor.storage for tensor in kept.values())
    sizes = {name: prod(tensor.shape) * item_bytes(tensor.dtype) for name, tensor in kept.items()}
    most_more = (MAX_NAMES_OF_A_TENSOR - 1) * file.bytes + MAX_EXPANDED_BYTES
    if sum(sizes.values()) > file.bytes + most_more:
        raise PickleRefused(f"its tensors share bytes and would take over {format_bytes(most_more)} more without that")
    entries: list[Tensor] = []
    for name, tensor in kept.items():
        box = box_of(name, tensor, places[tensor.storage.key], file)
        recipe: Recipe = Stored(box.source, box.file, box.origin, box.origin + sizes[name])
        if sizes[name] and not is_contiguous(box.shape, box.strides):
            recipe = Laid((box,), tensor.shape, item_bytes(tensor.dtype))
        entries.append(Tensor(name, BY_TORCH[tensor.dtype].name, tensor.shape, recipe, folder_of(file.path)))
    return tuple(entries)


def _moving_strides(tensor: StoredTensor) -> tuple[int, ...]:
    """Return the strides of a tensor, with 0 for dimensions of length 1, because those have no meaning."""
    return tuple(stride if length > 1 else 0 for stride, length in zip(tensor.strides, tensor.shape, strict=True))


def box_of(
    name: str, tensor: StoredTensor, place: Place, file: FileEntry, offsets: tuple[int, ...] | None = None
) -> Box:
    """Return where the elements of a tensor in `file` are, as a piece at `offsets` of a larger one, or of its own.

    Raises PickleRefused if a tensor exceeds its storage, or overlaps itself otherwise than by being expanded.
    """
    shape, strides, item = tensor.shape, _moving_strides(tensor), item_bytes(tensor.dtype)
    stored, end = tensor.storage.count * item_bytes(tensor.storage.dtype), 0
    if prod(shape):
        last = sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        end = (tensor.offset + last + 1) * item
        expected = 1
        for stride, length in sorted(zip(strides, shape, strict=True)):
            if stride and stride < expected:
                raise PickleRefused("it has a tensor that overlaps itself")
            expected = stride * length or expected
    if end > stored or stored > place.bytes:
        raise PickleRefused(f"{name[:100]} extends beyond the bytes of its storage")
    origin = place.start + (tensor.offset * item if end else 0)
    return Box(file.at, origin, offsets or (0,) * len(shape), shape, strides, file.source)
