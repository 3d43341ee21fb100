"""Plans: every tensor once, in order, within the limit. No files."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import UsageError
from sharding.core.hints import ModelHints, PipelineCut, SavedTensor
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, Tensor
from sharding.formats.file_formats import format_of
from sharding.planning.plan import identify_plan, plan_shards
from sharding.recipes.cast import Cast
from sharding.recipes.stored import Stored
from tests.planning.tensors import tensor
from tests.promises import promise
from tests.tensors import plan_of, stored_tensor

REF = Place("folder", "model", "1")
TWO = [tensor("a", 3), tensor("b", 3)]


tensor_lists = st.lists(
    st.tuples(st.text("ab.0123456789", min_size=1, max_size=8), st.integers(0, 100)),
    min_size=1,
    max_size=40,
    unique_by=lambda pair: pair[0],
).map(lambda pairs: [tensor(*pair) for pair in pairs])


@promise("README.md#limits")
@given(tensors=tensor_lists, limit=st.integers(1, 150), order=st.sampled_from(["natural", "stored"]))
def test_every_tensor_is_in_one_shard_none_is_empty_and_only_a_larger_tensor_exceeds_the_limit(
    tensors: list[Tensor], limit: int, order: str
) -> None:
    plan = plan_shards(tensors, Options(limit, order=order))  # type: ignore[arg-type]
    placed = [entry for shard in plan.shards for entry in shard.tensors]
    assert sorted(placed, key=lambda entry: entry.name) == sorted(tensors, key=lambda entry: entry.name)
    assert plan.weight_map == {entry.name: shard.file for shard in plan.shards for entry in shard.tensors}
    assert plan.total_bytes == sum(entry.bytes for entry in tensors) == sum(shard.bytes for shard in plan.shards)
    oversized = [shard for shard in plan.shards if shard.bytes > limit]
    assert all(len(shard.tensors) == 1 for shard in oversized) and all(shard.tensors for shard in plan.shards)
    assert len([finding for finding in plan.findings if finding.code == "oversized-tensor"]) == len(oversized)


@promise("docs/formats.md#the-layout")
@given(tensors=tensor_lists, limit=st.integers(1, 150), order=st.sampled_from(["natural", "stored"]))
def test_shards_follow_the_order_asked_for_and_each_next_one_begins_because_the_last_was_full(
    tensors: list[Tensor], limit: int, order: str
) -> None:
    from transformers.core_model_loading import dot_natural_key

    plan = plan_shards(tensors, Options(limit, order=order))  # type: ignore[arg-type]
    ordered = sorted(tensors, key=lambda entry: dot_natural_key(entry.name)) if order == "natural" else tensors
    full = [shard for shard in plan.shards if shard.bytes <= limit]
    shard_of = {entry.name: number for number, shard in enumerate(full) for entry in shard.tensors}
    fitting = [entry for entry in ordered if entry.bytes <= limit]
    numbers = [shard_of[entry.name] for entry in fitting]
    assert numbers == sorted(numbers)
    for number, one in enumerate(full[:-1]):
        assert one.bytes + fitting[numbers.index(number + 1)].bytes > limit


def test_shards_are_numbered_as_on_the_hub_and_one_has_the_plain_name() -> None:
    files = [[shard.file for shard in plan_shards(TWO, Options(size)).shards] for size in (4, 9)]
    assert files == [["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], ["model.safetensors"]]


def test_metadata_of_the_source_go_into_every_header_and_a_count_of_parameters_that_is_known_is_kept() -> None:
    plan = plan_shards(TWO, Options(4), [Component(metadata={"format": "pt", "quant": "x"}, total_parameters=2)])
    headers, said = [next(format_of(plan).pieces(plan, shard)) for shard in plan.shards], b'{"format":"pt","quant":"x"}'
    assert all(isinstance(header, bytes) and b'"__metadata__":' + said in header for header in headers)
    assert plan.total_parameters == 2


def test_a_plan_is_known_by_its_source_its_shards_and_where_its_tensors_lie_and_how_they_are_made() -> None:
    def plan_id(size: int, source: Place = REF) -> str:
        return identify_plan(replace(plan_shards(TWO, Options(size)), sources=(source,)))

    assert plan_id(4) == plan_id(5)
    assert len({plan_id(4), plan_id(6), plan_id(4, Place("folder", "model", "2"))}) == 3
    places = [Stored(0, "f", 0, 8), Stored(0, "f", 8, 16), Stored(0, "g", 0, 8), Stored(1, "f", 0, 8)]
    recipes = [*places, Cast(Stored(0, "f", 0, 4), "F16", "F32"), Cast(Stored(0, "f", 0, 4), "BF16", "F32")]
    plans = [plan_shards([Tensor("w", "F32", (2,), recipe)], Options(8)) for recipe in recipes]
    assert len({identify_plan(plan) for plan in plans}) == len(recipes)


@given(tensors=tensor_lists)
def test_a_single_file_has_every_tensor_whatever_its_size(tensors: list[Tensor]) -> None:
    huge = stored_tensor("huge", "F32", (10**12,), "f", 0, 4 * 10**12)
    plan = plan_shards([*tensors, huge], Options(SINGLE_FILE))
    [shard] = plan.shards
    assert (shard.file, len(shard.tensors), plan.findings) == ("model.safetensors", len(tensors) + 1, ())


@pytest.mark.parametrize("strategy", ["pp", "pp:0", "pp:1", "pp:-1", "pp:x", "layers", "pp:99999"])
def test_an_unknown_strategy_order_or_dtype_is_refused(strategy: str) -> None:
    with pytest.raises(UsageError, match="strategy"):
        Options(100, strategy=strategy)
    for other in ("order", "dtype"):
        with pytest.raises(UsageError, match=strategy):
            Options(100, **{other: strategy})  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["blocks", "pp:2"])
def test_a_single_file_cannot_be_cut(strategy: str) -> None:
    with pytest.raises(UsageError, match="A single file is not cut"):
        Options(SINGLE_FILE, strategy=strategy)


@given(
    layers=st.lists(
        st.sets(st.sampled_from(["q.weight_scale", "q.scale", "q.weight.absmax", "q.zero_point"])), min_size=2
    ),
    dtype=st.sampled_from(["F8_E4M3", "BF16"]),
    data=st.data(),
)
def test_a_rank_loads_what_stands_beside_its_quantized_weights(
    layers: list[set[str]], dtype: str, data: st.DataObject
) -> None:
    """Beside one that is not quantized it is a stranger, which every rank gets, unless its name says otherwise."""
    weights = [f"layers.{number}.q.weight" for number in range(len(layers))]
    entries = [stored_tensor(name, dtype, (1,), "f", 0, 1 if dtype != "BF16" else 2) for name in weights]
    beside = [[f"layers.{number}.{name}" for name in names] for number, names in enumerate(layers)]
    entries += [stored_tensor(name, "F32", (1,), "f", 0, 4) for names in beside for name in names]
    half = len(layers) // 2
    hints = ModelHints(
        "M",
        tuple(SavedTensor(name, "BF16", number) for number, name in enumerate(weights)),
        pipeline=PipelineCut("5.23.0", ((0, half), (half, len(layers)))),
        loads=(frozenset(weights[:half]), frozenset(weights[half:])),
    )
    stored = data.draw(st.permutations(entries))
    checkpoint = Content(REF, tuple(stored), (Component(),), (), (), ())
    for rank, own in enumerate([range(half), range(half, len(layers))]):
        plan = plan_of(checkpoint, Options(100, strategy="pp:2", rank=rank), {"": hints})
        wanted = {weights[number] for number in own}
        for number, names in enumerate(beside):
            tells = dtype != "BF16" or any(name.endswith(("weight_scale", "absmax")) for name in names)
            wanted |= {*names} if number in own or not tells else set()
        assert {tensor.name for shard in plan.shards for tensor in shard.tensors} == wanted


def test_every_tensor_beyond_the_limit_is_named_beside_what_a_cast_has_to_say() -> None:
    sizes = {"a": 4, "large": 10, "b": 2, "larger": 12, "exact": 8}
    entries, end = [], 0
    for name, count in sizes.items():
        entries.append(stored_tensor(name, "F32", (count,), "f", end, end := end + 4 * count))
    checkpoint = Content(REF, tuple(entries), (Component(),), (), (), ())
    for dtype, width, cast in (("keep", 4, []), ("bf16", 2, ["cast-without-class"])):
        plan = plan_of(checkpoint, Options(8 * width, order="stored", dtype=dtype))  # type: ignore[arg-type]
        assert [finding.code for finding in plan.findings] == [*cast, *["oversized-tensor"] * 2]
        told = plan.findings[len(cast) :]
        assert [finding.message.split(" ")[2] for finding in told] == ["large", "larger"]
        held = [[entry.name for entry in shard.tensors] for shard in plan.shards]
        assert sorted(held) == [["a", "b"], ["exact"], ["large"], ["larger"]]
        assert sorted(shard.bytes for shard in plan.shards) == [count * width for count in (6, 8, 10, 12)]
