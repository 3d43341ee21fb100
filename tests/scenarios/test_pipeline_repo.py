"""A repo cut for a pipeline is one like any other to whoever knows of no ranks, and little of it to who loads layers."""

import re
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.options import Options
from tests.folders import bits, finish
from tests.scenarios import pp_cases
from tests.scenarios.pp_cases import Case


def loaded(folder: Path) -> dict[str, Any]:
    model = AutoModelForCausalLM.from_pretrained(folder)
    return {name: bits(weight) for name, weight in model.state_dict().items()}


@pytest.mark.parametrize("tied", [False, True])
def test_without_a_variant_a_repo_cut_for_a_pipeline_loads_like_any_other(tied: bool, tmp_path: Path) -> None:
    source = pp_cases.save(Case("llama", 2, 4, tied=tied), tmp_path / "source")
    report = finish(job.shard(str(source), str(tmp_path / "cut"), Options("60kB", strategy="pp:2")))
    assert report.plan.stages and len(report.shards) > 2
    assert loaded(tmp_path / "cut") == loaded(source)


@pytest.mark.parametrize(("ranks", "layers"), [(2, 4), (3, 6), (2, 5)])
@pytest.mark.parametrize("tied", [False, True])
def test_who_loads_the_layers_of_a_rank_by_the_index_needs_its_files_and_those_outside_of_layers_only(
    ranks: int, layers: int, tied: bool, tmp_path: Path
) -> None:
    # As mlx-lm does it: the files in which its layers lie, and those with what every rank keeps.
    source = pp_cases.save(Case("llama", ranks, layers, tied=tied), tmp_path / "source")
    plan = job.plan(str(source), Options("40kB", strategy=f"pp:{ranks}"))[1]
    assert plan.pipeline
    held = {name: re.search(r"layers\.(\d+)\.", name) for name in plan.weight_map}
    of_layers: dict[int, set[str]] = {}
    for name, match in held.items():
        of_layers.setdefault(int(match[1]) if match else -1, set()).add(plan.weight_map[name])
    kept = of_layers.pop(-1)
    assert set(of_layers) == set(range(layers)) and {len(held) for held in plan.pipeline.layers} == {2}
    for start, end in plan.pipeline.layers:
        own = set().union(*(of_layers[layer] for layer in range(start, end)))
        others = set().union(*(files for layer, files in of_layers.items() if not start <= layer < end))
        assert not own & others, "no file has layers of two ranks"
        assert others - kept, "and most of those of the others are not needed"
    assert len(kept) <= 3, "embeddings, norm and head are in a file each at most"
