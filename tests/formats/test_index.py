"""An index: totals and a sorted weight map; what is none is refused."""

import json

from sharding.core.options import Options
from sharding.core.values import TensorEntry
from sharding.formats.index import build_indexes
from sharding.planning.plan import plan_shards


def tensor(name: str, size: int) -> TensorEntry:
    return TensorEntry(name, "U8", (size,), "f", 0, size)


def test_the_index_holds_totals_and_a_sorted_weight_map() -> None:
    plan = plan_shards([tensor("b", 3), tensor("a", 3)], Options(4))
    ((path, text),) = build_indexes(plan).items()
    assert path == "model.safetensors.index.json"
    assert text.endswith(b"}\n")
    assert json.loads(text) == {
        "metadata": {"total_parameters": 6, "total_size": 6},
        "weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"},
    }
