"""What loading and saving would take is predicted for models that transformers loads, and for no others."""

from dataclasses import replace

from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry
from sharding.desk.forecast import Forecast, classic_forecast
from sharding.loading.costs import CLASSIC_WAY
from sharding.planning.plan import plan_shards
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
