"""Files arrive, over Xet and as regular ones, and commits are all or nothing."""

import hashlib
import io
import json
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import RevisionNotFoundError

from tests.localhub.conftest import NUMBERS, Server, payload


def fetch(hub: Server, repo: str, path: str, revision: str = "main", token: str | None = "hf_alice") -> bytes:
    reply = hub.ask("GET", f"/{repo}/resolve/{revision}/{path}", token=token)
    assert reply.status == 200, reply.body
    return reply.body


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # the client's own way to send file objects
@pytest.mark.parametrize(
    ("size", "source", "name"),
    [
        *((size, "bytes", name) for size in (0, 11, 300_000) for name in ("notes.txt", "model.safetensors")),
        *((300_000, source, "model.safetensors") for source in ("path", "file")),
        (9_000_000, "path", "model.safetensors"),
    ],
)
def test_a_file_comes_back_as_sent(hub: Server, repo: str, tmp_path: Path, size: int, source: str, name: str) -> None:
    content = payload(size, seed=next(NUMBERS))
    (tmp_path / "file").write_bytes(content)
    given = {"bytes": content, "path": tmp_path / "file", "file": io.BytesIO(content)}[source]
    hub.put(repo, name, given)
    assert fetch(hub, repo, name) == content
    (info,) = hub.api().get_paths_info(repo, [name])
    assert info.size == size
    assert bool(info.lfs) == (name.endswith("safetensors") and size > 0)
    # A file object cannot go over Xet: the client sends it over LFS.
    assert bool(info.xet_hash) == (bool(info.lfs) and source != "file")
    if info.lfs:
        assert info.lfs.sha256 == hashlib.sha256(content).hexdigest()


def test_an_unchanged_file_makes_no_new_commit(hub: Server, repo: str) -> None:
    for _ in range(2):
        for name in ("a.txt", "a.bin"):
            hub.put(repo, name, b"same" * 100)
    assert len(hub.api().list_repo_commits(repo)) == 3


def test_a_commit_adds_and_deletes_at_once(hub: Server, repo: str) -> None:
    api = hub.api()
    for path in ("a.txt", "d/b.txt", "d/c.txt"):
        hub.put(repo, path)
    gone = [CommitOperationDelete("a.txt"), CommitOperationDelete("d/", is_folder=True)]
    operations = [*gone, CommitOperationAdd("e.txt", b"e")]
    info = api.create_commit(repo, operations, commit_message="second", commit_description="why")
    assert set(api.list_repo_files(repo)) == {".gitattributes", "e.txt"}
    first = api.list_repo_commits(repo)[0]
    assert (first.commit_id, first.title, first.message, first.authors) == (info.oid, "second", "why", ["alice"])


def test_a_branch_that_is_missing_takes_no_commit(hub: Server, repo: str) -> None:
    with pytest.raises(RevisionNotFoundError):
        hub.put(repo, "a.txt", b"1", revision="nowhere")


@pytest.mark.parametrize(
    "lines",
    [
        [{"key": "lfsFile", "value": {"path": "w.bin", "algo": "sha256", "oid": "0" * 64, "size": 5}}],
        [{"key": "lfsFile", "value": {"path": "w.bin", "algo": "sha256", "oid": "0" * 64}}],
        [{"key": "file", "value": {"path": "../x", "content": "", "encoding": "base64"}}],
        [{"key": "file", "value": {"path": "x", "content": "%%", "encoding": "base64"}}],
        [{"key": "file", "value": {"path": ".gitattributes/x", "content": "", "encoding": "base64"}}],
        [{"key": "file", "value": {"path": "README.md", "content": "---\nlicense: none\n---\n", "encoding": "utf-8"}}],
        [{"key": "deletedFile", "value": {"path": "missing"}}],
        [{"key": "other", "value": {"path": "x"}}],
        [{"key": "file"}],
    ],
    ids=lambda lines: json.dumps(lines)[:60],
)
def test_a_commit_with_one_wrong_line_is_refused_whole(hub: Server, repo: str, lines: list[object]) -> None:
    good = {"key": "file", "value": {"path": "good.txt", "content": "", "encoding": "base64"}}
    reply = hub.commit(repo, [good, *lines])
    assert reply.status in (400, 404) and "error" in reply.json()
    assert hub.api().list_repo_files(repo) == [".gitattributes"]


def test_a_xet_file_whose_size_is_not_told_truly_is_refused(hub: Server, repo: str) -> None:
    content = payload(100_000, 77)
    hub.put(repo, "a.bin", content)
    value = {"path": "b.bin", "algo": "sha256", "oid": hashlib.sha256(content).hexdigest(), "size": 99_999}
    assert hub.commit(repo, [{"key": "lfsFile", "value": value}]).status == 400


def test_large_files_are_copied_on_the_server_within_a_repo(hub: Server, repo: str) -> None:
    api = hub.api()
    content = payload(200_000, 5)
    api.create_branch(repo, branch="staging")
    hub.put(repo, "a.bin", content, revision="staging")
    hub.put(repo, "a.txt", b"t", revision="staging")
    copies = [CommitOperationCopy(f"a.{end}", f"b.{end}", src_revision="staging") for end in ("bin", "txt")]
    api.create_commit(repo, copies, commit_message="copy")
    api.delete_branch(repo, branch="staging")
    assert fetch(hub, repo, "b.bin") == content
    assert fetch(hub, repo, "b.txt") == b"t"


def test_files_of_a_repo_that_cannot_be_read_are_not_copied(hub: Server, repo: str) -> None:
    content = payload(200_000, 7)
    hub.put(repo, "a.bin", content)
    hub.api().update_repo_settings(repo, visibility="private")
    hub.api("hf_bob").create_repo(f"bob/no-copy-of-{repo[6:]}")
    files = [{"sha256": hashlib.sha256(content).hexdigest(), "xetHash": "0" * 64, "filename": "a.bin"}]
    body = {"target": {"type": "model", "name": f"bob/no-copy-of-{repo[6:]}"}, "files": files}
    assert hub.ask("POST", f"/api/models/{repo}/lfs-files/duplicate", body, token="hf_bob").status == 404


def test_a_repo_is_duplicated_and_the_copy_is_its_own(hub: Server, repo: str) -> None:
    hub.put(repo, "a.bin", payload(100_000, 8))
    assert hub.api().duplicate_repo(repo, to_id=f"{repo}-twin").repo_id == f"{repo}-twin"
    hub.api().delete_repo(repo)
    assert fetch(hub, f"{repo}-twin", "a.bin") == payload(100_000, 8)
