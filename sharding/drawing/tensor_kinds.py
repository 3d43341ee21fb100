"""Find the kind and the layer of a tensor by its name. Pure."""

import re
from functools import lru_cache
from typing import Literal

Kind = Literal["embedding", "attention", "mlp", "expert", "norm", "other"]

_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("norm", re.compile(r"norm|layer_?scale|(^|[./])ln(_|\d|\.)|\.bn\d", re.IGNORECASE)),
    ("expert", re.compile(r"expert|\bmoe\b|_moe\b|router|\bmlp\.gate\.", re.IGNORECASE)),
    ("embedding", re.compile(r"emb|\bw[tp]e\b|lm_head|\bhead\b|embed_out|^shared\.", re.IGNORECASE)),
    ("attention", re.compile(r"att(e?n)|[qkvo]_proj|qkv|\b(query|key|value)\b|\bto_[qkv]\b", re.IGNORECASE)),
    (
        "mlp",
        re.compile(r"mlp|ffn?\b|feed_?forward|dense|\bfc\d?\b|(up|down|gate)_proj|\bw[123]\b|\blin\d\b", re.IGNORECASE),
    ),
)
_LAYER = re.compile(r"(.*?(?:^|\.)\d+)(?=\.)")


def kind_of(name: str) -> Kind:
    """Return the probable kind of the tensor `name`. Names follow conventions, which are tried in order.

    >>> [kind_of(f"model.layers.0.{part}.weight") for part in ("self_attn.q_proj", "self_attn.q_norm", "mlp.up_proj")]
    ['attention', 'norm', 'mlp']
    >>> [kind_of(name) for name in ("layers.0.mlp.experts.7.up_proj.weight", "transformer.wte.weight", "conv1.weight")]
    ['expert', 'embedding', 'other']
    """
    return _kind_of_words(".".join([word for word in name.split(".") if not word.isdecimal()]))


@lru_cache(maxsize=1 << 12)  # without numbers, a hundred thousand names become a few
def _kind_of_words(name: str) -> Kind:
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


def layer_of(name: str) -> str:
    """Return the outermost numbered module around the tensor `name`; "" if there is none.

    >>> layer_of("model.layers.2.mlp.experts.7.up_proj.weight"), layer_of("lm_head.weight")
    ('model.layers.2', '')
    """
    match = _LAYER.match(name)
    return match[1] if match else ""
