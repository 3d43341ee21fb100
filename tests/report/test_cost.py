"""No report costs a page more than 50 MB, whatever is in it."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.report.fetch import refuse_costly
from tests.conftest import ROOT, environment, random_tensors, write_checkpoint

Json = dict[str, Any]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Json:
    folder = tmp_path_factory.mktemp("report")
    source = write_checkpoint(folder / "in", {"model.safetensors": random_tensors()}, False)
    *_, _ = job.shard(str(source), str(folder / "out"), "60kB")
    told: Json = json.loads((folder / "out/sharding_report.json").read_text())
    return told


def with_tensors(document: Json, names: list[str]) -> None:
    shards = document["plan"]["shards"]
    share = len(names) // len(shards)
    for number, shard in enumerate(shards):
        shard["tensors"] = names[number * share : (number + 1) * share]
    document["plan"]["weight_map"] = {}
    document["source"]["tensors"] = document["verification"]["tensors"] = share * len(shards)


MANY = MAX_SHOWN_REPORT_VALUES - 1000


def many_long_names(document: Json) -> None:
    with_tensors(document, [f"{number:060x}" for number in range(MANY)])


def many_differences(document: Json) -> None:
    document["verification"]["mismatches"] = [{"tensor": "x", "problem": "y"}] * (MANY // 3)
    document["verification"]["identical"] = False


def many_remarks(document: Json) -> None:
    document["plan"]["findings"] = [{"level": "warning", "code": "x", "message": "y", "hint": ""}] * (MANY // 5)


def many_places(document: Json) -> None:
    document["plan"]["weight_map"] = {f"{number:050x}": "m" for number in range(MANY)}


SCRIPT = """
import sys
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.report.fetch import refuse_costly
from sharding.report.schema import parse_report
from sharding.verify.trust import Trust

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

small, large = (open(path, "rb").read() for path in sys.argv[1:])

def shown(report):
    trust = Trust("claims", ())
    places = Places("a/b", "", "", None)
    return result_panel(report, trust, places) + details_panel(report, places, trust)

shown(parse_report(small))  # all is imported now
open("/proc/self/clear_refs", "w").write("5")  # forget the highest so far
before = kilobytes("VmRSS")
refuse_costly(large, "a/b")
panel = shown(parse_report(large))
print(1000 * (kilobytes("VmHWM") - before) + len(large), len(panel))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's own figure is in /proc")
@pytest.mark.parametrize(
    "change",
    [
        many_long_names,
        many_places,
        *(pytest.param(change, marks=pytest.mark.thorough) for change in (many_differences, many_remarks)),
    ],
)
def test_a_report_as_large_as_is_read_costs_less_than_it_may(
    document: Json, tmp_path: Path, change: Callable[[Json], None]
) -> None:
    (tmp_path / "small.json").write_text(json.dumps(document))
    changed = copy.deepcopy(document)
    change(changed)
    (tmp_path / "large.json").write_text(json.dumps(changed, separators=(",", ":")))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "small.json"), str(tmp_path / "large.json")]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    cost, panel = map(int, ended.stdout.split())
    assert 10_000_000 < cost < 50_000_000
    assert panel < 100_000


def test_values_are_counted_before_any_is_read() -> None:
    refuse_costly(b"[" + b"0," * (MAX_SHOWN_REPORT_VALUES - 2) + b"0]", "a/b")
    for text in (b"[" + b"0," * MAX_SHOWN_REPORT_VALUES + b"0]", b"[" * (MAX_SHOWN_REPORT_VALUES + 1), b"{" * 10**6):
        assert len(text) < MAX_SHOWN_REPORT_BYTES
        with pytest.raises(SourceError, match="holds more than a page can show"):
            refuse_costly(text, "a/b")
