"""Tensors of any model, and their plan."""

from hypothesis import strategies as st

from sharding.core.errors import UsageError
from sharding.core.options import Options
from sharding.core.values import Plan, TensorEntry
from sharding.planning.blocks import blocks_around
from sharding.planning.plan import plan_shards


def tensor(name: str, size: int) -> TensorEntry:
    return TensorEntry(name, "U8", (size,), "f", 0, size)


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


STRATEGIES = st.sampled_from(["size", "blocks", "stages:1", "stages:2", "stages:5"])


def planned(tensors: list[TensorEntry], limit: int, strategy: str) -> Plan | None:
    """The plan, or None where there are fewer blocks than stages."""
    try:
        return plan_shards(tensors, Options(limit, strategy=strategy))
    except UsageError:
        blocks = {blocks_around(entry.name, {})[0] for entry in tensors if blocks_around(entry.name, {})}
        assert int(strategy.partition(":")[2]) > len(blocks)
        return None
