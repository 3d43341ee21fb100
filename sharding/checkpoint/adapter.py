"""Find the LoRA of a job, in a source of its own or among the weights of a training run. Reads headers and settings."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from blake3 import blake3

from sharding.checkpoint.documents import config_text, read_json
from sharding.checkpoint.readers import reader_of
from sharding.checkpoint.readers.reader import Found
from sharding.checkpoint.side_files import refuse_unfinished
from sharding.checkpoint.state_dict import remarks_on
from sharding.checkpoint.weight_sets import WeightSet
from sharding.core.errors import SourceError, WeightsNeeded
from sharding.core.limits import MAX_TENSORS
from sharding.core.origin import Place
from sharding.core.protocols import Files, Inputs, Source
from sharding.core.text import as_object, count, format_bytes, name_some, parsed_json
from sharding.core.values import Content, Finding, Tensor, folder_of
from sharding.formats.names import likely, may_be_missed
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX
from sharding.model_class.class_table import EMBEDDINGS, USUAL_HEAD, tied_names, ties

_WORDS = re.compile(r"\.(?:lm_head|embed\w*|wte|shared)\.")
"""Names of an adapter's weights for embeddings or an output head."""
_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
"""The names under which PEFT looks for the weights of an adapter (0.21, `utils/save_and_load.py`), in its order."""
_FOLDER = "lora_adapter/"  # Where verl and SkyRL save the adapter beside the run.
_META = "lora_train_meta.json"
"""Rank and alpha, as verl 0.9.1 saves them (`utils/checkpoint/fsdp_checkpoint_manager.py`)."""
_LORA = re.compile(r"\.(lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?:\.([^.]+?))?((?:\.(?:weight|bias))?)$")
_SAVED = re.compile(r"\.modules_to_save\.([^.]+)(?=\.)")
_OF_BASE = re.compile(r"\.(?:base_layer|original_module)(?=\.)")
_OTHER = re.compile(r"\.token_adapter\.|\.trainable_tokens_")  # The rows that it trains are in no tensor.
ALPHA = "lora_alpha"


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
    touches = any(_WORDS.search(tensor.name) for tensor in adapter.tensors)
    return replace(
        checkpoint,
        side_files=tuple(file for file in checkpoint.side_files if file.path not in own),
        copied_weights=tuple(file for file in checkpoint.copied_weights if file.path not in own),
        findings=tuple(findings),
        others=(*checkpoint.others, adapter),
        head_is_copy=head_is_copy(checkpoint, origin, most_bytes, touches=touches),
        unreached=origin.unreached,
    )


def _missed(source: Source) -> Iterator[Finding]:
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
    is_tied, endings = ties(config), tuple(f".{name}" for name in stored_heads(config))
    if is_tied is False or (is_tied is None and not touches):
        return None
    heads = [tensor for tensor in checkpoint.tensors if f".{tensor.name}".endswith(endings)]
    embeddings = [tensor for tensor in checkpoint.tensors if EMBEDDINGS.search(tensor.name)]
    for head, tensor in product(heads, embeddings):
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
    if most_bytes is not None and size > most_bytes:
        message = f"Learning {what} takes reading {format_bytes(size)} of weights, which is too much here."
        raise WeightsNeeded(message, "Merge the adapter on your own machine.")


def _read_adapter(source: Source, place: Place, number: int, most_bytes: int | None, most_tensors: int) -> Content:
    """Return the adapter in `source`, input `number` of a job. Raises SourceError if there is none, or several."""
    by_path, name = source.by_path, place.words
    if ADAPTER_NAME not in by_path:
        raise _no_adapter(source, place)
    weights = [by_path[path] for path in _WEIGHTS if path in by_path]
    if not weights:
        raise SourceError(f"{name} has {ADAPTER_NAME} but no {_WEIGHTS[0]}.", "Upload the weights of the adapter too.")
    config = config_text(source, ADAPTER_NAME)
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
    found = Found(source, WeightSet("", "adapter_model"), [file], most_tensors)
    tensors = tuple(reader_of([file.path], of_run=False).read(found).tensors)
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


def with_own_lora(checkpoint: Content, source: Files) -> Content:
    """Return `checkpoint` with the LoRA among its tensors, if any, in its `others`. Raises SourceError for several."""
    names = [tensor.name for tensor in checkpoint.tensors if not tensor.folder]
    if not checkpoint.of_ranks:
        return checkpoint
    is_lora = any(_LORA.search(name) or _SAVED.search(name) for name in names)
    if odd := next((name for name in names if _OTHER.search(name) or (not is_lora and _OF_BASE.search(name))), ""):
        message = f"The run holds weights of PEFT that this tool cannot tell from those of the base, such as {odd}."
        raise SourceError(message, "Save the adapter with PEFT's save_pretrained, then merge it into its base.")
    if not is_lora:
        return checkpoint
    base, lora, adapters = list[Tensor](), list[Tensor](), set[str]()
    for tensor in checkpoint.tensors:
        short = tensor.name.removeprefix(PREFIX)
        if tensor.folder:  # of a module beside the run
            base.append(tensor)
        elif match := _LORA.search(short):
            # A magnitude or an embedding's matrix has nothing behind the name of its adapter.
            adapters.add(match[2] or "default")
            lora.append(tensor._replace(name=f"{PREFIX}{short[: match.start()]}.{match[1]}{match[3]}"))
        elif match := _SAVED.search(short):
            adapters.add(match[1])
            lora.append(tensor._replace(name=PREFIX + _SAVED.sub("", short)))
        else:
            base.append(tensor._replace(name=_OF_BASE.sub("", short)))
    if len(adapters) > 1:
        message = f"The run holds several adapters: {name_some(sorted(adapters))}."
        raise SourceError(message, "Save the one that you want with PEFT's save_pretrained.")
    settings = _settings(lora, names)
    place = next((path for path in (ADAPTER_NAME, _FOLDER + ADAPTER_NAME) if path in source.by_path), "")
    text = config_text(source, place)
    if text is None:
        meta = as_object(read_json(source, _META))
        place = _META if type(meta.get(ALPHA)) in (int, float) and meta[ALPHA] > 0 else ""
        text = json.dumps(settings | ({ALPHA: meta[ALPHA]} if place else {})).encode()
    own = {_META, ADAPTER_NAME, *(path for path in source.by_path if path.startswith((_FOLDER, "adapter_model.")))}
    adapter = Content(
        replace(checkpoint.source, role="adapter"), tuple(lora), (), (), (), (), library="peft",
        configs={"": text.decode(errors="replace")},
    )  # fmt: skip
    message = f"The run holds a LoRA of {count(len(settings['target_modules']), 'module')}, of rank {settings['r']}. "
    finding = Finding("info", "run-lora", f"{message}Its settings are in {place}.")
    if not place:
        message += "Nothing beside it says its alpha, which the sum depends on."
        hint = "Add --lora-alpha N with the value that it was trained with. After rsLoRA or an alpha_pattern, put its "
        hint += "adapter_config.json beside the run instead."
        finding = Finding("warning", "run-lora", message, hint)
    return replace(
        checkpoint,
        tensors=tuple(base),
        others=(*checkpoint.others, adapter),
        side_files=tuple(file for file in checkpoint.side_files if file.path not in own),
        copied_weights=tuple(file for file in checkpoint.copied_weights if file.path not in own),
        findings=(*checkpoint.findings, finding),
    )


def _settings(lora: list[Tensor], names: list[str]) -> dict[str, Any]:
    """Return the configuration of PEFT that the shapes and names of a LoRA show: ranks and modules."""
    ranks = dict[str, int]()
    for tensor in lora:
        short = tensor.name.removeprefix(PREFIX)
        if (match := _LORA.search(short)) and match[1] in ("lora_A", "lora_embedding_A") and tensor.shape:
            ranks[short[: match.start()]] = tensor.shape[0]
    saved = {match.string[: match.start()].removeprefix(PREFIX) for match in map(_SAVED.search, names) if match}
    most = max(ranks.values(), key=list(ranks.values()).count, default=0)
    return {
        "peft_type": "LORA",
        "r": most,
        "rank_pattern": {module: rank for module, rank in ranks.items() if rank != most},
        "target_modules": sorted(ranks),
        "modules_to_save": sorted(saved) or None,
        "lora_bias": any(tensor.name.endswith(".lora_B.bias") for tensor in lora),
        "use_dora": any("lora_magnitude_vector" in name for name in names),
    }
