"""Look up the classes of transformers and diffusers in the tables of `make class-table`, without these libraries."""

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
OF_DIFFUSERS = TABLE.with_name("diffusers_table.json")

EMBEDDINGS = re.compile(
    r"(?:^|[./])(?:embed_tokens|shared|wte|word_embeddings?|tok_embeddings|embeddings|embed_in|tokens_embed|w)\.weight$"
)
HEADS = re.compile(
    r"(?:^|[./])(?:(?:\w+_)?head|(?:(?:lm_)?head|(?:cls\.)?predictions)\.decoder|decoder|output|embed_out|proj_out|out_proj"
    r"|lm_loss|output_projection|vocab_projector|proj)\.weight$"
)
HEAD_BIASES = re.compile(r"(?:^|[./])(?:predictions|(?:\w+_)?head)\.(?:decoder\.)?bias$")
"""Names of tied tensors in `_tied_weights_keys` of the classes of transformers 5.23, except for a few rare ones."""


@dataclass(frozen=True, slots=True)
class KnownClass:
    """A class, with those of the models inside it. `kept` has, for each dtype of a cast, regular expressions of names
    in files that stay in fp32. `blocks` are never split over devices, with * for their numbers."""

    name: str
    kept: Mapping[str, tuple[str, ...]]
    blocks: tuple[str, ...]


def known_class(config: Any) -> KnownClass | None:
    """Return the class that transformers uses for `config` (the JSON of a config.json), or None if it is unknown.

    >>> known_class({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}).kept["fp16"]
    ('wo',)
    """
    if not isinstance(config, dict) or (kind := _type_of(config)) not in _table()["types"]:
        return None
    named = next((name for name in _named(config) if name in _table()["classes"]), "")
    name = named or ("" if "auto_map" in config else str(_table()["types"][kind]["class"]))
    try:
        entries = list(_entries(name, config))
    except (LookupError, RecursionError):  # unknown, or models inside models inside models
        return None

    def all_of(key: str) -> tuple[str, ...]:
        return tuple({each: None for entry in entries for each in entry.get(key, ())})

    return KnownClass(name, {dtype: all_of(dtype) for dtype in ("fp16", "bf16")}, all_of("blocks"))


def hints_from_table(
    config: str, tensors: Iterable[Tensor], folder: str, dtype: str, *, with_blocks: bool
) -> ModelHints | None:
    """Return hints about tensors that stay in fp32 or, `with_blocks`, are in a block. None if it is unknown."""
    known = known_class(parsed_json(config))
    if not known:
        return None
    kept = re.compile("|".join(known.kept.get(dtype, ())) or "(?!)")
    blocks = re.compile("|".join(map(_block_pattern, known.blocks * with_blocks)) or "(?!)")
    saved = []
    for number, tensor in enumerate(tensors):
        name = tensor.name.removeprefix(folder)
        block, dtype_after = blocks.search(name), "F32" if kept.search(name) else ""
        if block or dtype_after:
            around = folder + name[: block.end()] if block else ""
            saved.append(SavedTensor(tensor.name, dtype_after, number, around))
    return ModelHints(known.name, tuple(saved))


def hints_of_diffusers(config: str, tensors: Iterable[Tensor], folder: str) -> ModelHints | None:
    """Return hints about what stays in fp32 in every cast, None if config.json names no class of diffusers. diffusers
    0.42 keeps a tensor if a part of its name is in `_keep_in_fp32_modules`."""
    document = parsed_json(config)
    name = document.get("_class_name") if isinstance(document, dict) else None
    if not isinstance(name, str):
        return None
    kept = _of_diffusers()["classes"].get(name)
    if kept is None:
        return ModelHints(unknown=f"{folder}config.json names the class {name[:100]}, which this tool does not know.")
    saved = (
        SavedTensor(tensor.name, "F32", number)
        for number, tensor in enumerate(tensors)
        if any(part in kept for part in tensor.name.removeprefix(folder).split("."))
    )
    return ModelHints(name, tuple(saved))


def ties(config: Any) -> bool | None:
    """Return whether a model ties its head to its embeddings, None if that is not known or is so for only some of them.

    transformers 5.23 ties them if the `tie_word_embeddings` of the configuration in memory is true, and its class names
    the tensors (`get_expanded_tied_weights_keys`). Many configurations take the value of `text_config` where the top
    does not say true. The table has what each of them makes of both.

    >>> ties({"model_type": "gpt2"}), ties({"model_type": "gpt2", "tie_word_embeddings": False}), ties({})
    (True, False, None)
    """
    if not isinstance(config, dict) or "auto_map" in config:  # nobody knows what the repo's own code ties
        return None
    if (kind := _type_of(config)) not in _table()["types"]:
        return None
    classes = _classes_of(config)
    if not classes and not any(entry and entry["type"] == kind for entry in _table()["classes"].values()):
        return None
    if all("ties" not in entry for entry in classes):
        return False
    flags = {_flag(config)}
    if any("flag" in entry for entry in classes):  # the head is in a part, whose type the configuration chooses
        flags |= {_flag(part) for part in map(config.get, _PARTS) if isinstance(part, dict)} or {None}
        chosen = [config.get(key) for entry in classes for key in _PARTS if key in entry.get("parts", {})]
        classes = classes + [other for part in chosen for other in _with_heads(_type_of(part)) or [{}]]
    if flags == {False}:
        return False
    return True if flags == {True} and all(entry.get("ties") for entry in classes) else None


def tied_names(config: Any) -> tuple[str, ...]:
    """Return the weights in memory that are one if the model ties its head: the head first, biases last; () if unknown.

    >>> tied_names({"model_type": "whisper"})
    ('proj_out.weight', 'model.decoder.embed_tokens.weight')
    """
    if ties(config) is None:
        return ()
    names = set[tuple[str, ...]]()
    for entry in _classes_of(config):
        chosen = {key: config.get(key) for key in _PARTS if key in entry.get("parts", {})}
        others = [part for key, part in chosen.items() if _type_of(part) not in (None, entry["parts"][key])]
        names.add(() if "flag" in entry and others else tuple(entry.get("tied", (USUAL_HEAD, "embed_tokens.weight"))))
    return names.pop() if len(names) == 1 else ()


def is_known_type(kind: Any) -> bool:
    """Return whether transformers has classes for the model type `kind`."""
    return kind in _table()["types"] if isinstance(kind, str) else False


def causal_class(kind: Any) -> str:
    """Return the class of a model type that predicts the next word and nothing else, "" if there is none or several.

    >>> causal_class("gemma3_text"), causal_class("qwen2_5_vl_text")
    ('Gemma3ForCausalLM', '')
    """
    known = [name for name, entry in _table()["classes"].items() if entry and entry["type"] == kind]
    causal = [name for name in known if name.endswith("ForCausalLM")]
    return causal[0] if len(causal) == 1 else ""


def always_ties(config: Any) -> bool:
    """Return whether the configuration of a model ties its weights even if config.json says that it does not."""
    kind = _type_of(config)
    return bool(kind) and _table()["types"].get(kind, {}).get("ties") == "yyy"


USUAL_HEAD = "lm_head.weight"  # What most classes of transformers call their output head.
_SAYS = (None, True, False)  # What a configuration may say of itself, in the order of the table.
_PARTS = ("text_config", "decoder")  # Keys of a configuration that hold the configuration of the part with the head.


def _classes_of(config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    named = [name for name in _named(config) if _table()["classes"].get(name)]
    return [_table()["classes"][name] for name in named[:1]] or _with_heads(config.get("model_type"))


def _flag(config: Any) -> bool | None:
    stated, kind = config.get("tie_word_embeddings"), _type_of(config)
    if kind not in _table()["types"] or not isinstance(stated, bool | None):
        return stated if isinstance(stated, bool) else None
    flags = _table()["types"][kind]["ties"].split()
    text, row = config.get("text_config"), 0
    if isinstance(text, dict) and len(flags) > 1:
        of_text = _flag(text)
        if of_text is None and _type_of(text) is not None:
            return None
        row = 1 + _SAYS.index(of_text)
    return {"y": True, "n": False}.get(flags[row][_SAYS.index(stated)])


def _type_of(config: Any) -> str | None:
    kind = config.get("model_type") if isinstance(config, dict) else None
    return kind if isinstance(kind, str) else None


@cache
def _table() -> Any:
    table = json.loads(TABLE.read_text())
    classes = table["classes"]
    table["classes"] = {name: classes[entry] if isinstance(entry, str) else entry for name, entry in classes.items()}
    return table


@cache
def _of_diffusers() -> Any:
    return json.loads(OF_DIFFUSERS.read_text())


def _named(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _entries(name: str, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if (entry := _table()["classes"].get(name)) is None:
        raise LookupError(name)
    yield entry
    for key, usual in entry.get("parts", {}).items():
        part = config.get(key)
        part = part if isinstance(part, dict) else {}
        kind = part.get("model_type", usual)
        known = _table()["types"].get(kind) if isinstance(kind, str) else None
        if known is None or known["class"]:  # if the type has no base class, the model uses a class of its own
            yield from _entries(known["class"] if known else "", part)


def _with_heads(kind: Any) -> list[Mapping[str, Any]]:
    classes = _table()["classes"].values()
    return [entry for entry in classes if entry and entry["type"] == kind and "ties" in entry]


def _block_pattern(block: str) -> str:
    return r"(?:^|(?<=\.))" + re.escape(block).replace(r"\*", r"\d+") + r"(?=\.)"
