"""Find the LoRA adapter in a source and read its headers."""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from blake3 import blake3

from sharding.checkpoint.documents import config_text
from sharding.checkpoint.readers import reader_of
from sharding.checkpoint.readers.reader import Found
from sharding.checkpoint.side_files import refuse_unfinished
from sharding.checkpoint.state_dict import remarks_on
from sharding.checkpoint.weight_sets import WeightSet
from sharding.core.errors import SourceError, WeightsNeeded
from sharding.core.limits import MAX_TENSORS
from sharding.core.origin import Place
from sharding.core.protocols import Inputs, Source
from sharding.core.text import format_bytes, name_some, parsed_json
from sharding.core.values import Content, Finding, Tensor, folder_of
from sharding.formats.names import likely, may_be_missed
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.torch_checkpoint import EMBEDDINGS
from sharding.model_class.class_table import USUAL_HEAD, tied_names, ties

_WORDS = re.compile(r"\.(?:lm_head|embed\w*|wte|shared)\.")
"""Names of an adapter's weights for embeddings or an output head."""
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The names under which PEFT looks for the weights of an adapter (0.21, `utils/save_and_load.py`), in its order."""


def with_adapter(
    checkpoint: Content, origin: Inputs, most_bytes: int | None = None, most_tensors: int = MAX_TENSORS
) -> Content:
    """Return `checkpoint` with its adapter, if any. Raises SourceError, WeightsNeeded and TooManyTensors."""
    source = origin.of("adapter")
    if source is None:
        return checkpoint
    if checkpoint.of("adapter"):
        raise SourceError("The run holds a LoRA already.", "Merge that first. Then merge this adapter into the result.")
    number = origin.sources.index(source)
    adapter = _read_adapter(source, origin.places[number], number, most_bytes, most_tensors)
    findings = [*checkpoint.findings, *_missed(source)]
    paths = [file.path for file in checkpoint.side_files]
    if own := [path for path in paths if path == ADAPTER_NAME or path.startswith("adapter_model.")]:
        message = f"Left out: {name_some(own)}, which transformers would load on top of the merged weights."
        findings.append(Finding("info", "left-out", message))
    return replace(
        checkpoint,
        side_files=tuple(file for file in checkpoint.side_files if file.path not in own),
        copied_weights=tuple(file for file in checkpoint.copied_weights if file.path not in own),
        findings=tuple(findings),
        others=(*checkpoint.others, adapter),
        head_is_copy=head_is_copy(
            checkpoint, origin, most_bytes, touches=any(_WORDS.search(one.name) for one in adapter.tensors)
        ),
        unreached=origin.unreached,
    )


def _missed(source: Source) -> Iterator[Finding]:
    """Yield a warning for the weight files beside the adapter that a merge does not use."""
    missed: dict[str, list[str]] = {}
    for path in (file.path for file in source.files):
        if not folder_of(path) and may_be_missed(path):
            missed.setdefault(likely(path), []).append(path)
    for what, paths in missed.items():
        message = f"The adapter's repo has weights that are not merged: {name_some(paths)} ({what})."
        hint = "The result lacks them. If they were trained too, it is not the model that was trained."
        yield Finding("warning", "beside-adapter", message, hint)


def stored_heads(config: Any) -> tuple[str, ...]:
    """Return the names under which the model of `config` may store a tied head. transformers 4 had one more."""
    head = (tied_names(config) or (USUAL_HEAD,))[0]
    return head, f"language_model.{head}"


def head_is_copy(checkpoint: Content, origin: Inputs, most_bytes: int | None, *, touches: bool = True) -> bool | None:
    """Return whether a head and its embeddings are stored with the same bytes; None if that is not read."""
    config = parsed_json(checkpoint.configs.get("", "{}"))
    is_tied = ties(config)
    heads = stored_heads(config)
    if is_tied is False or (is_tied is None and not touches):
        return None
    embeddings = [tensor for tensor in checkpoint.tensors if EMBEDDINGS.search(tensor.name)]
    for head in (
        tensor for tensor in checkpoint.tensors if f".{tensor.name}".endswith(tuple(f".{name}" for name in heads))
    ):
        for tensor in embeddings:
            if (tensor.dtype, tensor.shape) == (head.dtype, head.shape):
                _refuse_reading(f"whether {head.name} and {tensor.name} are equal", 2 * head.bytes, most_bytes)
                return _digest(tensor, origin) == _digest(head, origin)
    return None


def _digest(tensor: Tensor, origin: Inputs) -> str:
    digest = blake3()
    for extent in tensor.recipe.reads():
        for chunk in origin.sources[extent.source].read(extent.file, extent.start_byte, extent.end_byte):
            digest.update(chunk)
    return digest.hexdigest()


def _refuse_reading(what: str, size: int, most_bytes: int | None) -> None:
    """Raise WeightsNeeded if learning `what` takes reading more than `most_bytes` of weights."""
    if most_bytes is not None and size > most_bytes:
        message = f"Learning {what} takes reading {format_bytes(size)} of weights, which is too much here."
        raise WeightsNeeded(message, "Merge the adapter on your own machine.")


def _read_adapter(source: Source, place: Place, number: int, most_bytes: int | None, most_tensors: int) -> Content:
    """Return the adapter in `source`, input `number` of a job. Raises SourceError if there is none, or several."""
    by_path = {file.path: file for file in source.files}
    name = place.words
    if ADAPTER_NAME not in by_path:
        raise _no_adapter(source, place)
    weights = [by_path[path] for path in _WEIGHTS if path in by_path]
    if not weights:
        raise SourceError(f"{name} has {ADAPTER_NAME} but no {_WEIGHTS[0]}.", "Upload the weights of the adapter too.")
    config = config_text(source, by_path[ADAPTER_NAME])
    if config is None:
        raise SourceError(f"{ADAPTER_NAME} of {name} is far larger than usual.", "Save the adapter again with PEFT.")
    file = weights[0]
    refuse_unfinished(by_path, [file.path])
    if file.sha256 is None:
        _refuse_reading(f"the SHA-256 of {file.path}", file.bytes, most_bytes)
        digest = hashlib.sha256()
        for chunk in source.read(file.path, 0, file.bytes):
            digest.update(chunk)
        file = replace(file, sha256=digest.hexdigest())
    file = replace(file, source=number)
    found = Found(source, {file.path: file}, WeightSet("", "adapter_model"), [file.path], most_tensors)
    tensors = tuple(reader_of(found.paths, of_run=False).read(found).tensors)
    for remark in remarks_on(tensors):
        raise SourceError(f"The adapter cannot be merged. {remark.message}", remark.hint)
    return Content(place, tensors, (), (file,), (), (), library="peft", configs={"": config.decode(errors="replace")})


def _no_adapter(source: Source, place: Place) -> SourceError:
    paths = [file.path for file in source.files]
    inside = sorted(path.removesuffix(f"/{ADAPTER_NAME}") for path in paths if path.endswith(f"/{ADAPTER_NAME}"))
    if not inside:
        message = f"{place.words} has no {ADAPTER_NAME}, so it is no adapter of PEFT."
        return SourceError(message, "Name the folder or the repo that holds this file.")
    several = f"several adapters, in {name_some(inside, 10)}" if len(inside) > 1 else f"its adapter in {inside[0]}"
    example = f"{place.name}/{inside[0]}"
    return SourceError(f"{place.words} has {several}.", f"Name one of them, such as {example}.")
