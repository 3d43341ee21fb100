"""No report costs a page more than 50 MB, whatever is in it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.report.files import refuse_costly
from sharding.report.schema import to_json
from tests.conftest import ROOT, environment
from tests.report.results import made

Json = dict[str, Any]
MANY = MAX_SHOWN_REPORT_VALUES - 1000


def many_long_names(document: Json) -> None:
    shards = document["plan"]["shards"]
    share = MANY // len(shards)
    for number, shard in enumerate(shards):
        shard["tensors"] = [f"{name:060x}" for name in range(number * share, (number + 1) * share)]
    document["plan"]["weight_map"] = {}
    document["source"]["tensors"] = document["verification"]["tensors"] = share * len(shards)


def many_differences(document: Json) -> None:
    mismatches = [{"tensor": "x", "problem": "y"}] * (MANY // 3)
    document["verification"] |= {"mismatches": mismatches, "identical": False}


def many_remarks(document: Json) -> None:
    document["plan"]["findings"] = [{"level": "warning", "code": "x", "message": "y", "hint": ""}] * (MANY // 5)


def many_places(document: Json) -> None:
    document["plan"]["weight_map"] = {f"{number:050x}": "m" for number in range(MANY)}


SCRIPT = """
import os, sys
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.report.files import refuse_costly
from sharding.report.schema import parse_report
from sharding.verify.trust import Trust

def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def shown(report):
    trust = Trust("claims", ())
    places = Places("a/b", "", "")
    return result_panel(report, trust, places) + details_panel(report, places, trust)

small, *others = sys.argv[1:]
small = open(small, "rb").read()
shown(parse_report(small))  # all is imported now
for path in others:
    if not os.fork():
        large = open(path, "rb").read()
        shown(parse_report(small))  # and is in the memory of this process
        open("/proc/self/clear_refs", "w").write("5")  # forget the highest so far
        before = kilobytes("VmRSS")
        refuse_costly(large, "a/b")
        panel = shown(parse_report(large))
        print(1000 * (kilobytes("VmHWM") - before) + len(large), len(panel), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel's own figure is in /proc")
def test_a_report_as_large_as_is_read_costs_less_than_it_may(tmp_path: Path) -> None:
    changes: list[Callable[[Json], None]] = [many_long_names, many_places, many_differences, many_remarks]
    paths = [tmp_path / "small.json"]
    paths[0].write_text(json.dumps(to_json(made().report)))
    for change in changes:
        document = to_json(made().report)
        change(document)
        paths.append(tmp_path / f"{change.__name__}.json")
        paths[-1].write_text(json.dumps(document, separators=(",", ":")))
    command = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    ended = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    figures = [tuple(map(int, line.split())) for line in ended.stdout.splitlines()]
    assert len(figures) == len(changes)
    for change, (cost, panel) in zip(changes, figures, strict=True):
        assert 10_000_000 < cost < 50_000_000 and panel < 100_000, change.__name__


def test_values_are_counted_before_any_is_read() -> None:
    refuse_costly(b"[" + b"0," * (MAX_SHOWN_REPORT_VALUES - 2) + b"0]", "a/b")
    for text in (b"[" + b"0," * MAX_SHOWN_REPORT_VALUES + b"0]", b"[" * (MAX_SHOWN_REPORT_VALUES + 1), b"{" * 10**6):
        assert len(text) < MAX_SHOWN_REPORT_BYTES
        with pytest.raises(SourceError, match="holds more than a page can show"):
            refuse_costly(text, "a/b")
