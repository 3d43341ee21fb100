"""A source that states hashes of its files has to be given back with these very hashes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharding import job
from tests.conftest import in_two_files
from tests.folders import finish
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[InHouse]:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, in_two_files(tmp_path / "in"), "alice/source")
        yield hub


def test_what_a_hub_states_is_what_the_copy_is_put_together_to(hub: InHouse, tmp_path: Path) -> None:
    report = finish(job.shard("alice/source", str(tmp_path / "out"), "60kB", endpoint=hub.address, token=TOKEN))
    assert "2 of the source's files, put together again from the result, have the SHA-256" in report.verification.method


def test_a_folder_states_nothing_and_the_report_claims_nothing_of_it(hub: InHouse, tmp_path: Path) -> None:
    report = finish(job.shard(str(tmp_path / "in"), str(tmp_path / "out"), "60kB"))
    assert "the Hub states" not in report.verification.method
