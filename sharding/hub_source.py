"""Read a repo of a Hub at one pinned commit: its files, and any range of their bytes."""

import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

from sharding.errors import SourceError
from sharding.hub import Hub
from sharding.limits import (
    BLOCK_BYTES,
    HUB_BLOCK_BYTES,
    MAX_FILES,
    NETWORK_TRIES,
    NETWORK_WAIT_SECONDS,
    XET_LEAST_BYTES,
)
from sharding.values import FileEntry, RepoRef

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class HubSource:
    """The files of a Hub repo at one commit. See `protocols.Source`."""

    folder: Path | None = None

    def __init__(self, hub: Hub, repo_id: str, revision: str | None = None) -> None:
        """Pin `repo_id` to the commit that `revision` (a branch, tag or commit; None: main) is at now.

        Raises SourceError where it is not there, is gated, or the login does not reach it.
        """
        from huggingface_hub.hf_api import RepoFile

        self._hub = hub
        self.block_bytes = HUB_BLOCK_BYTES
        self._lock = Lock()
        self._group: Any = None
        self.requests = 0
        self.bytes_read = 0
        with hub.explained(repo_id, SourceError):
            info = hub.api.model_info(repo_id, revision=revision)
            assert info.sha
            self.ref = RepoRef("hub", info.id, info.sha)
            hub.api.auth_check(info.id)
            listed = hub.api.list_repo_tree(info.id, recursive=True, revision=info.sha)
            files = []
            for item in listed:
                if isinstance(item, RepoFile):
                    sha256 = item.lfs.sha256 if item.lfs else None
                    files.append(FileEntry(item.path, item.size, sha256, item.xet_hash))
                if len(files) > MAX_FILES:
                    raise SourceError(f"{repo_id} holds more than {MAX_FILES} files.", "It is no repo of one model.")
        self.is_private: bool | None = bool(info.private or info.gated)
        self.files = tuple(sorted(files, key=lambda file: file.path))
        self._by_path = {file.path: file for file in self.files}

    def path(self, file: str) -> None:
        """Return None: nothing of a Hub repo lies on this disk."""

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file`, through Xet where the repo has it.

        A stream that is cut is taken up again at the byte that it reached. Raises SourceError when that
        does not help, or the server sends something else than it was asked for.
        """
        entry = self._by_path[file]
        with_xet = entry.xet_hash is not None and end_byte - start_byte >= XET_LEAST_BYTES
        position, waits = start_byte, 0
        with self._hub.explained(self.ref.repo_id, SourceError):
            while position < end_byte:
                try:
                    # Bounded ranges: hf-xet holds what it has of a range in memory, and may stall on a long one.
                    stop = min(end_byte, position + self.block_bytes)
                    for chunk in (self._xet if with_xet else self._http)(entry, position, stop):
                        position, waits = position + len(chunk), 0
                        with self._lock:
                            self.bytes_read += len(chunk)
                        yield chunk
                    if position < stop:
                        raise ConnectionError("the stream ended early")
                except _passing() as error:
                    if waits == NETWORK_TRIES:
                        raise SourceError(
                            f"{file} of {self.ref.repo_id} cannot be read on from byte {position}: {error}.",
                            "Check the network and run the same command again; it goes on where it stopped.",
                        ) from error
                    self._group = None  # its token may have expired
                    waits += 1
                    time.sleep(random.uniform(0.5, 1) * NETWORK_WAIT_SECONDS * 2**waits)

    def _http(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils._http import hf_raise_for_status, http_stream_backoff

        self._count()
        url = hf_hub_url(self.ref.repo_id, entry.path, revision=self.ref.revision, endpoint=self._hub.endpoint)
        asked = {"Range": f"bytes={start_byte}-{end_byte - 1}", "Accept-Encoding": "identity"}
        headers = {**self._hub.headers, **asked}
        with http_stream_backoff("GET", url, headers=headers, follow_redirects=True) as response:
            hf_raise_for_status(response)
            self._check_range(
                entry, response.status_code, response.headers.get("Content-Range", ""), start_byte, end_byte
            )
            missing = end_byte - start_byte
            for chunk in response.iter_raw(BLOCK_BYTES):
                missing -= len(chunk)
                if missing < 0:
                    raise SourceError(f"The Hub sent more of {entry.path} than it was asked for.", "Run again later.")
                yield chunk

    def _check_range(self, entry: FileEntry, status: int, content_range: str, start_byte: int, end_byte: int) -> None:
        if status == 200 and (start_byte, end_byte) == (0, entry.bytes):
            return
        match = _CONTENT_RANGE.fullmatch(content_range)
        if status != 206 or not match or tuple(map(int, match.groups())) != (start_byte, end_byte - 1, entry.bytes):
            raise SourceError(
                f"The Hub answered with something else than bytes {start_byte} to {end_byte} of {entry.path} "
                f"(status {status}, {content_range or 'no Content-Range'}).",
                "A proxy in between may ignore ranges; run again from another network.",
            )

    def _xet(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        from hf_xet import XetFileInfo

        self._count()
        with self._lock:
            if self._group is None:
                self._group = self._hub.download_from(self.ref.repo_id, self.ref.revision)
            group = self._group
        yield from group.download_stream(XetFileInfo(entry.xet_hash, entry.bytes), start_byte, end_byte)

    def _count(self) -> None:
        with self._lock:
            self.requests += 1


def _passing() -> tuple[type[Exception], ...]:
    """What a network does now and then; hf-xet raises RuntimeError for it, and PermissionError for an old token."""
    import httpx2

    return ConnectionError, TimeoutError, PermissionError, RuntimeError, httpx2.TransportError
