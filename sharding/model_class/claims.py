"""Refuse a config.json that claims far more than the headers beside it can hold. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sharding.core.errors import ModelRefused
from sharding.core.limits import LAYERS_TAKEN, WIDTH_TAKEN, WORDS_TAKEN

_LAYERS = frozenset(
    ["num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_hidden_groups", "num_blocks", "depth"]
    + ["encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"]
)
_DIMENSIONS = frozenset(
    ["vocab_size", "hidden_size", "intermediate_size", "ffn_dim", "d_model", "d_ff", "n_embd", "n_inner"]
)


def refuse_contradiction(config: str, shapes: Iterable[tuple[int, ...]], folder: str = "") -> None:
    """Raise ModelRefused where `config` (a config.json) claims far more than tensors of `shapes` can hold.

    A layer has tensors, and the vocabulary is a dimension of one. Part of a checkpoint, as the file of one rank, lacks
    most of what its configuration names: so no number is refused that a known model could have.

    >>> refuse_contradiction('{"num_hidden_layers": 10000000}', [(96, 32)])
    Traceback (most recent call last):
        ...
    sharding.core.errors.ModelRefused: config.json says num_hidden_layers 10,000,000, and there is 1 tensor beside it.
    """
    dimensions = [max(shape, default=1) for shape in shapes]
    count, widest = len(dimensions), max(dimensions, default=0)
    for key, number in _numbers(config):
        if key in _LAYERS and number > max(count, LAYERS_TAKEN):
            held = "there is 1 tensor beside it" if count == 1 else f"there are {count:,} tensors beside it"
        elif number > max(widest, WORDS_TAKEN if key == "vocab_size" else WIDTH_TAKEN) and key in _DIMENSIONS:
            held = f"no dimension of a tensor beside it is larger than {widest:,}"
        else:
            continue
        raise ModelRefused(
            f"{folder}config.json says {key} {_written(number)}, and {held}.",
            "Put the config.json beside the weights that belongs to them.",
        )


def _numbers(config: str) -> Iterator[tuple[str, int]]:
    """Yield every key of `config`, at whatever depth, that has a whole number."""
    try:
        waiting: list[Any] = [json.loads(config)]
    except (ValueError, RecursionError):  # whoever reads it says so
        return
    while waiting:
        section = waiting.pop()
        waiting += section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
        if isinstance(section, dict):
            yield from ((key, value) for key, value in section.items() if type(value) is int)


def _written(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "of more than 15 digits"
