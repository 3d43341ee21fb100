"""Build a model without weights and say what transformers and accelerate know of it. A process of its own.

Standard input holds JSON: `config` (the text of a config.json), `dtype` (None: as configured) and `budgets`
(device to bytes, or None); standard output gets one JSON object. No code of a repo is run.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from sharding.probe.loading import Unsupported, model_class


def main() -> None:
    """Answer one question."""
    asked = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        answer = describe(asked)
    except Unsupported as error:
        answer = {"unsupported": str(error)}
    with out:
        json.dump(answer, out)


def describe(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is known of the model `asked` about. Raises Unsupported."""
    import torch
    from accelerate import init_empty_weights

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(asked["config"])
        cls, config = model_class(Path(folder))
    dtype = getattr(torch, asked["dtype"]) if asked["dtype"] else config.dtype
    with init_empty_weights():
        model = cls._from_config(config, dtype=dtype)
    model.tie_weights()
    classes = sorted(model._no_split_modules or [])
    answer = {
        "class_name": cls.__name__,
        "no_split_classes": classes,
        "keep_in_fp32": sorted(getattr(model, "_keep_in_fp32_modules", None) or []),
        "tied": _tied(model),
        "blocks": [name for name, module in model.named_modules() if type(module).__name__ in classes],
        "weights": _weights(model),
    }
    if asked["budgets"]:
        answer["device_map"] = _place(model, asked["budgets"], classes)
    return answer


def _place(model: Any, budgets: dict[str, int], classes: list[str]) -> dict[str, str]:
    from accelerate import infer_auto_device_map

    numbered = {int(name[5:]) if name.startswith("cuda:") else name: size for name, size in budgets.items()}
    placed = infer_auto_device_map(model, max_memory=numbered, no_split_module_classes=classes)
    return {name: f"cuda:{device}" if isinstance(device, int) else device for name, device in placed.items()}


def _tied(model: Any) -> list[list[str]]:
    """Return the groups of names that stand for one tensor."""
    groups: dict[int, list[str]] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _weights(model: Any) -> list[dict[str, Any]]:
    """Return every tensor once: its name in the model, the names it is saved under, its bytes; in natural order."""
    from transformers.core_model_loading import dot_natural_key, revert_weight_conversion

    kept = dict(model.named_parameters())
    saved = model.state_dict()
    kept |= {name: tensor for name, tensor in model.named_buffers() if name in saved}
    return [
        {
            "name": name,
            "saved_as": list(revert_weight_conversion(model, {name: kept[name]})),
            "bytes": kept[name].nbytes,
        }
        for name in sorted(kept, key=dot_natural_key)
    ]


if __name__ == "__main__":
    main()
