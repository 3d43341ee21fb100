"""A source that notes what is read of it says of itself what the source below says."""

from pathlib import Path

import pytest

from sharding.transfer.noting_source import NotingSource
from tests.sources import Counted

ABOUT = (
    *("ref", "folder", "is_private", "unreached", "links_out", "files"),
    *("batch_bytes", "join_gap_bytes", "ranges_at_once"),
)


@pytest.mark.parametrize("is_private", [True, False, None])
def test_a_source_that_notes_says_what_the_source_below_says(is_private: bool | None) -> None:
    source = Counted("below", "config.json", "w", is_private=is_private)
    noted = NotingSource(source, 3)
    for what in ABOUT:
        assert getattr(noted, what) == getattr(source, what), what
    assert noted.closed() == ""
    source.was_closed = "below"
    assert noted.closed() == "below"
    assert noted.lend(["w"]) == source.lend(["w"])
    assert noted.path("w") == Path("/below/w")
    assert (noted.requests, noted.bytes_read) == (0, 0)
    assert b"".join(noted.read("w", 0, 8)) == b"below: w"
    assert (noted.requests, noted.bytes_read) == (1, 8)
    (read,) = noted.take()
    assert (read.source, read.file, read.start_byte, read.end_byte) == (3, "w", 0, 8)
