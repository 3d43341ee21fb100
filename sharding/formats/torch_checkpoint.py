"""Find where each tensor's bytes lie in torch `.bin` files, each tensor once. Executes nothing from them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sharding.core.dtypes import BY_TORCH, item_bytes
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_EXPANDED_BYTES, MAX_NAMES_OF_A_TENSOR
from sharding.core.protocols import Files
from sharding.core.recipe import Recipe
from sharding.core.text import format_bytes, name_problem, name_some, shown_name
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Finding, Tensor, folder_of
from sharding.formats.torch_file import Locate, Place, open_bin
from sharding.formats.torch_globals import Other, PickleRefused, StoredTensor
from sharding.formats.torch_zip import ZipRefused
from sharding.recipes.laid import Box, Laid
from sharding.recipes.stored import Stored

_HINT = "Ask its author for safetensors, or load it in a sandbox of your own and save it again."

EMBEDDINGS = re.compile(
    r"(?:^|[./])(?:embed_tokens|shared|wte|word_embeddings?|tok_embeddings|embeddings|embed_in|tokens_embed|w)\.weight$"
)
HEADS = re.compile(
    r"(?:^|[./])(?:(?:\w+_)?head|(?:(?:lm_)?head|(?:cls\.)?predictions)\.decoder|decoder|output|embed_out|proj_out|out_proj"
    r"|lm_loss|output_projection|vocab_projector|proj)\.weight$"
)
_HEAD_BIASES = re.compile(r"(?:^|[./])(?:predictions|(?:\w+_)?head)\.(?:decoder\.)?bias$")
"""What `_tied_weights_keys` of the classes of transformers 5.23 call what they tie, a few rare ones apart."""


@dataclass(frozen=True, slots=True)
class Archive:
    """What a `.bin` file holds: each tensor once, in stored order, and what else there is to say.

    `tied` maps names that are left
    out to the name that stands for the same tensor. `ignored` names what is left out, `is_wrapped` says that the
    tensors were found under `state_dict`, beside which all is left out.
    """

    tensors: tuple[Tensor, ...]
    tied: Mapping[str, str]
    ignored: tuple[str, ...]
    is_wrapped: bool


def read_archives(source: Files, files: Iterable[FileEntry], *, unites_tied: bool = True) -> list[Archive]:
    """Return what each of `files` holds, in order. Raises SourceError."""
    with readers(source.ranges_at_once) as pool:
        return list(pool.map(lambda file: read_archive(source, file, unites_tied=unites_tied), files))


def read_archive(source: Files, file: FileEntry, *, unites_tied: bool = True) -> Archive:
    """Return where the tensors of `file` lie, its folder before their names.

    With `unites_tied` one name stands for embeddings and output heads that share a tensor, as transformers has it once
    it has tied them; every other name, and each without `unites_tied`, is a tensor of its own.
    Raises SourceError where torch's weights-only reader would refuse it, where it holds what safetensors cannot, or
    where its parts contradict one another.
    """
    try:
        value, locate = open_bin(source, file)
        wrapper = value if isinstance(value, dict) and isinstance(value.get("state_dict"), dict) else {}
        tensors, ignored = _sort(wrapper.get("state_dict", value), folder_of(file.path))
        ignored += [shown_name(str(key)) for key in wrapper if key != "state_dict"]
        tied = _tied(tensors) if unites_tied else {}
        return _lay_out(file, tensors, tied, locate, tuple(ignored), is_wrapped=bool(wrapper))
    except PickleRefused as error:
        raise SourceError(f"{file.path} is not read: {error}.", _HINT) from error
    except ZipRefused as error:
        raise SourceError(f"{file.path} is not read: {error}.", "Download it again, or ask its author.") from error


def describe_archives(files: Iterable[FileEntry], archives: Sequence[Archive]) -> Iterator[Finding]:
    """Yield what a person should know of weights that came out of `.bin` files."""
    if not archives:
        return
    names = name_some([file.path for file in files])
    message = f"The weights are pickled ({names}): they become safetensors byte for byte, and nothing in them is run."
    yield Finding("info", "pickled", message)
    tied = {name: kept for archive in archives for name, kept in archive.tied.items()}
    if tied:
        pairs = name_some([f"{name} (as {kept})" for name, kept in tied.items()])
        yield Finding("info", "tied", f"Tied weights are written once, as transformers does; left out: {pairs}.")
    views = [tensor for archive in archives for tensor in archive.tensors if not isinstance(tensor.recipe, Stored)]
    if views:
        size = format_bytes(sum(tensor.bytes for tensor in views))
        message = f"{len(views)} views (transposed, cut out or expanded) of {size} are written row by row."
        yield Finding("info", "views", message)
    ignored = [name for archive in archives for name in archive.ignored]
    if ignored or any(archive.is_wrapped for archive in archives):
        is_wrapped = any(archive.is_wrapped for archive in archives)
        where = "The tensors were found under state_dict. " if is_wrapped else ""
        beside = "stands beside it or is" if is_wrapped else "is"
        left = f"What {beside} no tensor is left out: {name_some(ignored)}." if ignored else ""
        yield Finding("info", "no-tensors", (where + left).strip())


def _sort(state: Any, folder: str) -> tuple[dict[str, StoredTensor], list[str]]:
    """Return the tensors of a dictionary by name, `folder` before it, and the keys of what is none."""
    if not isinstance(state, dict):
        raise PickleRefused("it holds no dictionary from names to tensors")
    tensors, ignored, seen = {}, [], set[int]()
    below = []
    for name, value in state.items():
        if isinstance(value, Other) and value.is_tensor:
            raise PickleRefused(f"{str(name)[:100]} is {value.what}, which has no place in a safetensors file")
        if not isinstance(value, StoredTensor):
            ignored.append(shown_name(str(name)))
            below += ignored[-1:] if _holds_tensors(value, seen) else []
        elif not BY_TORCH[value.dtype].name:
            raise PickleRefused(f"{name!s:.100} is of dtype {value.dtype}, which has no place in a safetensors file")
        elif not isinstance(name, str) or name == "__metadata__":
            raise PickleRefused(f"it has a tensor by the name {name!r:.100}, which a safetensors file cannot have")
        elif problem := name_problem(name):
            raise PickleRefused(f"it has a tensor by the name {shown_name(name)}, which {problem}")
        else:
            tensors[folder + name] = value
    if not tensors:
        raise PickleRefused(f"it holds no tensors by name, only {name_some(ignored) or 'nothing'}"[:300])
    if below:
        raise PickleRefused(f"it holds tensors below {name_some(below)}, and others beside that"[:300])
    return tensors, ignored


def _holds_tensors(value: Any, seen: set[int]) -> bool:
    """Return whether there is a tensor in `value`, at any depth. What was looked through before (`seen`) holds none."""
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
    """Return names that are not kept, by which one stands for the same tensor."""
    same: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        if EMBEDDINGS.search(name) or HEADS.search(name):
            same.setdefault(_identity(name, tensor), []).append(name)
        elif _HEAD_BIASES.search(name):
            same.setdefault((_HEAD_BIASES, _identity(name, tensor)), []).append(name)
    for identity, names in list(same.items()):
        if identity[0] is not _HEAD_BIASES and not any(map(EMBEDDINGS.search, names)):
            del same[identity]
    return {name: kept for names in same.values() for kept in [_main_name(names)] for name in names if name != kept}


def _lay_out(
    file: FileEntry,
    tensors: Mapping[str, StoredTensor],
    tied: Mapping[str, str],
    locate: Locate,
    ignored: tuple[str, ...],
    *,
    is_wrapped: bool,
) -> Archive:
    kept = {name: tensor for name, tensor in tensors.items() if name not in tied}
    places = locate(tensor.storage for tensor in kept.values())
    sizes = {name: prod(tensor.shape) * item_bytes(tensor.dtype) for name, tensor in kept.items()}
    most_more = (MAX_NAMES_OF_A_TENSOR - 1) * file.bytes + MAX_EXPANDED_BYTES
    if sum(sizes.values()) > file.bytes + most_more:
        raise PickleRefused(f"its tensors share bytes: apart they have over {format_bytes(most_more)} more")
    entries: list[Tensor] = []
    for name, tensor in kept.items():
        start = origin_of(name, tensor, places[tensor.storage.key])
        recipe: Recipe = Stored(file.source, file.at, start, start + sizes[name])
        if not lies_in_order(tensor):
            box = Box(file.at, start, (0,) * len(tensor.shape), tensor.shape, moving_strides(tensor), file.source)
            recipe = Laid((box,), tensor.shape, item_bytes(tensor.dtype))
        dtype = BY_TORCH[tensor.dtype].name
        entries.append(Tensor(name, dtype, tensor.shape, recipe, folder_of(file.path)))
    return Archive(tuple(entries), tied, ignored, is_wrapped)


def moving_strides(tensor: StoredTensor) -> tuple[int, ...]:
    """Return the strides of a tensor, 0 for a dimension of length 1: that means nothing, and may be anything."""
    return tuple(stride if length > 1 else 0 for stride, length in zip(tensor.strides, tensor.shape, strict=True))


def _identity(name: str, tensor: StoredTensor) -> Any:
    """Return what two names have in common that stand for one tensor."""
    if not prod(tensor.shape):
        return name
    strides = tuple(stride for stride, length in zip(tensor.strides, tensor.shape, strict=True) if length > 1)
    return tensor.storage.key, tensor.dtype, tensor.offset, tensor.shape, strides


def _main_name(names: Sequence[str]) -> str:
    """Return the name that a tied tensor keeps: the first that was stored, that of an output head only if all are.

    What transformers 5.23 keeps in 280 of the 285 groups of its 185 classes with tied weights, the others being
    biases of heads, which it ties again from either name.
    """
    return min(names, key=lambda name: any(part.endswith("head") for part in name.split(".")))


def origin_of(name: str, tensor: StoredTensor, place: Place) -> int:
    """Return the byte of a tensor's first element. Raises PickleRefused where the tensor exceeds its storage."""
    there = min(place.bytes, tensor.storage.count * item_bytes(tensor.storage.dtype))
    item = item_bytes(tensor.dtype)
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.strides, strict=True))
    end = (tensor.offset + last + 1) * item if prod(tensor.shape) else 0
    if end > there or tensor.storage.count * item_bytes(tensor.storage.dtype) > place.bytes:
        raise PickleRefused(f"{name[:100]} reaches beyond the bytes that are there for it")
    return place.start + tensor.offset * item if end else place.start


def lies_in_order(tensor: StoredTensor) -> bool:
    """Return whether the elements lie one after another. Raises PickleRefused for a tensor that overlaps itself.

    Not an expanded one, whose elements are one and the same along a dimension.
    """
    moving = [(stride, length) for stride, length in zip(tensor.strides, tensor.shape, strict=True) if length > 1]
    if not prod(tensor.shape):
        return True
    expected = 1
    for stride, length in sorted(moving):
        if stride and stride < expected:
            raise PickleRefused("it has a tensor that overlaps itself")
        expected = stride * length if stride else expected
    expected = 1
    for stride, length in reversed(moving):
        if stride != expected:
            return False
        expected *= length
    return True
