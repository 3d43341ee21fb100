"""What loading cost is told of all runs, the failed ones among them."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

from sharding.formats.model_card import parse_card
from sharding.loading.costs import Comparison, LoadCost, Moment, Prediction, Side, Spread, Verdict
from sharding.report.card import write_card
from sharding.report.comparison import ComparisonSummary, LoadSummary, summarize_comparison
from sharding.report.report import files_written
from sharding.report.schema import parse_report, to_json
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
    predicted: dict[Side, Prediction] = {"original": Prediction(1, 2), "sharded": Prediction(3, 4)}
    why = "" if sharded else "The disk is full."
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


def test_there_is_a_picture_only_where_something_was_loaded_and_it_holds_nothing_but_numbers() -> None:
    evil = {"architecture": "<script>evil", "message": "<script>evil", "format": "<script>evil"}
    picture = summed(tuple(replace(one, **evil) for one in RUNS)).picture
    assert picture and "evil" not in picture
    ET.fromstring(picture)
    found = summed((), ())
    assert (found.picture, found.original, found.sharded) == (None, None, None)


def test_where_only_the_copy_was_loaded_nothing_is_said_of_a_load_of_the_original() -> None:
    report = made(comparison=compared((), RUNS)).report
    found = report.comparison
    assert found and found.measured and found.original is None and found.sharded
    assert [row[0] for row in found.table] == ["", "sharded copy"]
    assert found.picture and found.how.startswith("Medians of 3 runs each")
    assert "original" not in found.picture and "sharded copy: 50 B anonymous at peak" in found.picture
    card = write_card(report, parse_card(""), "https://hub", None, is_private=False)
    assert "![Memory over time while this copy loads and computes]" in card
    assert parse_report(json.dumps(to_json(report))).comparison == found


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
