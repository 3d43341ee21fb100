"""Find the kind and the layer of a tensor by its name, and lay the experts of a model out as a grid. Pure."""

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby
from typing import Literal, NamedTuple

from sharding.planning.order import natural_key

Kind = Literal["embedding", "attention", "mlp", "expert", "norm", "other"]

_Patterns = tuple[tuple[Kind, re.Pattern[str]], ...]
_PARTS: _Patterns = (
    ("norm", re.compile(r"norm|layer_?scale|(^|_)[lb]n(_|\d|$)")),
    ("expert", re.compile(r"expert|\bmoe\b|_moe\b|router|_exps$|_shexp$|_gate_inp$")),
    # In diffusers, `time_emb_proj` is a part of a residual block. RemBERT is the name of a model.
    ("embedding", re.compile(r"emb(?!_proj|ert)|^w[tp]e$|lm_head|^head$|predictions$")),
    # In diffusers, a list `attentions` holds whole blocks, with projections and feed-forward layers.
    ("attention", re.compile(r"att(e?n(?!tions)|$)|[qkvo]_proj|qkv|^to_([qkv]|out)$|^([qkv]|out)_lin$")),
    ("mlp", re.compile(r"mlp|ffn|^ffw?(_|\d|$)|feed_?forward|denserelu")),
)
"""What one part of a name tells, in lower case. If it tells several kinds, the first of these counts."""
_VAGUE: _Patterns = (
    ("expert", re.compile(r"\bmixer\.gate\b")),
    ("embedding", re.compile(r"^shared\.|^output\.weight$")),
    ("attention", re.compile(r"\b(query|key|value)\b")),
    ("mlp", re.compile(r"intermediate|(inter|output)\w*\.dense\b|(up|down|gate)_proj|\b(fc\d?|w[123]|lin\d)\b")),
)
"""What a whole name tells if no part does. Inside a module that tells its kind, these words mean other things."""
_OF_EXPERTS = re.compile(r"expert|\bmoe\b|_moe\b|\bmlp\.gate\b")
_LAYER = re.compile(r"(.*?(?:^|\.)\d+)(?=\.)")


def kind_of(name: str) -> Kind:
    """Return the probable kind of the tensor `name`: the innermost part that tells a kind decides.

    An MLP inside an expert counts as the expert.

    >>> [kind_of(f"model.layers.0.{part}.weight") for part in ("self_attn.q_proj", "self_attn.q_norm", "mlp.up_proj")]
    ['attention', 'norm', 'mlp']
    >>> [kind_of(name) for name in ("layers.0.mlp.experts.7.up_proj.weight", "transformer.wte.weight", "conv1.weight")]
    ['expert', 'embedding', 'other']
    >>> [kind_of(f"blk.0.{part}.weight") for part in ("attn_q", "ffn_up", "ffn_up_exps", "attn_norm")]
    ['attention', 'mlp', 'expert', 'norm']
    >>> kind_of("down_blocks.1.attentions.0.transformer_blocks.0.ff.net.0.proj.weight")
    'mlp'
    """
    parts = name.lower().replace("/", ".").split(".")
    return _kind_of_words(".".join([part for part in parts if not part.isdecimal()]))


@lru_cache(maxsize=1 << 12)  # without numbers, a hundred thousand names become a few
def _kind_of_words(name: str) -> Kind:
    told = (_first(_PARTS, part) for part in reversed(name.split(".")))
    kind = next((kind for kind in told if kind != "other"), _first(_VAGUE, name))
    return "expert" if kind == "mlp" and _OF_EXPERTS.search(name) else kind


def _first(patterns: _Patterns, text: str) -> Kind:
    return next((kind for kind, pattern in patterns if pattern.search(text)), "other")


def layer_of(name: str) -> str:
    """Return the outermost numbered module around the tensor `name`; "" if there is none.

    >>> layer_of("model.layers.2.mlp.experts.7.up_proj.weight"), layer_of("lm_head.weight")
    ('model.layers.2', '')
    """
    match = _LAYER.match(name)
    return match[1] if match else ""


_EXPERT = re.compile(r"experts?[._](\d{1,6})\.")
MOST_ROWS, MOST_EXPERTS, MOST_RUNS = 200, 1000, 1000  # Beyond, a grid is too much to read or for a page.
Place = tuple[int, int, int, int]  # First and last column of the copy, first and last column of today (-1: none).


class Run(NamedTuple):
    """Neighbouring experts of a layer that have as many bytes in the same columns."""

    experts: int
    place: Place
    bytes: int


class Row(NamedTuple):
    """The experts of a layer, from the first to the last."""

    layer: str
    runs: tuple[Run, ...]


class ExpertGrid(NamedTuple):
    """The layers with experts. `experts` is the number of columns."""

    experts: int
    rows: tuple[Row, ...]


def expert_grid(tensors: Iterable[tuple[str, int, int, int]]) -> ExpertGrid | None:
    """Return the grid from (name, column, column of today, bytes) of each tensor; None if it cannot be drawn."""
    layers: dict[str, dict[int, tuple[Place, int]]] = {}
    for name, column, today, size in tensors:
        match = _EXPERT.search(name)
        if match is None:
            continue
        experts = layers.setdefault(layer_of(name), {})
        place, held = experts.get(int(match[1]), ((column, column, today, today), 0))
        first, last, first_today, last_today = place
        place = min(first, column), max(last, column), min(first_today, today), max(last_today, today)
        experts[int(match[1])] = place, held + size
    most = max((max(experts) + 1 for experts in layers.values()), default=0)
    if not 2 <= most <= MOST_EXPERTS or len(layers) > MOST_ROWS:
        return None
    missing: tuple[Place, int] = (-1, -1, -1, -1), 0
    rows = []
    for layer in sorted(layers, key=natural_key):
        alike = groupby(layers[layer].get(number, missing) for number in range(most))
        rows.append(Row(layer, tuple(Run(len(list(run)), *shared) for shared, run in alike)))
    return ExpertGrid(most, tuple(rows)) if sum(len(row.runs) for row in rows) <= MOST_RUNS else None
