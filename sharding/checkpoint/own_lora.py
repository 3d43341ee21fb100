"""Tell the weights of a LoRA that a training run holds from those of its base. Settings are read, weights are not."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sharding.checkpoint.documents import config_text, read_json
from sharding.core.errors import SourceError
from sharding.core.protocols import Files
from sharding.core.text import as_object, count, name_some
from sharding.core.values import Content, FileEntry, Finding, Tensor
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX

_FOLDER = "lora_adapter/"  # Where verl and SkyRL save the adapter beside the run.
_META = "lora_train_meta.json"
"""Rank and alpha, as verl 0.9.1 saves them (`utils/checkpoint/fsdp_checkpoint_manager.py`)."""
_LORA = re.compile(r"\.(lora_(?:A|B|embedding_A|embedding_B|magnitude_vector))(?:\.([^.]+?))?((?:\.(?:weight|bias))?)$")
_SAVED = re.compile(r"\.modules_to_save\.([^.]+)(?=\.)")
_OF_BASE = re.compile(r"\.(?:base_layer|original_module)(?=\.)")
_OTHER = re.compile(r"\.token_adapter\.|\.trainable_tokens_")  # The rows that it trains are in no tensor.
ALPHA = "lora_alpha"


def with_own_lora(checkpoint: Content, source: Files, by_path: Mapping[str, FileEntry]) -> Content:
    """Return `checkpoint` with the LoRA among its tensors as an adapter in its `others`, if it holds one.

    Its settings come from an adapter_config.json in the run, in `lora_adapter/`, or from verl's own file. Otherwise
    they are read off the shapes, without alpha. Raises SourceError if there are several adapters.
    """
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
    place = next((path for path in (ADAPTER_NAME, _FOLDER + ADAPTER_NAME) if path in by_path), "")
    text = config_text(source, by_path[place]) if place else None
    if text is None:
        meta = as_object(read_json(source, by_path.get(_META)))
        place = _META if type(meta.get(ALPHA)) in (int, float) and meta[ALPHA] > 0 else ""
        text = json.dumps(settings | ({ALPHA: meta[ALPHA]} if place else {})).encode()
    own = {_META, ADAPTER_NAME, *(path for path in by_path if path.startswith((_FOLDER, "adapter_model.")))}
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
