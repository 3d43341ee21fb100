"""Find the kind and the layer of a tensor by its name. Pure."""

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["embedding", "attention", "mlp", "expert", "norm", "other"]

_Patterns = tuple[tuple[Kind, re.Pattern[str]], ...]
_PARTS: _Patterns = (
    ("norm", re.compile(r"norm|layer_?scale|(^|_)[lb]n(_|\d|$)")),
    ("expert", re.compile(r"expert|\bmoe\b|_moe\b|router")),
    # In diffusers, `time_emb_proj` is a part of a residual block. RemBERT is the name of a model.
    ("embedding", re.compile(r"emb(?!_proj|ert)|^w[tp]e$|lm_head|^head$|predictions$")),
    # In diffusers, a list `attentions` holds whole blocks, with projections and feed-forward layers.
    ("attention", re.compile(r"att(e?n(?!tions)|$)|[qkvo]_proj|qkv|^to_([qkv]|out)$|^([qkv]|out)_lin$")),
    ("mlp", re.compile(r"mlp|ffn|^ffw?(_|\d|$)|feed_?forward|denserelu")),
)
"""What one part of a name tells, in lower case. If it tells several kinds, the first of these counts."""
_VAGUE: _Patterns = (
    ("expert", re.compile(r"\bmixer\.gate\b")),
    ("embedding", re.compile(r"^shared\.")),
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
