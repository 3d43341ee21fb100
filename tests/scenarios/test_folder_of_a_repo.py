"""A folder of a repo is a source like a whole repo: it is read alone, named in the result, and compared again."""

import json
from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import DestinationError, ReplaceRefused, SourceError
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import compared, finish
from tests.folders import weights as weights_in
from tests.hubs import TOKEN, download, files_of, shard
from tests.inhouse import InHouse
from tests.localhub.conftest import Server

Folders = dict[str, Path]
PLACES = {"": 0, "sub": 1, "a/deep er": 2, "submarine": 3}
"""A checkpoint in each, all with files of the same names."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    made = {}
    for place, seed in PLACES.items():
        tensors = {f"{name}.{seed}": tensor + seed for name, tensor in random_tensors(seed=seed).items()}
        made[place] = write_checkpoint(tmp_path_factory.mktemp("in") / "one", {"model.safetensors": tensors}, False)
        (made[place] / "only-here.txt").write_text(place)
    return made


@pytest.fixture(scope="module")
def repo(one_hub: InHouse, folders: Folders) -> str:
    one_hub.api().create_repo("alice/several")
    for place, folder in folders.items():
        one_hub.api().upload_folder(repo_id="alice/several", folder_path=folder, path_in_repo=place or None)
    return "alice/several"


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("sub", "{repo}/{place}"),
        ("submarine", "{repo}@main/{place}/"),
        ("a/deep er", "hf://{repo}/{place}"),
        ("a/deep er", "{hub}/{repo}/tree/main/{link}"),
    ],
)
def test_only_that_folder_is_copied_however_it_is_written(
    hub: Server, repo: str, folders: Folders, place: str, way: str, tmp_path: Path
) -> None:
    text = way.format(repo=repo, place=place, hub=hub.address, link=place.replace(" ", "%20"))
    report = shard(hub, text, str(tmp_path / "out"))
    finish(job.shard(str(folders[place]), str(tmp_path / "here"), "60kB"))
    assert weights_in(tmp_path / "out") == weights_in(tmp_path / "here")
    assert (tmp_path / "out/only-here.txt").read_text() == place
    assert (report.source.repo_id, report.source.inside) == (repo, f"{place}/")
    assert report.verification.identical and "that the Hub states" in report.verification.method


def test_the_card_and_the_report_name_the_folder_and_their_command_finds_the_copy_identical(
    hub: Server, repo: str, name: str, tmp_path: Path
) -> None:
    report = shard(hub, f"{repo}/a/deep er", name)
    commit = hub.api().model_info(repo).sha
    card = (download(hub, name, tmp_path / "copy") / "README.md").read_text()
    assert f"{repo}/tree/{commit}/a/deep%20er" in card and f"'{repo}@{commit}/a/deep er'" in card
    told = json.loads((tmp_path / "copy/sharding_report.json").read_text())["source"]
    assert (told["repo_id"], told["revision"], told["inside"]) == (repo, commit, "a/deep er/")
    assert compared(report.source.place.text, name, endpoint=hub.address, token=TOKEN).identical
    for other in (repo, f"{repo}/sub", f"{repo}/submarine"):
        assert not compared(other, name, endpoint=hub.address, token=TOKEN).identical


def test_the_copy_of_another_folder_is_another_copy(hub: Server, repo: str, name: str, tmp_path: Path) -> None:
    for out in (name, str(tmp_path / "out")):
        shard(hub, f"{repo}/sub", out)
        shard(hub, f"{repo}/sub", out)
        for other in (f"{repo}/submarine", repo):
            with pytest.raises(ReplaceRefused, match=f"{repo}/sub"):
                shard(hub, other, out)


def test_what_is_no_folder_of_the_repo_is_refused_by_name(hub: Server, repo: str, tmp_path: Path) -> None:
    for text, told in ((f"{repo}/none", "has no folder none"), (f"{repo}/only-here", "has no folder only-here")):
        with pytest.raises(SourceError, match=told) as refusal:
            shard(hub, text, str(tmp_path / "out"))
        assert refusal.value.hint
    with pytest.raises(SourceError, match="no revision 'feature'") as refusal:
        shard(hub, f"{repo}@feature/x", str(tmp_path / "out"))
    assert "%2F" in refusal.value.hint
    with pytest.raises(DestinationError, match="is the source itself"):
        shard(hub, f"{repo}/sub", repo, overwrite=True)
    assert not (tmp_path / "out").exists() and "only-here.txt" in files_of(hub, repo)


def test_devices_print_code_for_the_folder_and_the_revision(hub: Server, tmp_path: Path) -> None:
    from tests import models

    folder = models.save("llama", tmp_path / "llama", "30kB", layers=3)
    hub.api().create_repo("alice/below")
    hub.api().upload_folder(repo_id="alice/below", folder_path=folder, path_in_repo="a/b")
    plan = job.devices("alice/below@main/a/b", "cpu=1GB", endpoint=hub.address, token=TOKEN)
    assert "'alice/below',\n    revision='main',\n    subfolder='a/b',\n" in plan.snippet
