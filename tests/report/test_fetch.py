"""A stranger's report is read within bounds, and refused before it is parsed where it would cost too much."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.report.fetch import Result, read_result
from sharding.report.schema import parse_report
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house

COPY, REPORT = "alice/copy", "sharding_report.json"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("result")
    source = write_checkpoint(folder / "in", {"model.safetensors": random_tensors(3)}, index=False)
    *_, _ = job.shard(str(source), str(folder / "out"), "40kB")
    return folder / "out"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, result: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, result, COPY)
        yield hub


def fetched(hub: InHouse, text: bytes | None = None, place: str = COPY) -> Result:
    """Read what is in the copy, once its report is `text`."""
    if text is not None:
        hub.api().upload_file(path_or_fileobj=text, path_in_repo=REPORT, repo_id=COPY)
    return read_result(place, endpoint=hub.address, token=TOKEN)


def test_a_result_is_what_lies_in_the_repo_at_that_commit(hub: InHouse, result: Path) -> None:
    text = (result / REPORT).read_bytes()
    found = fetched(hub, text)
    commit = hub.api().model_info(COPY).sha
    assert (found.repo_id, found.revision, found.report) == (COPY, commit, parse_report(text))
    assert {file.path for file in found.files} == set(hub.api().list_repo_files(COPY))
    told = json.loads(text)
    told["plan_id"] = "another"
    assert fetched(hub, json.dumps(told).encode()).report.plan_id == "another"
    assert fetched(hub, place=f"{COPY}@{commit}") == found


def test_a_repo_without_a_report_has_no_result_to_show(hub: InHouse) -> None:
    hub.api().create_repo("alice/empty", exist_ok=True)
    with pytest.raises(SourceError, match=f"alice/empty has no {REPORT}") as refusal:
        fetched(hub, place="alice/empty")
    assert refusal.value.hint and refusal.value.remedy == Remedy("plan_repo", "alice/empty")
    with pytest.raises(SourceError) as refusal:
        fetched(hub, place=f"{hub.address}/alice/empty/tree/main")
    assert refusal.value.remedy == Remedy("plan_repo", "alice/empty@main")


def test_a_repo_that_nobody_can_read_is_not_offered_for_a_plan(hub: InHouse) -> None:
    with pytest.raises(SourceError, match="does not exist") as refusal:
        fetched(hub, place="alice/absent")
    assert refusal.value.remedy is None


def test_a_report_that_would_cost_too_much_is_refused_before_it_is_parsed(hub: InHouse, result: Path) -> None:
    # None of these is a report: who parsed one first would say that.
    for text in (b"[" + b"0," * MAX_SHOWN_REPORT_VALUES + b"0]", b"[" * (MAX_SHOWN_REPORT_VALUES + 1)):
        with pytest.raises(SourceError, match=f"The {REPORT} of {COPY} holds more than a page can show"):
            fetched(hub, text)
    told = json.loads((result / REPORT).read_text())
    told["zeros"] = [0] * MAX_SHOWN_REPORT_VALUES
    with pytest.raises(SourceError, match="holds more than a page can show"):
        fetched(hub, json.dumps(told).encode())
    with pytest.raises(SourceError, match="is not a report of this tool"):
        fetched(hub, b"[0]")


def test_a_report_is_read_up_to_a_bound(hub: InHouse, result: Path) -> None:
    text = (result / REPORT).read_bytes()
    assert fetched(hub, text.ljust(MAX_SHOWN_REPORT_BYTES)).report == parse_report(text)
    before = hub.asked(f"GET .*/resolve/.*{REPORT}")
    with pytest.raises(SourceError, match=r"larger than the limit of 16\.0 MB"):
        fetched(hub, text.ljust(MAX_SHOWN_REPORT_BYTES + 1))
    assert hub.asked(f"GET .*/resolve/.*{REPORT}") == before, "nothing is asked for of one that is too large"
