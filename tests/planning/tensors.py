"""Tensors of any model, what transformers would know of one that ranks load, and their plan."""

import re
from collections.abc import Iterable

from hypothesis import strategies as st

from sharding.core.hints import ModelHints, PipelineCut
from sharding.core.options import Options
from sharding.core.values import Plan, Tensor
from sharding.planning.plan import plan_shards
from tests.tensors import stored_tensor


def tensor(name: str, size: int) -> Tensor:
    return stored_tensor(name, "U8", (size,), "f", 0, size)


NAMES = st.one_of(
    st.sampled_from(["embed_tokens.weight", "norm.weight", "lm_head.weight", "projector.weight"]),
    st.tuples(
        st.sampled_from(["layers", "encoder.block", "vision.blocks"]),
        st.integers(0, 12),
        st.sampled_from(["attn.w", "mlp.w", "mlp.experts.0.w", "mlp.experts.11.w"]),
    ).map(lambda parts: f"{parts[0]}.{parts[1]}.{parts[2]}"),
)


TENSORS = st.dictionaries(NAMES, st.integers(0, 100), min_size=1, max_size=40).map(
    lambda sizes: [tensor(name, size) for name, size in sizes.items()]
)


STRATEGIES = st.sampled_from(["size", "blocks", "pp:2", "pp:5"])


def in_ranks(names: Iterable[str], count: int) -> ModelHints:
    """Hints by which each of `count` ranks loads as many layers, one after another, and all of them the rest."""
    layer_of = {name: int(match[1]) for name in names if (match := re.search(r"\.(\d+)\.", name))}
    layers = max(count, 1 + max(layer_of.values(), default=0))
    ends = [-(-rank * layers // count) for rank in range(count + 1)]
    parts = tuple(zip(ends, ends[1:], strict=False))
    loads = [frozenset(name for name, layer in layer_of.items() if start <= layer < end) for start, end in parts]
    return ModelHints("M", pipeline=PipelineCut("5.23.0", parts), loads=tuple(loads))


def planned(tensors: list[Tensor], limit: int, strategy: str) -> Plan:
    """The plan, of a pipeline as `in_ranks` says."""
    options = Options(limit, strategy=strategy)
    hints = {"": in_ranks([entry.name for entry in tensors], options.ranks)} if options.ranks else {}
    return plan_shards(tensors, options, hints=hints)
