"""Read the bytes of a committed file, from blobs or from the Xet store."""

import sqlite3
from collections.abc import Iterator

from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, find_entry
from sharding.localhub.refusals import Refusal
from sharding.localhub.store import RANGE_BYTES, XetFile


def xet_file(hub: Hub, entry: Entry) -> XetFile | None:
    """Return the file in the Xet store, or None if it is not there."""
    return hub.xet.known(entry.sha256) if hub.xet and entry.sha256 else None


def read(hub: Hub, entry: Entry, start_byte: int, end_byte: int) -> bytes:
    """Return a short range of a file. Raises Refusal (500) if the bytes are lost."""
    return b"".join(stream(hub, entry, start_byte, end_byte))


def stream(hub: Hub, entry: Entry, start_byte: int, end_byte: int) -> Iterator[bytes]:
    """Yield a range of a file in chunks of a few megabytes at most.

    The first long range of a Xet file makes a blob of the whole file, which serves later requests. Short ranges, such
    as the headers of shards, come directly from the store.
    """
    if hub.blobs.has(entry.etag):
        return hub.blobs.stream(entry.etag, start_byte, end_byte)
    file = xet_file(hub, entry)
    try:
        if hub.xet and file and end_byte - start_byte <= RANGE_BYTES < entry.size_bytes:
            return iter(list(hub.xet.read(file, start_byte, end_byte)))
        if hub.xet and file:
            with hub.xet.copying:
                if not hub.blobs.has(file.sha256):
                    hub.blobs.keep_stream(hub.xet.read(file, 0, file.size_bytes), file.sha256, file.size_bytes)
            return hub.blobs.stream(file.sha256, start_byte, end_byte)
    except (OSError, ValueError) as error:
        raise Refusal(500, f"The content of {entry.path} cannot be read: {error}") from error
    raise Refusal(500, f"The content of {entry.path} is lost.")


def read_text(hub: Hub, db: sqlite3.Connection, commit: Commit, path: str, max_bytes: int) -> str:
    """Return a small text file of a commit, or "" if it is missing or too large."""
    entry = find_entry(db, commit, path)
    if not entry or entry.size_bytes > max_bytes:
        return ""
    return read(hub, entry, 0, entry.size_bytes).decode(errors="replace")
