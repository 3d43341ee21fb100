"""Read a repo of a Hub at one pinned commit: its files, and any range of their bytes."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

import httpx2
from huggingface_hub.utils import hf_raise_for_status
from pydantic import TypeAdapter
from typing_extensions import override

from sharding.core.errors import DamagedError, Remedy, SourceError
from sharding.core.limits import HUB_BATCH_BYTES, LEAST_BYTES, MAX_FILES, RANGES_AT_ONCE
from sharding.core.origin import Place
from sharding.core.protocols import LentFile, LentSource, Source
from sharding.core.text import name_problem, shown_name
from sharding.core.values import FileEntry
from sharding.formats.names import is_plain
from sharding.storage.hub.answers import (
    NETWORK_TRIES,
    SHA,
    StoreAway,
    listed_files,
    may_pass,
    parsed,
    wait_to_retry,
)
from sharding.storage.hub.client import Hub
from sharding.storage.hub.guard import session
from sharding.storage.hub.lookup import is_reached

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

HUB_JOIN_GAP_BYTES = 512 << 10
"""Largest gap between two ranges of a Hub's file that are read as one. Another request costs tens of milliseconds."""

CONNECT_SECONDS = 10  # Longest time to connect for a read.
XET_TRIES = 2  # Failures of hf-xet, each after minutes of its own tries, after which files are read over plain HTTP.
READ_TIMEOUT_SECONDS = 25  # Longest silence while a file is read. After it, a new connection continues the read.
_REF = TypeAdapter(Place)


def open_repo(hub: Hub, asked: Place) -> "HubSource":
    """Pin the repo that is `asked` for, or a folder in it, to the commit of its revision now. Raises SourceError."""
    repo_id, revision = asked.repo_id, asked.revision or None

    def pin() -> tuple[Place, bool | None]:
        info = hub.api.model_info(repo_id, revision=revision)
        named = {"store": "hub", "inside": asked.inside, "repo_id": info.id, "revision": parsed(SHA, info.sha)}
        if info.gated:
            hub.may(repo_id)
        return parsed(_REF, named), _is_hidden(info)

    ref, is_hidden = hub.ask(repo_id, SourceError, pin)
    is_own = hub.ask(repo_id, SourceError, lambda: is_reached(hub, ref, revision))
    unreached = () if is_own else (f"{ref.repo_id}@{ref.revision}",)
    # If the Hub does not say, the repo does not count as public.
    return HubSource(hub, ref, is_private=is_hidden is not False, unreached=unreached)


def _is_hidden(info: "ModelInfo") -> bool | None:
    return bool(info.private or info.gated) or (None if None in (info.private, info.gated) else False)


class HubSource(Source):
    """The files of a Hub repo at one commit, or of one folder in it."""

    folder: Path | None = None
    links_out: tuple[str, ...] = ()
    requests = 0
    bytes_read = 0
    _is_committed = True  # Plain HTTP leads only to committed files.

    def __init__(
        self,
        hub: Hub,
        ref: Place,
        *,
        is_private: bool | None = None,
        unreached: tuple[str, ...] = (),
        files: tuple[FileEntry, ...] | None = None,
    ) -> None:
        """Read the repo at the revision of `ref`, which must not move. Without `files`, list all of them."""
        self.ref, self.is_private, self.unreached = ref, is_private, unreached
        self.batch_bytes, self.join_gap_bytes = HUB_BATCH_BYTES, HUB_JOIN_GAP_BYTES
        self.ranges_at_once = RANGES_AT_ONCE
        self._hub = hub
        self._lock = Lock()
        self._group: Any = None
        self._xet_fails = self._has_sent = False
        self.files = tuple(hub.ask(ref.repo_id, SourceError, self._list)) if files is None else files
        self._by_path = {file.path: file for file in self.files}

    @override
    def path(self, file: str) -> None:
        """Return None: no file of a Hub repo is on this disk."""

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield `[start_byte, end_byte)` of `file`, over Xet if it is there, and go on if a stream breaks off.

        Raises SourceError also for bytes of another range or hash, which neither HTTP nor hf-xet 1.8 checks.
        """
        entry = self._entry(file)
        chunks = self._read(entry, start_byte, end_byte)
        return checked(entry, chunks) if (start_byte, end_byte) == (0, entry.bytes) else chunks

    @override
    def closed(self) -> str:
        repo_id, is_hidden = self.ref.repo_id, None
        if self.is_private is not False:
            return ""
        with suppress(SourceError):
            is_hidden = self._hub.ask(repo_id, SourceError, lambda: _is_hidden(self._hub.api.model_info(repo_id)))
        return "" if is_hidden is False else repo_id

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        """Return access to `files` in the store, or their addresses. Raises SourceError if one needs a login."""
        entries = [self._entry(file) for file in files]
        repo_id, revision = self.ref.repo_id, self.ref.revision

        def ask() -> LentSource:
            in_store = self._hub.uses_xet and any(entry.xet_hash for entry in entries)
            grant = self._hub.grant("read", repo_id, revision) if in_store else None
            return LentSource(self.ref, tuple(map(self._lend, entries)), self._hub.endpoint, grant)

        lent = self._hub.ask(repo_id, SourceError, ask)
        of_hub = [entry.file for entry in lent.files if entry.place.startswith(f"{self._hub.endpoint}/")]
        if of_hub and self.is_private is not False:
            message = f"{repo_id} is private or gated, and workers cannot read {of_hub[0]} without a login."
            hint = "Work on one machine, because workers do not get your login. Leave out --workers."
            raise SourceError(message, hint, Remedy("leave_workers_out"))
        return lent

    def _lend(self, entry: FileEntry) -> LentFile:
        if entry.xet_hash and self._hub.uses_xet:
            return LentFile(entry.path, entry.bytes, entry.xet_hash)
        place = self._hub.address_to_lend(self.ref.repo_id, self.ref.revision, self.ref.inside + entry.path)
        return LentFile(entry.path, entry.bytes, place=place)

    def _entry(self, file: str) -> FileEntry:
        entry = self._by_path.get(file)
        if entry is None:
            message = f"{self.ref.name} does not list {file} at {self.ref.revision}."
            raise SourceError(message, "Somebody may have removed it. Start the same job again.")
        return entry

    def _read(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        least = self._hub.least_xet_bytes if self._is_committed else 0
        in_store, only_xet = entry.xet_hash is not None and end_byte - start_byte >= least, least == 0
        position, tries, begun = start_byte, 0, start_byte
        with self._hub.explained(self.ref.repo_id, SourceError):
            while position < end_byte:
                with_xet = in_store and (only_xet or (self._hub.uses_xet and not self._xet_fails))
                try:
                    with self._lock:
                        self.requests += 1
                    # Short ranges: hf-xet holds the bytes of a range in memory, and may stall on a long one.
                    stop = min(end_byte, position + self.batch_bytes)
                    for chunk in (self._xet if with_xet else self._http)(entry, position, stop):
                        position += len(chunk)
                        if position > stop:
                            message = f"The Hub sent more bytes of {entry.path} than this tool asked for."
                            raise SourceError(message, "Start the same job again later.")
                        if position - begun >= LEAST_BYTES:  # else one that breaks off after each byte never ends
                            begun, tries = position, 0
                        with self._lock:
                            self.bytes_read += len(chunk)
                            self._has_sent |= entry.sha256 is not None
                        yield chunk
                    if position < stop:
                        raise ConnectionError("the stream ended early")
                except StoreAway:
                    if only_xet:
                        raise
                    tries = NETWORK_TRIES - 2  # the Hub may send its readers to the same place
                except Exception as error:
                    if not (may_pass(error) or isinstance(error, PermissionError)):
                        raise
                    self._group = None
                    self._hub.forget_access()
                    # A host that has never sent weights, and says nothing, is given a minute.
                    tries += 1 if self._has_sent or not isinstance(error, httpx2.TimeoutException) else 3
                    self._xet_fails = self._xet_fails or (with_xet and tries >= XET_TRIES)
                    wait_to_retry(error, tries)

    def _list(self) -> list[FileEntry]:
        repo_id, folder, files = self.ref.repo_id, self.ref.inside, list[FileEntry]()
        tree = self._hub.api.list_repo_tree(repo_id, folder[:-1] or None, recursive=True, revision=self.ref.revision)
        for file in listed_files(tree):
            if not file.path.startswith(folder):  # a Hub need not give what was asked for
                continue
            file = replace(file, path=file.path.removeprefix(folder)) if folder else file
            problem = name_problem(file.path) or ("" if is_plain(file.path) else "leads out of the repo")
            if problem:
                message = f"The name of the file {shown_name(file.path)} in {self.ref.repo_id} {problem}."
                raise SourceError(message, "Ask the owner of the repo to rename or remove it.")
            files.append(file)
            if len(files) > MAX_FILES:
                message = f"{self.ref.repo_id} holds more than {MAX_FILES} files."
                raise SourceError(message, "Name a repo that holds one model.")
        return sorted(files, key=lambda file: file.path)

    def _http(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        url = self._hub.address(self.ref.repo_id, self.ref.revision, self.ref.inside + entry.path)
        asked = {"Range": f"bytes={start_byte}-{end_byte - 1}", "Accept-Encoding": "identity"}
        timeout = httpx2.Timeout(READ_TIMEOUT_SECONDS, connect=CONNECT_SECONDS)
        options: dict[str, Any] = {"follow_redirects": True, "timeout": timeout}
        with session().stream("GET", url, headers={**self._hub.headers, **asked}, **options) as response:
            hf_raise_for_status(response)
            # After a redirect to a store, the Hub's own answer is the first. Only that one names a commit.
            self._refuse_changed(entry, [*response.history, response][0].headers)
            content_range = response.headers.get("Content-Range", "")
            self._check_range(entry, response.status_code, content_range, start_byte, end_byte)
            yield from response.iter_raw()  # as they arrive: a retry asks only for the rest

    def _refuse_changed(self, entry: FileEntry, headers: Mapping[str, str]) -> None:
        commit = headers.get("X-Repo-Commit", "")
        content = headers.get("X-Linked-Etag", "").strip('"')
        is_other_commit = re.fullmatch("[0-9a-f]{40}", self.ref.revision) and commit not in ("", self.ref.revision)
        if is_other_commit or (re.fullmatch("[0-9a-f]{64}", content) and entry.sha256 not in (None, content)):
            message = f"{entry.path} is no longer the file that the Hub listed at {self.ref.revision}."
            raise SourceError(message, "Start the same job again. If that does not help, tell the owner of the repo.")

    def _check_range(self, entry: FileEntry, status: int, content_range: str, start_byte: int, end_byte: int) -> None:
        if status == 200 and (start_byte, end_byte) == (0, entry.bytes):
            return
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", content_range)
        if status != 206 or not match or tuple(map(int, match.groups())) != (start_byte, end_byte - 1, entry.bytes):
            raise SourceError(
                f"The Hub did not send bytes {start_byte} to {end_byte} of {entry.path} as asked "
                f"(status {status}, {content_range or 'no Content-Range'}).",
                "A proxy may ignore byte ranges. Start the same job again from another network.",
            )

    def _xet(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        from hf_xet import XetFileInfo

        with self._lock:
            if self._group is None:
                self._group = self._hub.download_from(self.ref.repo_id, self.ref.revision)
            group = self._group
        yield from group.download_stream(XetFileInfo(entry.xet_hash, entry.bytes), start_byte, end_byte)


class ArrivingSource(HubSource):
    """The finished shards of a job that is under way, by their names in the store. No commit needs to show them."""

    _is_committed = False

    def __init__(self, hub: Hub, ref: Place, files: Iterable[FileEntry]) -> None:
        super().__init__(hub, ref, files=tuple(files))
        self._news = Condition()
        self._is_over = False

    def add(self, file: FileEntry) -> None:
        """Let reads of `file` begin."""
        with self._news:
            self._by_path[file.path] = file
            self.files = tuple(self._by_path.values())
            self._news.notify_all()

    def end(self) -> None:
        """Let reads of all other files fail."""
        with self._news:
            self._is_over = True
            self._news.notify_all()

    @override
    def _entry(self, file: str) -> FileEntry:
        with self._news:
            self._news.wait_for(lambda: self._is_over or file in self._by_path)
        return super()._entry(file)


def checked(entry: FileEntry, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks`, a whole file. Raises DamagedError at the end if its hash is not the stated one."""
    stated = entry.sha256 or entry.git_sha1
    # Git puts the kind and the length before the content (gitformat-loose, "blob").
    digest = hashlib.sha256() if entry.sha256 else hashlib.sha1(b"blob %d\0" % entry.bytes, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if stated and digest.hexdigest() != stated:
        hint = "Start the same job again. If that does not help, ask the owner of the repo to upload the file again."
        raise DamagedError(f"{entry.path} arrived damaged: its hash is not the one that the Hub states.", hint)
