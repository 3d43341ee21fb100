"""A stranger's report is read within bounds, and refused before it is parsed where it would cost too much."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_BYTES, MAX_SHOWN_REPORT_VALUES
from sharding.report.files import Result, read_result
from sharding.report.schema import to_json
from tests.hubs import TOKEN
from tests.inhouse import InHouse, hub_in_house
from tests.report.results import made

COPY, NAME = "alice/copy", "sharding_report.json"
REPORT = made().report
TEXT = json.dumps(to_json(REPORT)).encode()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        hub.api().create_repo(COPY)
        yield hub


def fetched(hub: InHouse, text: bytes | None = None, place: str = COPY) -> Result:
    """Read what is in the copy, once its report is `text`."""
    if text is not None:
        hub.api().upload_file(path_or_fileobj=text, path_in_repo=NAME, repo_id=COPY)
    return read_result(place, endpoint=hub.address, token=TOKEN)


def test_a_result_is_what_lies_in_the_repo_at_that_commit(hub: InHouse) -> None:
    found = fetched(hub, TEXT)
    commit = hub.api().model_info(COPY).sha
    assert (found.repo_id, found.revision, found.report) == (COPY, commit, REPORT)
    assert {file.path for file in found.files} == set(hub.api().list_repo_files(COPY))
    other = replace(REPORT, plan_id="another")
    assert fetched(hub, json.dumps(to_json(other)).encode()).report == other
    assert fetched(hub, place=f"{COPY}@{commit}") == found


def test_a_repo_without_a_report_has_no_result_to_show(hub: InHouse) -> None:
    hub.api().create_repo("alice/empty", exist_ok=True)
    for place, revision in (("alice/empty", ""), (f"{hub.address}/alice/empty/tree/main", "@main")):
        with pytest.raises(SourceError, match=f"alice/empty has no {NAME}") as refusal:
            fetched(hub, place=place)
        assert refusal.value.hint and refusal.value.remedy == Remedy("plan_repo", f"alice/empty{revision}")
    with pytest.raises(SourceError, match="does not exist") as refusal:
        fetched(hub, place="alice/absent")
    assert refusal.value.remedy is None


def test_a_report_that_would_cost_too_much_is_refused_before_it_is_parsed(hub: InHouse) -> None:
    # None of these is a report: who parsed one first would say that.
    with pytest.raises(SourceError, match=f"The {NAME} of {COPY} holds more than a page can show"):
        fetched(hub, b"[" * (MAX_SHOWN_REPORT_VALUES + 1))
    with pytest.raises(SourceError, match="is not a report of this tool"):
        fetched(hub, b"[0]")


def test_a_report_is_read_up_to_a_bound(hub: InHouse) -> None:
    assert fetched(hub, TEXT.ljust(MAX_SHOWN_REPORT_BYTES)).report == REPORT
    before = hub.asked(f"GET .*/resolve/.*{NAME}")
    with pytest.raises(SourceError, match=r"larger than the limit of 16\.0 MB"):
        fetched(hub, TEXT.ljust(MAX_SHOWN_REPORT_BYTES + 1))
    assert hub.asked(f"GET .*/resolve/.*{NAME}") == before, "nothing is asked for of one that is too large"
