"""Reports from anybody: what this tool writes is read, all else is refused in one sentence."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.errors import SourceError
from sharding.report.schema import parse_report
from tests.conftest import random_tensors, write_checkpoint


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("report")
    source = write_checkpoint(folder / "in", {"model.safetensors": random_tensors()}, False)
    *_, _ = job.shard(str(source), str(folder / "out"), "60kB")
    report: dict[str, Any] = json.loads((folder / "out/sharding_report.json").read_text())
    return report


def test_what_this_tool_writes_is_read(document: dict[str, Any]) -> None:
    report = parse_report(json.dumps(document))
    assert report.verification.identical
    assert [shard.file for shard in report.shards] == [shard["file"] for shard in document["plan"]["shards"]]
    assert report.resources.seconds == document["resources"]["seconds"]


CHANGES: dict[str, tuple[tuple[str | int, ...], Any]] = {
    "another schema": (("schema",), 2),
    "a text for the schema": (("schema",), "1"),
    "a number for a list": (("shards",), 7),
    "a list for an object": (("plan",), []),
    "nothing for an object": (("source",), None),
    "a number for a text": (("tool",), 7),
    "a text for a number": (("resources", "bytes_read"), "12"),
    "less than nothing": (("verification", "tensors"), -1),
    "more than there can be": (("plan", "total_bytes"), 2**70),
    "no number": (("resources", "seconds"), float("nan")),
    "a path for a file": (("shards", 0, "file"), "../../x"),
    "a path that begins at the root": (("plan", "shards", 0, "file"), "/etc/passwd"),
    "markup for a file": (("shards", 0, "file"), "<script>alert(1)</script>"),
    "another digest": (("shards", 0, "sha256"), "0" * 63 + "G"),
    "another file than planned": (("shards", 0, "file"), "model-00009-of-00009.safetensors"),
    "no shards": (("plan", "shards"), []),
    "a repo that is none": (("source",), {"kind": "hub", "repo_id": "../../x"}),
    "a text that is very long": (("verification", "method"), "x" * 3000),
    "no date": (("finished",), "yesterday"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_this_tool_does_not_write_is_refused(document: dict[str, Any], change: str) -> None:
    (*path, last), value = CHANGES[change]
    changed = copy.deepcopy(document)
    place: Any = changed
    for key in path:
        place = place[key]
    place[last] = {**place[last], **value} if isinstance(value, dict) else value
    with pytest.raises(SourceError, match="is not a report of this tool"):
        parse_report(json.dumps(changed))


@given(st.binary() | st.recursive(st.none() | st.text() | st.integers() | st.floats(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps))  # fmt: skip
def test_anything_at_all_is_refused_in_one_sentence(text: bytes | str) -> None:
    with pytest.raises(SourceError) as caught:
        parse_report(text)
    assert len(caught.value.message) < 500


def test_brackets_without_end_are_refused() -> None:
    with pytest.raises(SourceError):
        parse_report("[" * 1_000_000)


def test_a_report_that_the_page_would_show_names_a_real_commit(document: dict[str, Any], tmp_path: Path) -> None:
    changed = copy.deepcopy(document)
    changed["source"] |= {"kind": "hub", "repo_id": "me/model", "revision": "a" * 40}
    assert parse_report(json.dumps(changed)).source.revision == "a" * 40
    changed["source"]["revision"] = "a/../../b"
    with pytest.raises(SourceError, match="source"):
        parse_report(json.dumps(changed))
