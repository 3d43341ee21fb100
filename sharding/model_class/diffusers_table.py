"""Look up what classes of diffusers keep in fp32, without importing diffusers.

`make class-table` writes the table from the installed diffusers. It has every class of a model.
"""

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from sharding.core.hints import ModelHints, SavedTensor
from sharding.core.text import parsed_json
from sharding.core.values import Tensor

TABLE = Path(__file__).with_name("diffusers_table.json")


def hints_of_diffusers(config: str, tensors: Iterable[Tensor], folder: str) -> ModelHints | None:
    """Return hints about `tensors` of the model in `folder`, None if its config.json names no class of diffusers.

    `saved` has only the tensors that stay in fp32 in every cast. diffusers 0.42 keeps a tensor if a part of its name is
    in `_keep_in_fp32_modules` (`load_model_dict_into_meta`).
    """
    document = parsed_json(config)
    name = document.get("_class_name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        return None
    kept = _table().get(name)
    if kept is None:
        return ModelHints(unknown=f"{folder}config.json names the class {name[:100]}, which this tool does not know.")
    names = [tensor.name for tensor in tensors]
    is_kept = [not kept.isdisjoint(name.removeprefix(folder).split(".")) for name in names]
    pairs = enumerate(zip(names, is_kept, strict=True))
    return ModelHints(name, tuple(SavedTensor(each, "F32", number) for number, (each, stays) in pairs if stays))


@cache
def _table() -> dict[str, frozenset[str]]:
    document: Any = json.loads(TABLE.read_text())
    return {name: frozenset(parts) for name, parts in document["classes"].items()}
