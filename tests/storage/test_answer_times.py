"""A Hub's time to answer is measured from the questions that are asked anyway."""

from collections.abc import Iterator

import pytest

from sharding.core.errors import SourceError
from sharding.core.limits import ANSWERS_REMEMBERED
from sharding.storage.hub.answer_times import AnswerTimes
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import open_repo
from tests.inhouse import InHouse, hub_in_house

TOKEN = "hf_alice"
SLOW_SECONDS = 0.2


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as served:
        served.api().create_repo("alice/model")
        served.api().upload_file(path_or_fileobj=bytes(1000), path_in_repo="a.bin", repo_id="alice/model")
        yield served


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> AnswerTimes:
    """The times of this test alone."""
    times = AnswerTimes()
    monkeypatch.setattr("sharding.storage.hub.guard.ANSWER_TIMES", times)
    return times


def test_a_hub_that_has_not_answered_has_no_time() -> None:
    times = AnswerTimes()
    times.note("http://one", 1.0)
    assert times.median("http://other") is None


def test_the_middle_answer_counts_and_of_two_the_shorter() -> None:
    times = AnswerTimes()
    for seconds, expected in ((9.0, 9.0), (1.0, 1.0), (5.0, 5.0)):
        times.note("http://hub", seconds)
        assert times.median("http://hub") == times.median("http://hub/") == expected


def test_only_the_newest_answers_count() -> None:
    times = AnswerTimes()
    for seconds in (*[9.0] * 10 * ANSWERS_REMEMBERED, *[1.0] * ANSWERS_REMEMBERED):
        times.note("http://hub", seconds)
    assert times.median("http://hub") == 1.0


def test_questions_are_timed_until_their_answer(hub: InHouse, times: AnswerTimes) -> None:
    client = Hub(hub.address, TOKEN)
    with hub.failing(f"delay:{SLOW_SECONDS}@GET /api/models"):
        client.ask("alice/model", SourceError, lambda: client.api.model_info("alice/model"))
    assert (times.median(hub.address) or 0) >= SLOW_SECONDS


def test_reads_of_files_are_not_timed_because_they_wait_for_one_another(hub: InHouse, times: AnswerTimes) -> None:
    source = open_repo(Hub(hub.address, TOKEN), "alice/model")
    before = len(times._seconds[hub.address])
    assert b"".join(source.read("a.bin", 0, 1000)) == bytes(1000)
    assert len(times._seconds[hub.address]) == before > 0
