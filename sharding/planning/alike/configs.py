"""Write a config.json with the form of one model and the values of another. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_PARTS = ("text_config", "thinker_config", "llm_config", "language_config")
"""Keys under which a model with several parts describes its text model, or what holds that."""

_FORM = frozenset(["architectures", "model_type", "auto_map", "transformers_version", "_name_or_path"])
"""What says how a model is built and stored. It comes from the original."""

_LEFT_OUT = frozenset([*_FORM, "quantization_config", "compression_config", *_PARTS])
_DTYPES = ("dtype", "torch_dtype")
_ROPE = ("rope_parameters", "rope_scaling")
_OF_IMAGES = ("rope_type", "type", "mrope_section", "mrope_interleaved")
"""How positions of images are counted. A text model has no such positions."""


class Kept(NamedTuple):
    """A setting of which the original has another value: where it is, the value kept, and the original's."""

    key: str
    value: Any
    original: Any


def with_values(form: Mapping[str, Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Kept]]:
    """Return a configuration with the form of `form` and what `values` say, and the settings that differ.

    Settings that only `values` have are kept too. Those that transformers names in a new way go to the old place.
    """
    kept = list[Kept]()
    inner = next((key for key in _PARTS if isinstance(form.get(key), dict)), "")
    own = next((key for key in _PARTS if isinstance(values.get(key), dict)), "")
    if own and not inner:  # the original is the text model alone
        outer = {key: value for key, value in values.items() if key == "tie_word_embeddings"}
        return with_values(form, {**outer, **values[own]})
    if inner and not own:
        part, kept = with_values(form[inner], values)
        shared = {key: values[key] for key in ("tie_word_embeddings", *_DTYPES) if key in form and key in values}
        outer, more = _merged(form, shared, "")
        return {**outer, inner: part}, [*(one._replace(key=f"{inner}.{one.key}") for one in kept), *more]
    document, kept = _merged(form, values, "")
    if inner and own:
        part, more = with_values(form[inner], values[own])
        document[inner] = part
        kept += [one._replace(key=f"{inner}.{one.key}") for one in more]
    return document, kept


def _merged(form: Mapping[str, Any], values: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[Kept]]:
    values = _as_written(form, values)
    document, kept = dict(form), list[Kept]()
    for key, value in values.items():
        old = form.get(key)
        if key in _LEFT_OUT or value == old:
            continue
        if isinstance(old, dict) and isinstance(value, dict):
            if _is_of_images(old) and not _is_of_images(value):
                value = {name: of for name, of in value.items() if name not in _OF_IMAGES}
            document[key], more = _merged(old, value, f"{path}{key}.")
            kept += more
            continue
        document[key] = value
        if key in form:
            kept.append(Kept(path + key, value, old))
    return document, kept


def _as_written(form: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values` under the keys that `form` has for them: transformers 5 renamed the dtype, and united rope's."""
    after = dict(values)
    if (stated := next((values[key] for key in _DTYPES if key in values), None)) is not None:
        for key in _DTYPES:
            after.pop(key, None)
        after[next((key for key in _DTYPES if key in form), "dtype")] = stated
    rope = after.get("rope_parameters")
    if isinstance(rope, dict) and "rope_parameters" not in form:
        del after["rope_parameters"]
        after.update(_old_rope(form, rope))
    return after


def _old_rope(form: Mapping[str, Any], rope: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of transformers 4 for the rope_parameters of one kind of layer."""
    if all(isinstance(value, dict) for value in rope.values()):  # one for each kind of layer
        yield "rope_parameters", dict(rope)
        return
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in rope:
            yield key, rope[key]
    scaling = {key: value for key, value in rope.items() if key not in ("rope_theta", "partial_rotary_factor")}
    old = form.get("rope_scaling")
    if scaling.get("rope_type", "default") != "default":
        yield "rope_scaling", scaling
    elif old is not None and not _is_of_images(old):
        yield "rope_scaling", None


def _is_of_images(rope: Any) -> bool:
    return isinstance(rope, dict) and "mrope_section" in rope


def layers_of(config: Any) -> int | None:
    """Return how many layers the text model of `config` (the JSON of a config.json) has, None if it does not say."""
    while isinstance(config, dict):
        layers = config.get("num_hidden_layers")
        if type(layers) is int:
            return layers
        config = next((config[key] for key in _PARTS if key in config), None)
    return None
