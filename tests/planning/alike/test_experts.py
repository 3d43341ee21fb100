"""Experts become fused or separate, as they are in the original or as one says, without a change of any number."""

from pathlib import Path

import pytest

from sharding.core.errors import SourceError
from tests.folders import tensors
from tests.planning.alike.models import (
    FORMS,
    MODELS,
    assert_loads,
    build,
    in_memory,
    other,
    published,
    rename,
    shapes,
    shard,
    unlike,
)

KINDS = ("mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v3", "olmoe", "glm4_moe", "phimoe", "qwen3_vl_moe")
SAMPLE = ("mixtral", "deepseek_v3", "phimoe", "qwen3_vl_moe")
EACH = [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.thorough) for name in KINDS]
FUSED_ONLY = ("gpt_oss", "llama4", "qwen3_vl_moe")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EACH)
def test_experts_become_bit_for_bit_what_transformers_writes_in_the_form_of_the_original(
    name: str, form: str, tmp_path: Path
) -> None:
    mine = FORMS[other(form)](build(name, 1), tmp_path / "mine")
    original, wanted = (FORMS[form](build(name, seed), tmp_path / f"as {seed}") for seed in (0, 1))
    assert shapes(mine) != shapes(original)
    shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(wanted)) == {}
    assert_loads(tmp_path / "out", original, build(name, 1), MODELS[name][0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", EACH)
def test_what_has_the_form_already_is_copied_as_it_is(name: str, form: str, tmp_path: Path) -> None:
    mine, original = (FORMS[form](build(name, seed), tmp_path / f"as {seed}") for seed in (1, 0))
    shard(mine, tmp_path / "out", like=original)
    assert unlike(tensors(tmp_path / "out"), tensors(mine)) == {}


@pytest.mark.parametrize("name", [*(one for one in EACH if one not in FUSED_ONLY), "jamba"])
def test_experts_are_fused_and_separated_by_hand(name: str, tmp_path: Path) -> None:
    separate, fused = published(build(name), tmp_path / "separate"), in_memory(build(name), tmp_path / "fused")
    for source, wanted, experts in ((separate, fused, "fused"), (fused, separate, "separate")):
        report = shard(source, tmp_path / experts / "out", experts=experts)
        assert "model.layers.1." in str(report.plan.made[0].details)
        made = tensors(tmp_path / experts / "out")
        assert [each for each in unlike(made, tensors(wanted)) if "expert" in each] == []
        assert {each for each in made if "expert" in each} == {each for each in tensors(wanted) if "expert" in each}


@pytest.mark.parametrize("name", FUSED_ONLY)
def test_experts_that_are_only_ever_fused_are_not_separated(name: str, tmp_path: Path) -> None:
    source = published(build(name), tmp_path / "in")
    with pytest.raises(SourceError, match="xperts"):
        shard(source, tmp_path / "out", experts="separate")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["gpt_oss", "llama4"])
def test_a_model_whose_experts_are_only_ever_fused_is_made_like_its_original(name: str, tmp_path: Path) -> None:
    original, mine = (published(build(name, seed), tmp_path / f"{seed}") for seed in (0, 1))
    shard(rename(mine, "^", "module."), tmp_path / "out", like=original)
    assert_loads(tmp_path / "out", original, build(name, 1), MODELS[name][0])


def test_more_than_ten_experts_stay_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    state = tensors(published(build("many experts"), tmp_path / "separate"))
    assert len([name for name in state if "layers.0.mlp.experts" in name]) == 3 * 12
    in_memory(build("many experts"), tmp_path / "fused")
    shard(tmp_path / "separate", tmp_path / "out", "single-file", experts="fused")
    assert unlike(tensors(tmp_path / "out"), tensors(tmp_path / "fused")) == {}
