"""What loading and saving would take is predicted for models that transformers loads, and for no others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry
from sharding.desk.desk import Desk
from sharding.desk.forecast import Forecast, classic_forecast
from sharding.desk.jobs import JobRequest
from sharding.loading.costs import CLASSIC_WAY
from sharding.planning.plan import plan_shards
from tests import models
from tests.desk.conftest import AS_ALICE, BOB, end
from tests.hubs import push, shard
from tests.localhub.conftest import Server
from tests.report.results import MERGE
from tests.tensors import plan_of, stored_tensor

FORECAST = Forecast(60.0, 120.0, 10**8, 0, "As measured.")
TENSORS = tuple(
    stored_tensor(f"w{n}", "F32", (1000,), "model.safetensors", 4000 * n, 4000 * n + 4000) for n in range(10)
)
MODEL = Content(
    Place("hub", "a/b", "0" * 40), TENSORS, (Component(),), (FileEntry("model.safetensors", 40_000),), (), ()
)


def test_loading_and_saving_holds_the_model_twice_on_the_disk_and_takes_longer() -> None:
    classic = classic_forecast(MODEL, plan_shards(TENSORS, Options(8000)), FORECAST)
    assert classic
    assert classic.disk_bytes == 80_000  # what is downloaded, and the copy
    assert classic.mapped_bytes == 40_000
    assert classic.upper_seconds == 2 * classic.lower_seconds > FORECAST.upper_seconds


def test_a_cast_takes_memory_of_its_own() -> None:
    plain, cast = (
        classic_forecast(MODEL, plan_of(MODEL, Options(8000, dtype=dtype)), FORECAST) for dtype in ("keep", "bf16")
    )
    assert plain and cast
    assert cast.peak_anon_bytes - plain.peak_anon_bytes == 20_000


def test_what_transformers_does_not_load_has_no_prediction() -> None:
    other = replace(MODEL, library="diffusers")
    assert classic_forecast(other, plan_shards(TENSORS, Options(8000)), FORECAST) is None


def test_each_goal_names_the_way_beside_which_it_stands() -> None:
    """What is computed or put together is held in memory whole, and the rest is mapped."""
    plan = plan_shards(TENSORS, Options(8000))
    merged, ranks = replace(plan, made=(MERGE,)), replace(MODEL, of_ranks=True)
    plain, merge, of_ranks = (
        classic_forecast(*one, FORECAST) for one in ((MODEL, plan), (MODEL, merged), (ranks, plan))
    )
    assert plain and merge and of_ranks
    assert (plain.way, "PEFT" in merge.way, "ranks" in of_ranks.way) == (CLASSIC_WAY, True, True)
    assert (of_ranks.mapped_bytes, of_ranks.peak_anon_bytes - plain.peak_anon_bytes) == (0, 40_000)


@pytest.mark.usefixtures("at_hand", "classic_here")
@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_what_was_loaded_and_saved_is_judged_by_what_was_loaded(
    hub: Server, desk: Desk, name: str, dtype: Any, tmp_path: Path
) -> None:
    """The report names the files and the class of the original, and not those that were saved of it."""
    source = push(hub, models.save("llama", tmp_path / "in", layers=1), f"{name}-in")
    options = Options("20kB", dtype=dtype)
    report = shard(hub, source, name.replace("alice/", "bob/"), options, BOB, engine="classic")
    assert [file.file for file in report.source.weight_files] == ["model.safetensors"]
    assert (len(report.shards) > 1, report.source.architecture) == (True, "LlamaForCausalLM")
    trust = desk.results.judge(report.destination.repo_id, None)[1]
    assert trust.level == "fits", trust.reasons
    done = end(desk, desk.submit(JobRequest(source, name, options, engine="classic"), *AS_ALICE))
    assert done.state == "done"
    assert desk.results.judge(name, None)[1].level == "made-here"
