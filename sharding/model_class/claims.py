"""Refuse a config.json that claims far more than the headers beside it can hold. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sharding.core.errors import ModelRefused

LAYERS_TAKEN = 1000
"""Most layers that a config.json may claim without the tensors to match. The deepest known model has about 200.

The tensors may be only part of a model, so a claim below this limit is never refused.
"""

WORDS_TAKEN = 2_000_000
"""Largest vocabulary that a config.json may claim without a tensor to match. The largest known has 1,000,000 words."""

WIDTH_TAKEN = 1_000_000
"""Widest layer that a config.json may claim without a tensor to match. The widest known has 200,000 numbers."""


_LAYERS = frozenset(
    ["num_hidden_layers", "num_layers", "n_layers", "n_layer", "num_hidden_groups", "num_blocks", "depth"]
    + ["encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers"]
)
_DIMENSIONS = frozenset(
    ["vocab_size", "hidden_size", "intermediate_size", "ffn_dim", "d_model", "d_ff", "n_embd", "n_inner"]
)


def refuse_contradiction(config: str, shapes: Iterable[tuple[int, ...]], folder: str = "") -> None:
    """Raise ModelRefused if `config` (a config.json) claims far more than tensors of `shapes` can hold.

    Every layer has tensors, and the vocabulary is a dimension of one. But a part of a checkpoint, such as the file of
    one rank, lacks most of the model. So a number that a known model could have is never refused.

    >>> refuse_contradiction('{"n_layer": 10000000}', [(96, 32)])
    Traceback (most recent call last):
        ...
    sharding.core.errors.ModelRefused: config.json sets n_layer to 10,000,000, but the weights have only 1 tensor.
    """
    dimensions = [max(shape, default=1) for shape in shapes]
    count, widest = len(dimensions), max(dimensions, default=0)
    for key, number in _numbers(config):
        if key in _LAYERS and number > max(count, LAYERS_TAKEN):
            held = "the weights have only 1 tensor" if count == 1 else f"the weights have only {count:,} tensors"
        elif number > max(widest, WORDS_TAKEN if key == "vocab_size" else WIDTH_TAKEN) and key in _DIMENSIONS:
            held = f"no dimension of the weights is larger than {widest:,}"
        else:
            continue
        raise ModelRefused(
            f"{folder}config.json sets {key} to {_written(number)}, but {held}.",
            "Use the config.json that belongs to these weights.",
        )


def _numbers(config: str) -> Iterator[tuple[str, int]]:
    """Yield every key of `config` that has a whole number, at any depth."""
    try:
        waiting: list[Any] = [json.loads(config)]
    except (ValueError, RecursionError):  # the code that uses the configuration reports this
        return
    while waiting:
        section = waiting.pop()
        waiting += section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
        if isinstance(section, dict):
            yield from ((key, value) for key, value in section.items() if type(value) is int)


def _written(number: int) -> str:
    return f"{number:,}" if number < 10**15 else "a number of more than 15 digits"
