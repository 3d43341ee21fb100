"""Files are handed out whole, in ranges, or only described."""

from pathlib import Path

import pytest
from huggingface_hub.errors import EntryNotFoundError, RevisionNotFoundError
from hypothesis import given
from hypothesis import strategies as st

from sharding.localhub.refusals import Refusal
from sharding.localhub.revisions import parse_range
from tests.localhub.conftest import Server, payload

CONTENT = payload(12_000_000, 3)


@pytest.fixture(scope="module")
def stocked(hub: Server) -> str:
    """A repo with a Xet file of 12 MB, a regular file, and one in a folder with a name to quote."""
    hub.api().create_repo("alice/stocked")
    for name, content in (("w.bin", CONTENT), ("a.txt", b"0123456789"), ("d d/ü#.txt", b"u"), ("empty.txt", b"")):
        hub.put("alice/stocked", name, content)
    return "alice/stocked"


def test_a_range_is_answered_with_206(hub: Server, stocked: str) -> None:
    for span, start, end in (("0-99", 0, 100), ("5-5", 5, 6), ("11999990-", 11_999_990, 12_000_000), ("-7", -7, None)):
        reply = hub.ask("GET", f"/{stocked}/resolve/main/w.bin", Range=f"bytes={span}")
        assert (reply.status, reply.body) == (206, CONTENT[start:end])
        assert reply.headers["content-range"].endswith("/12000000")


def test_short_ranges_of_a_xet_file_leave_no_copy_behind(hub: Server, repo: str) -> None:
    def kept() -> int:
        return sum(path.stat().st_size for path in (hub.folder / "blobs").rglob("*") if path.is_file())

    content = payload(9_000_000, 4)
    hub.put(repo, "w.bin", content)
    before = kept()
    assert hub.ask("GET", f"/{repo}/resolve/main/w.bin", Range="bytes=100-299").body == content[100:300]
    assert kept() == before


def test_a_range_beyond_the_end_is_refused_with_the_size(hub: Server, stocked: str) -> None:
    reply = hub.ask("GET", f"/{stocked}/resolve/main/a.txt", Range="bytes=10-")
    assert (reply.status, reply.headers["content-range"]) == (416, "bytes */10")


def test_head_describes_without_content(hub: Server, stocked: str) -> None:
    reply = hub.ask("HEAD", f"/{stocked}/resolve/main/w.bin")
    commit = hub.api().model_info(stocked).sha
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == reply.headers["x-linked-size"] == "12000000"
    assert reply.headers["x-repo-commit"] == commit
    assert reply.headers["etag"] == reply.headers["x-linked-etag"]
    assert len(reply.headers["x-xet-hash"]) == 64
    assert f"xet-read-token/{commit}" in reply.headers["link"]


def test_what_is_missing_is_told_apart(hub: Server, stocked: str, tmp_path: Path) -> None:
    api = hub.api()
    with pytest.raises(EntryNotFoundError):
        api.hf_hub_download(stocked, "missing.txt", cache_dir=tmp_path)
    with pytest.raises(RevisionNotFoundError):
        api.hf_hub_download(stocked, "a.txt", revision="missing", cache_dir=tmp_path)
    reply = hub.ask("HEAD", f"/{stocked}/resolve/main/missing.txt")
    assert (reply.status, reply.headers["x-error-code"]) == (404, "EntryNotFound")
    assert len(reply.headers["x-repo-commit"]) == 40
    for path in ("/api/no-such-thing", "/api/models/a/b/c/d", "/a/b/c"):
        assert "error" in hub.ask("GET", path).json()


@given(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 60)), st.one_of(st.none(), st.integers(0, 60)))
def test_a_range_never_leaves_the_file(size: int, first: int | None, last: int | None) -> None:
    text = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    try:
        span = parse_range(text, size)
    except Refusal as refusal:
        assert refusal.status == 416
        assert (first or 0) >= size or last == 0
        return
    if span is not None:
        start, end = span
        assert 0 <= start < end <= size
        whole = range(size)
        meant = whole[-last:] if first is None else whole[first : None if last is None else last + 1]
        assert whole[start:end] == meant


@given(st.text(max_size=30))
def test_a_range_that_makes_no_sense_is_passed_over(text: str) -> None:
    if not text.strip().startswith("bytes="):
        assert parse_range(text, 100) is None
