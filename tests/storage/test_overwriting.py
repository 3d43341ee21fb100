"""Another model's copy is replaced only where somebody said so, in words; the same model's as ever."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import ReplaceRefused
from sharding.core.options import Request
from tests.commands import invoke
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import arrays, same
from tests.hubs import SOURCE, TOKEN, download, push, shard
from tests.inhouse import InHouse


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another model."""
    return write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(2)}, False)


def test_in_a_folder_anothers_copy_stays_until_the_command_says_overwrite(folder: Path, other: Path, out: Path) -> None:
    assert invoke("shard", folder, out, "-s", "9kB").exit_code == 0
    before = listing(out)
    refused = invoke("shard", other, out, "-s", "60kB")
    assert refused.exit_code == 3 and "--overwrite" in refused.stderr
    said = "out holds a copy of the folder in. A copy of the folder other would replace it"
    assert said in " ".join(refused.stderr.split())
    assert listing(out) == before
    assert invoke("shard", other, out, "-s", "60kB", "--overwrite").exit_code == 0
    assert same(arrays(out), random_tensors(2))


def test_in_a_repo_anothers_copy_stays_until_it_may_go(hub: InHouse, name: str, other: Path, tmp_path: Path) -> None:
    theirs = push(hub, other, f"{name}-other")
    shard(hub, SOURCE, name, "9kB")
    before, _ = hub.api().model_info(name).sha, hub.log.clear()

    def check(**more: bool) -> None:
        job.check(Request(theirs, name, **more), endpoint=hub.address, token=TOKEN)

    for ask in (check, lambda: shard(hub, theirs, name)):
        with pytest.raises(ReplaceRefused, match=rf"{name} holds a copy of {SOURCE}\. A copy of {theirs}") as no:
            ask()
        assert no.value.there == SOURCE
    assert not hub.asked("^(POST|PUT|DELETE) .*(commit|branch|create|delete|settings)")
    assert hub.api().model_info(name).sha == before
    check(overwrite=True)
    shard(hub, theirs, name, overwrite=True)
    assert same(arrays(download(hub, name, tmp_path / "down")), random_tensors(2))


def test_a_copy_of_a_folder_named_like_a_repo_is_no_copy_of_that_repo(hub: InHouse, name: str, tmp_path: Path) -> None:
    shard(hub, SOURCE, name, "9kB")
    place = tmp_path / "copy"
    report = json.loads((download(hub, name, place) / "sharding_report.json").read_text())
    report["source"]["store"] = "folder"
    (place / "sharding_report.json").write_text(json.dumps(report))
    hub.put(name, "sharding_report.json", place / "sharding_report.json")
    for copy in (name, str(place)):
        with pytest.raises(ReplaceRefused, match=rf"holds a copy of the folder {SOURCE}\. A copy of {SOURCE}"):
            shard(hub, SOURCE, copy)
