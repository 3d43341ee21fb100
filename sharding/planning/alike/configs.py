"""Write a config.json with the form of one model and the values of another. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sharding.core.text import as_object, objects_in

_PARTS = ("text_config", "thinker_config", "llm_config", "language_config")
"""Keys under which a model with several parts describes its text model, or what holds that."""

_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")

_FORM = frozenset(["architectures", "model_type", "auto_map", "transformers_version", "_name_or_path"])
"""What says how a model is built and stored. It comes from the original."""

_LEFT_OUT = frozenset([*_FORM, "quantization_config", "compression_config", *_PARTS])
_DTYPES = ("dtype", "torch_dtype")
_SHARED = ("tie_word_embeddings", *_DTYPES)
"""What a model with several parts may say of all of them."""

_NEW_ROPE = "rope_parameters"
_OLD_ROPE = ("rope_theta", "rope_scaling", "rope_local_base_freq", "partial_rotary_factor")
"""How positions are counted, for transformers 5 and before."""

_OF_IMAGES = ("mrope_section", "mrope_interleaved")
"""How positions of images are counted. A text model has no such positions."""

_KINDS = {"full_attention", "sliding_attention"}


class Kept(NamedTuple):
    """A setting of which the original has another value: where it is, the value kept, and the original's."""

    key: str
    value: Any
    original: Any


def with_values(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the form of `form` and what `values` say."""
    inner = next((key for key in _PARTS if isinstance(form.get(key), dict)), "")
    own = next((key for key in _PARTS if isinstance(values.get(key), dict)), "")
    if own and inner != own and inner in ("", *values[own]):  # the original is that part alone
        outer = {key: value for key, value in values.items() if key in _SHARED}
        return with_values(form, {**outer, **values[own]})
    if inner and inner != own and own in ("", *form[inner]):
        other = form.keys() - form[inner].keys()
        part = with_values(form[inner], {key: value for key, value in values.items() if key not in other})
        shared = {key: value for key, value in values.items() if key in other or _is_shared(key, form)}
        return {**_merged(form, shared), inner: part}
    document = _merged(form, values)
    if inner and own:
        document[inner] = with_values(form[inner], values[own])
    return document


def kept_values(form: Mapping[str, Any], document: Mapping[str, Any], path: str = "") -> Iterator[Kept]:
    """Yield the settings of `form` that have another value in `document`."""
    for key in (key for key in form if key in document):
        value, old = document[key], form[key]
        if isinstance(old, dict) and isinstance(value, dict):
            yield from kept_values(old, value, f"{path}{key}.")
        elif value != old:
            yield Kept(path + key, value, old)


def _is_shared(key: str, form: Mapping[str, Any]) -> bool:
    return key in _SHARED and (key in form or key in _DTYPES and any(name in form for name in _DTYPES))


def _merged(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    values, document = _as_written(form, values), dict(form)
    if any(map(values.get, (_NEW_ROPE, *_OLD_ROPE))) and (_NEW_ROPE in values) is not (_NEW_ROPE in form):
        document = {key: value for key, value in form.items() if key not in (_NEW_ROPE, *_OLD_ROPE)}
    for key, value in values.items():
        old = form.get(key)
        if key in _LEFT_OUT or value == old:
            continue
        if isinstance(old, dict) and isinstance(value, dict) and key not in (_NEW_ROPE, "rope_scaling"):
            value = _merged(old, value)
        document[key] = value
    return document


def _as_written(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` under the keys that `form` has for them: transformers 5 renamed the dtype, and united rope's."""
    after = dict(values)
    if (stated := next((values[key] for key in _DTYPES if key in values), None)) is not None:
        for key in _DTYPES:
            after.pop(key, None)
        after[next((key for key in _DTYPES if key in form), "dtype")] = stated
    new, theirs = as_object(values.get(_NEW_ROPE)), as_object(form.get(_NEW_ROPE))
    rope = None
    if new and not theirs:
        rope = _old_rope(form, new)
    elif theirs and not new and any(map(values.get, _OLD_ROPE)):
        rope = _new_rope(theirs, values)
    if rope is not None:
        after = {key: value for key, value in after.items() if key not in (_NEW_ROPE, *_OLD_ROPE)} | rope
    for key in (_NEW_ROPE, "rope_scaling"):
        old, own = as_object(form.get(key)), as_object(after.get(key))
        of_images = {name: old[name] for name in _OF_IMAGES if name in old}
        if of_images and key in after and own.keys().isdisjoint(of_images):
            base = {name: own[name] for name in ("rope_theta", "partial_rotary_factor") if name in own}
            after[key] = {**old, **base} if _is_plain(own) else {**of_images, **own}
    return after


def _is_plain(rope: Any) -> bool:
    return not rope or rope.get("rope_type", rope.get("type", "default")) in ("default", "mrope")


def _old_rope(form: Mapping[str, Any], rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of transformers 4 for rope_parameters, None if `form` has no place for them."""
    found = dict[str, Any]()
    if all(isinstance(value, dict) for value in rope.values()):  # one for each kind of layer
        if rope.keys() != _KINDS or "rope_local_base_freq" not in form:
            return None
        found["rope_local_base_freq"] = rope["sliding_attention"].get("rope_theta")
        rope = rope["full_attention"]
    found |= {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    if not _is_plain(rope):
        found["rope_scaling"] = {key: value for key, value in rope.items() if key not in found}
    elif form.get("rope_scaling") is not None:
        found["rope_scaling"] = None
    return found


def _new_rope(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings of transformers 4 in `values` as rope_parameters, None if those of `form` are of others."""
    scaling = as_object(values.get("rope_scaling"))
    kind = "default" if _is_plain(scaling) else scaling.get("rope_type", scaling.get("type"))
    rope = {key: values[key] for key in ("rope_theta", "partial_rotary_factor") if values.get(key) is not None}
    rope |= {**{key: value for key, value in scaling.items() if key != "type"}, "rope_type": kind}
    if not all(isinstance(value, dict) for value in form.values()):
        return {_NEW_ROPE: rope}
    if form.keys() != _KINDS or "rope_local_base_freq" not in values:
        return None
    local = {"rope_theta": values["rope_local_base_freq"], "rope_type": "default"}
    return {_NEW_ROPE: {"full_attention": rope, "sliding_attention": local}}


def layers_of(config: Any) -> int | None:
    """Return how many layers the text model of `config` (the JSON of a config.json) has, None if it does not say."""
    while isinstance(config, dict):
        layers = next((config[key] for key in _LAYERS if key in config), None)
        if type(layers) is int:
            return layers
        config = next((config[key] for key in _PARTS if key in config), None)
    return None


def words_of(config: Any) -> int | None:
    """Return how many words the text model of `config` (the JSON of a config.json) has, None if it does not say.

    >>> words_of({"text_config": {"vocab_size": 90}, "vision_config": {"vocab_size": 32}})
    90
    """
    found, level = set[int](), config
    while isinstance(level, dict):
        found = {level["vocab_size"]} if type(level.get("vocab_size")) is int else found
        level = next((level[key] for key in _PARTS if key in level), None)
    found = found or {level["vocab_size"] for level in objects_in(config) if type(level.get("vocab_size")) is int}
    return found.pop() if len(found) == 1 else None
