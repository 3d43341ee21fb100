"""Files beside the weights, however many and large, cost a command a bounded amount of memory, or are refused first."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from sharding.core.errors import SourceError
from sharding.storage.folder_source import FolderSource
from sharding.storage.hub import repo as hub_repo
from tests.commands import Result, invoke
from tests.conftest import in_two_files
from tests.hubs import TOKEN, download, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

SOURCE, MADE = "alice/source", "alice/made"
TEXTS = {f"text-{number}.txt": f"{number}\n".encode() * 20_000 for number in range(10, 16)}
Invoke = Callable[..., Result]

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture(params=[True, False], ids=["xet", "lfs"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """A Hub with a source that has 360 kB of plain text in git."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", not request.param)
    folder = in_two_files(tmp_path / "in")
    for name, text in {**TEXTS, ".gitignore": b"*.txt\n"}.items():
        (folder / name).write_bytes(text)
    with hub_in_house(tmp_path / "hub", xet=request.param) as hub:
        (folder / ".gitignore").unlink()
        push(hub, folder, SOURCE)
        hub.api().upload_file(path_or_fileobj=b"*.txt\n", path_in_repo=".gitignore", repo_id=SOURCE)
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield hub


def in_store(hub: InHouse, repo_id: str) -> set[str]:
    return {file.path for file in hub.api().list_repo_tree(repo_id) if getattr(file, "lfs", None)}


@promise("docs/security.md#fill-the-memory-with-side-files")
@pytest.mark.parametrize("from_folder", [False, True])
def test_texts_that_are_too_much_for_a_commit_go_to_the_store(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_folder: bool
) -> None:
    assert not in_store(hub, SOURCE) & TEXTS.keys()
    monkeypatch.setattr(hub_repo, "COMMITTED_BYTES", 150_000)
    source = str(tmp_path / "in") if from_folder else SOURCE
    result = invoke("shard", source, MADE, "-s", "100kB")
    assert result.exit_code == 0, result.output
    assert in_store(hub, MADE) & TEXTS.keys() == {f"text-{number}.txt" for number in (12, 13, 14, 15)}
    copy = download(hub, MADE, tmp_path / "copy")
    assert {name: (copy / name).read_bytes() for name in TEXTS} == TEXTS


def test_texts_that_a_commit_carries_stay_in_git(hub: InHouse) -> None:
    assert invoke("shard", SOURCE, MADE, "-s", "100kB").exit_code == 0
    assert not in_store(hub, MADE) & TEXTS.keys()


@promise("docs/security.md#fill-the-memory-with-side-files")
def test_more_beside_the_weights_than_is_copied_is_refused_before_anything_moves(tmp_path: Path) -> None:
    folder = in_two_files(tmp_path / "in")
    for number in range(11):
        (folder / f"text-{number}.txt").touch()
        os.truncate(folder / f"text-{number}.txt", 490_000_000)
    for command in (["plan", str(folder)], ["shard", str(folder), str(tmp_path / "out")]):
        result = invoke(*command)
        assert result.exit_code == 3
        assert "The files beside the weights (5.4 GB) are larger than the limit of 5.0 GB." in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["plan", "shard"])
def test_a_file_beside_the_weights_that_may_not_be_read_is_named_before_anything_moves(
    command: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, read = os.access, FolderSource.read
    closed = checkpoint / "tokenizer.json"
    closed.write_text("{}")

    def access(path: Path, mode: int, **options: bool) -> bool:  # root may read every file
        return path != closed and usual(path, mode, **options)

    def read_open(source: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if file == closed.name:
            raise SourceError(f"{file} cannot be read: Permission denied.")
        yield from read(source, file, start, end)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(FolderSource, "read", read_open)
    destination = [str(tmp_path / "out")] if command == "shard" else []
    done = invoke(command, checkpoint, *destination, "-s", "60kB", "--json")
    assert done.exit_code == 3
    assert json.loads(done.stdout)["error"]["message"] == "You have no permission to read tokenizer.json."
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_copied_need_not_be_read(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (checkpoint / "model.h5").write_text("")
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, *given: path != checkpoint / "model.h5" and usual(path, *given))
    assert invoke("plan", checkpoint).exit_code == 0
