"""What loading cost is told of all runs, the failed ones among them."""

import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from sharding.loading.costs import Comparison, LoadCost, Moment, Prediction, Spread, Verdict
from sharding.report.comparison import ComparisonSummary, LoadSummary, summarize_comparison
from sharding.report.report import files_written
from tests.report.results import made


def cost(seconds: float, peak: int, **more: Any) -> LoadCost:
    """A load that took so long, an import of a tenth of that apart, and so much memory."""
    phases = {"import": seconds / 10, "load": seconds / 2, "forward": seconds / 4, "tokens": seconds / 4}
    told = LoadCost("loaded", "", "from_pretrained", None, None, "cold", phases, peak, 2 * peak, 3 * peak)
    curve = (Moment(seconds, peak, 2 * peak, 3 * peak), Moment(seconds + 0.00049, peak, 0, 0))
    return replace(told, curve=curve, base_anon_bytes=peak // 2, disk_bytes_read=peak, files=int(seconds), **more)


RUNS = (cost(3, 10), cost(1, 30), cost(2, 50))


def compared(original: tuple[LoadCost, ...], sharded: tuple[LoadCost, ...]) -> Comparison:
    verdict = Verdict("no-difference", None, "About the same.")
    predicted = (Prediction(1, 2), Prediction(3, 4))
    why = "" if original else "The disk is full."
    return Comparison("from_pretrained", None, True, None, original, sharded, verdict, predicted, "a machine", why)


def summed(original: tuple[LoadCost, ...], sharded: tuple[LoadCost, ...] = RUNS) -> ComparisonSummary:
    return summarize_comparison(compared(original, sharded))


def side(runs: tuple[LoadCost, ...]) -> LoadSummary:
    found = summed(runs).original
    assert found and found == summed(RUNS, runs).sharded
    return found


def test_figures_are_those_of_all_runs_and_the_curve_is_that_of_the_middle_one() -> None:
    found = side(RUNS)
    assert (found.runs, found.outcome, found.message) == (3, "loaded", "")
    assert found.working_seconds == Spread(2.0, 1.0, 3.0)
    assert found.seconds == {
        "import": Spread(0.2, 0.1, 0.3),
        "load": Spread(1.0, 0.5, 1.5),
        "forward": Spread(0.5, 0.25, 0.75),
        "tokens": Spread(0.5, 0.25, 0.75),
    }
    assert found.peak_anon_bytes == found.disk_bytes_read == Spread(30, 10, 50)
    assert (found.peak_file_bytes, found.peak_total_bytes) == (Spread(60, 20, 100), Spread(90, 30, 150))
    assert found.base_anon_bytes == Spread(15, 5, 25)
    assert (found.files, found.curve) == (2, (Moment(2, 50, 100, 150), Moment(2, 50, 0, 0)))


def test_a_phase_that_a_run_did_not_come_to_is_not_told_of() -> None:
    short = replace(cost(5, 7), seconds={"import": 1.0, "load": 4.0})
    assert side((*RUNS, short)).seconds.keys() == {"import", "load"}
    assert side((replace(RUNS[0], disk_bytes_read=None),)).disk_bytes_read == Spread(0, 0, 0)


@pytest.mark.parametrize(("at", "outcome"), list(enumerate(["failed", "out-of-memory", "unsupported"])))
def test_one_run_of_all_that_failed_is_told(at: int, outcome: str) -> None:
    runs = list(RUNS)
    runs[at] = replace(runs[at], outcome=outcome, message="It is too large.")  # type: ignore[arg-type]
    found = side(tuple(runs))
    assert (found.runs, found.outcome, found.message) == (3, outcome, "It is too large.")


def test_there_is_a_picture_only_where_both_were_loaded_and_it_holds_nothing_but_numbers() -> None:
    evil = {"architecture": "<script>evil", "message": "<script>evil", "format": "<script>evil"}
    picture = summed(tuple(replace(one, **evil) for one in RUNS)).picture
    assert picture and "evil" not in picture
    ET.fromstring(picture)
    for one, other in (((), ()), (RUNS, ()), ((), RUNS)):
        found = summed(one, other)
        assert found.picture is None
        assert ((found.original is None), (found.sharded is None)) == (not one, not other)


@pytest.mark.parametrize("measured", [None, False, True])
def test_a_report_lists_a_picture_only_where_there_is_one(measured: bool | None) -> None:
    runs = RUNS if measured else ()
    told = made(comparison=None if measured is None else compared(runs, runs))
    report, plan = told.report, told.plan
    assert bool(report.comparison and report.comparison.picture) is bool(measured)
    picture = ["sharding_comparison.svg"] if measured else []
    about = ["README.md", "sharding_map.svg", *picture, "sharding_digests.json", "sharding_report.json"]
    names = {"model.safetensors.index.json", *about, *(shard.file for shard in plan.shards)}
    assert set(files_written(plan, has_picture=bool(measured))) == names
    assert sorted(report.files) == sorted({*names, "config.json", "tokenizer.json"}), "each once"
