"""Files beside the weights, however many and large, cost a command a bounded amount of memory, or are refused first."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from sharding.core.errors import SourceError
from sharding.storage.folder_source import FolderSource
from sharding.storage.hub import repo as hub_repo
from tests.commands import invoke
from tests.conftest import in_two_files
from tests.hubs import TOKEN, download, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

SOURCE, MADE = "alice/source", "alice/made"
TEXTS = {f"text-{number}.txt": f"{number}\n".encode() * 20_000 for number in range(10, 16)}

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
def test_texts_too_large_for_a_commit_go_to_the_store(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not in_store(hub, SOURCE) & TEXTS.keys()
    assert invoke("shard", SOURCE, MADE, "-s", "100kB").exit_code == 0
    assert not in_store(hub, MADE) & TEXTS.keys()
    monkeypatch.setattr(hub_repo, "COMMITTED_BYTES", 150_000)
    for source, made in ((SOURCE, "alice/other"), (tmp_path / "in", "alice/third"))[: 1 + constants.HF_HUB_DISABLE_XET]:
        result = invoke("shard", source, made, "-s", "100kB")
        assert result.exit_code == 0, result.output
        assert in_store(hub, made) & TEXTS.keys() == {f"text-{number}.txt" for number in (12, 13, 14, 15)}
        copy = download(hub, made, tmp_path / made)
        assert {name: (copy / name).read_bytes() for name in TEXTS} == TEXTS


@promise("docs/security.md#fill-the-memory-with-side-files")
def test_more_beside_the_weights_than_is_copied_is_refused_before_anything_moves(tmp_path: Path) -> None:
    folder = in_two_files(tmp_path / "in")
    for number in range(11):
        (folder / f"text-{number}.txt").touch()
        os.truncate(folder / f"text-{number}.txt", 490_000_000)
    for command in (["plan", folder], ["shard", folder, tmp_path / "out"]):
        result = invoke(*command)
        assert result.exit_code == 3
        assert "The files beside the weights (5.4 GB) are larger than the limit of 5.0 GB." in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_file_beside_the_weights_that_may_not_be_read_is_named_before_anything_moves(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual, read, not_copied = os.access, FolderSource.read, checkpoint / "model.h5"
    closed = checkpoint / "tokenizer.json"
    not_copied.write_text("")

    def access(path: Path, mode: int, **options: bool) -> bool:  # root may read every file
        return path not in (closed, not_copied) and usual(path, mode, **options)

    def read_open(source: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if file == closed.name:
            raise SourceError(f"{file} cannot be read: Permission denied.")
        yield from read(source, file, start, end)

    monkeypatch.setattr(os, "access", access)
    monkeypatch.setattr(FolderSource, "read", read_open)
    assert invoke("plan", checkpoint).exit_code == 0
    closed.write_text("{}")
    for words in (("plan", checkpoint), ("shard", checkpoint, tmp_path / "out")):
        done = invoke(*words, "-s", "60kB", "--json")
        assert done.exit_code == 3
        assert json.loads(done.stdout)["error"]["message"] == "You have no permission to read tokenizer.json."
    assert not (tmp_path / "out").exists()
