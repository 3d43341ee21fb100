"""Uploads over git LFS, for clients without Xet."""

import hashlib
from collections.abc import Callable

import pytest

from tests.localhub.conftest import Server, payload


@pytest.fixture(scope="module")
def plain(served: Callable[..., Server]) -> Server:
    """A Hub without Xet that takes files above 100 kB in parts."""
    server = served("--no-xet", "--lfs-multipart-above", "100000")
    server.api().create_repo("alice/lfs")
    return server


def test_files_go_up_in_one_piece_and_in_parts(plain: Server, script: Callable[..., str]) -> None:
    code = """
import random
for size in (99_999, 100_000, 100_001, 1_234_567):
    content = random.Random(size).randbytes(size)
    (here / f"{size}.bin").write_bytes(content)
    for how, given in (("bytes", content), ("path", here / f"{size}.bin"), ("file", io.BytesIO(content))):
        api.upload_file(path_or_fileobj=given, path_in_repo=f"{how}/{size}.bin", repo_id="alice/lfs")
        path = api.hf_hub_download("alice/lfs", f"{how}/{size}.bin", local_dir=here / how)
        assert pathlib.Path(path).read_bytes() == content
api.upload_file(path_or_fileobj=b"small", path_in_repo="small.txt", repo_id="alice/lfs")
print(all(file.xet_hash is None for file in api.list_repo_tree("alice/lfs", "path")))
api.create_branch("alice/lfs", branch="b")
api.create_commit("alice/lfs", [CommitOperationCopy("path/99999.bin", "copy.bin", src_revision="b")], commit_message="c")
"""
    assert script(plain, code) == "True\n"
    assert plain.ask("GET", "/alice/lfs/resolve/main/path/1234567.bin").body == payload(1_234_567, 1_234_567)
    assert plain.ask("GET", "/alice/lfs/resolve/main/copy.bin").body == payload(99_999, 99_999)


def test_a_hub_without_xet_speaks_of_none(plain: Server) -> None:
    for kind in ("read", "write"):
        assert plain.ask("GET", f"/api/models/alice/lfs/xet-{kind}-token/main").status == 404


def batch(plain: Server, content: bytes, token: str = "hf_alice") -> dict:
    objects = [{"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}]
    body = {"operation": "upload", "transfers": ["basic", "multipart"], "objects": objects, "hash_algo": "sha256"}
    reply = plain.ask("POST", "/alice/lfs.git/info/lfs/objects/batch", body, token=token)
    assert reply.status == 200, reply.body
    return reply.json()["objects"][0]


def test_an_upload_url_takes_only_what_it_was_signed_for(plain: Server) -> None:
    content = payload(5000, 1)
    href = batch(plain, content)["actions"]["upload"]["href"]
    oid = hashlib.sha256(content).hexdigest()
    for wrong in (href.replace("size=5000", "size=5001"), href.replace(oid, "0" * 64), href[:-1], href.split("?")[0]):
        assert plain.ask("PUT", wrong, content, token=None).status == 403
    for wrong in (content + b"x", payload(5000, 2)):
        assert plain.ask("PUT", href, wrong, token=None).status == 400
    assert plain.ask("PUT", href, content, token=None).status == 200
    assert "actions" not in batch(plain, content)


def test_parts_that_do_not_make_the_file_are_refused(plain: Server) -> None:
    content = payload(250_000, 3)
    header = batch(plain, content)["actions"]["upload"]
    numbers = sorted(key for key in header["header"] if key.isdecimal())
    assert numbers == ["00001", "00002", "00003"]
    parts = [{"partNumber": n, "etag": "x"} for n in (1, 2, 3)]
    oid = hashlib.sha256(content).hexdigest()
    assert plain.ask("POST", header["href"], {"oid": oid, "parts": parts}, token=None).status == 400
    for number in (1, 2, 3):
        part = content[(number - 1) * 100_000 : number * 100_000]
        reply = plain.ask("PUT", header["header"][f"{number:05d}"], part[::-1] if number == 2 else part, token=None)
        assert reply.headers["etag"]
    assert plain.ask("POST", header["href"], {"oid": oid, "parts": parts}, token=None).status == 400
    assert plain.ask("PUT", header["header"]["00002"], content[100_000:200_000], token=None).status == 200
    assert plain.ask("POST", header["href"], {"oid": oid, "parts": parts[:2]}, token=None).status == 400
    assert plain.ask("POST", header["href"], {"oid": oid, "parts": parts}, token=None).status == 200


def test_nobody_gets_an_upload_url_for_what_is_not_theirs(plain: Server) -> None:
    for token, status in (("hf_bob", 403), (None, 401)):
        body = {"operation": "upload", "transfers": ["basic"], "objects": []}
        assert plain.ask("POST", "/alice/lfs.git/info/lfs/objects/batch", body, token=token).status == status


def test_a_file_of_another_repo_must_be_sent_again(plain: Server) -> None:
    content = payload(4000, 9)
    plain.ask("PUT", batch(plain, content)["actions"]["upload"]["href"], content, token=None)
    plain.api("hf_bob").create_repo("bob/other", exist_ok=True)
    line = {"path": "x.bin", "algo": "sha256", "oid": hashlib.sha256(content).hexdigest(), "size": 4000}
    reply = plain.commit("bob/other", [{"key": "lfsFile", "value": line}], token="hf_bob")
    assert reply.status == 400 and "LFS pointer" in reply.json()["error"]
