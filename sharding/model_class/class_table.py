"""Look up the classes of transformers in a table, without importing transformers.

`make class-table` writes the table from the installed transformers. It has every class that can be built from its
defaults. For each class it says which weights stay in fp32, which modules are never split, and whether the embeddings
are tied to the head.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from sharding.core.hints import ModelHints, SavedTensor
from sharding.core.text import parsed_json
from sharding.core.values import Tensor

TABLE = Path(__file__).with_name("class_table.json")


@dataclass(frozen=True, slots=True)
class KnownClass:
    """A class, together with the classes of the models inside it.

    `kept` has regular expressions for each dtype of a cast. A tensor stays in fp32 if one of them matches its name in
    the files. `blocks` are the modules that are never split over devices, with * for their numbers.
    """

    name: str
    kept: Mapping[str, tuple[str, ...]]
    blocks: tuple[str, ...]


def known_class(config: Any) -> KnownClass | None:
    """Return the class that transformers uses for `config` (the JSON of a config.json), or None if it is unknown.

    >>> known_class({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}).kept["fp16"]
    ('wo',)
    """
    if not isinstance(config, dict) or not (name := _name_of(config)):
        return None
    try:
        entries = list(_entries(name, config))
    except RecursionError:  # models inside models inside models
        return None
    if None in entries:
        return None
    found = [entry for entry in entries if entry is not None]
    kept = {
        dtype: tuple({pattern: None for entry in found for pattern in entry.get(dtype, ())})
        for dtype in ("fp16", "bf16")
    }
    return KnownClass(name, kept, tuple({block: None for entry in found for block in entry.get("blocks", ())}))


def hints_from_table(
    config: str, tensors: Iterable[Tensor], folder: str, dtype: str, *, with_blocks: bool
) -> ModelHints | None:
    """Return hints from the table about `tensors` of the model in `folder`, cast to `dtype`.

    `saved` has only tensors that stay in fp32 and, `with_blocks`, tensors in a block. None if the class is unknown.
    """
    known = known_class(parsed_json(config))
    if not known:
        return None
    kept = re.compile("|".join(known.kept.get(dtype, ())) or "(?!)")
    blocks = re.compile("|".join(map(_block_pattern, known.blocks * with_blocks)) or "(?!)")
    saved = []
    for number, tensor in enumerate(tensors):
        name = tensor.name.removeprefix(folder)
        block = blocks.search(name)
        is_kept = bool(kept.search(name))
        if is_kept or block:
            saved.append(
                SavedTensor(tensor.name, "F32" * is_kept, number, folder + name[: block.end()] if block else "")
            )
    return ModelHints(known.name, tuple(saved))


def ties(config: Any) -> bool:
    """Return whether the model that `config` (the JSON of a config.json) describes ties its embeddings when loaded.

    transformers 5.23 ties them if `tie_word_embeddings` is true, both for the model and for its part with the head. Its
    class must also name the tensors to tie (`PreTrainedModel.get_expanded_tied_weights_keys`). Returns False if this is
    not known, or if the class ties only some of its embeddings and heads.

    >>> ties({"model_type": "gpt2"}), ties({"model_type": "gpt2", "tie_word_embeddings": False})
    (True, False)
    """
    if not isinstance(config, dict) or "auto_map" in config:  # nobody knows what the repo's own code ties
        return False
    types, kind = _table()["types"], config.get("model_type")
    if not isinstance(kind, str) or kind not in types:
        return False
    named = [name for name in _named(config) if _table()["classes"].get(name)]
    classes = [_table()["classes"][name] for name in named[:1]] or _with_heads(kind)
    parts = [config, *(part for part in map(config.get, _PARTS) if isinstance(part, dict))]
    for entry in list(classes):
        chosen = [config.get(key) for key in _PARTS if key in entry.get("parts", {})]
        kinds = [part.get("model_type") if isinstance(part, dict) else None for part in chosen]
        classes += [other for part in kinds for other in _with_heads(part) or [{}]]
    if not classes or not all(entry.get("ties") for entry in classes):
        return False
    if types[kind]["ties"] == "always":
        return True
    return all(part.get("tie_word_embeddings", _ties_by_default(part.get("model_type"))) is True for part in parts)


_PARTS = ("text_config", "decoder")
"""Keys of a configuration that hold the configuration of the part with the head."""


@cache
def _table() -> Any:
    table = json.loads(TABLE.read_text())
    classes = table["classes"]
    table["classes"] = {name: classes[entry] if isinstance(entry, str) else entry for name, entry in classes.items()}
    return table


def _named(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _name_of(config: Mapping[str, Any]) -> str:
    """Return the class that transformers uses: the first named class that the table has, else the base class."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _table()["types"]:
        return ""
    named = next((name for name in _named(config) if name in _table()["classes"]), "")
    return named or ("" if "auto_map" in config else str(_table()["types"][kind]["class"]))


def _entries(name: str, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any] | None]:
    """Yield the entries of the table for the class `name` and the classes inside it. An unknown class gives None."""
    entry = _table()["classes"].get(name)
    yield entry
    for key, usual in (entry or {}).get("parts", {}).items():
        part = config.get(key)
        part = part if isinstance(part, dict) else {}
        kind = part.get("model_type", usual)
        known = _table()["types"].get(kind) if isinstance(kind, str) else None
        if known is None or known["class"]:  # if the type has no base class, the model uses a class of its own
            yield from _entries(known["class"] if known else "", part)


def _with_heads(kind: Any) -> list[Mapping[str, Any]]:
    """Return the classes of a type that tie weights of theirs, or of a part of them."""
    classes = _table()["classes"].values()
    return [entry for entry in classes if entry and entry["type"] == kind and "ties" in entry]


def _ties_by_default(kind: Any) -> bool:
    return isinstance(kind, str) and _table()["types"].get(kind, {}).get("ties", "no") != "no"


def _block_pattern(block: str) -> str:
    return r"(?:^|(?<=\.))" + re.escape(block).replace(r"\*", r"\d+") + r"(?=\.)"
