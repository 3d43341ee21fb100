"""Read a repo of a Hub at one pinned commit: its files, and any range of their bytes."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter
from typing_extensions import override

from sharding.core.errors import DamagedError, Remedy, SourceError
from sharding.core.lent import LentFile, LentSource
from sharding.core.limits import (
    HUB_BATCH_BYTES,
    HUB_JOIN_GAP_BYTES,
    LEAST_BYTES,
    MAX_FILES,
    RANGES_AT_ONCE,
    READ_TIMEOUT_SECONDS,
)
from sharding.core.protocols import Source
from sharding.core.text import name_problem, shown_name
from sharding.core.values import FileEntry, RepoRef
from sharding.formats.names import is_plain
from sharding.storage.hub.answers import checked_commit, listed_files, parsed
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import is_reached
from sharding.storage.hub.retry import may_pass, wait_to_retry

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo

_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_COMMIT = re.compile("[0-9a-f]{40}")
_SHA256 = re.compile("[0-9a-f]{64}")
_REF = TypeAdapter(RepoRef)


def open_repo(hub: Hub, repo_id: str, revision: str | None = None) -> "HubSource":
    """Pin `repo_id` to the commit that `revision` (a branch, tag or commit; None: main) is at now.

    Raises SourceError where it is not there, is gated, or the login does not reach it.
    """

    def pin() -> tuple[RepoRef, bool | None, bool]:
        info = hub.api.model_info(repo_id, revision=revision)
        named = {"kind": "hub", "repo_id": info.id, "revision": checked_commit(info.sha)}
        return parsed(_REF, named), _is_hidden(info), bool(info.gated)

    ref, is_hidden, is_gated = hub.ask(repo_id, SourceError, pin)
    if is_gated:
        hub.ask(repo_id, SourceError, lambda: hub.may(repo_id))
    is_own = hub.ask(repo_id, SourceError, lambda: is_reached(hub, ref, revision))
    unreached = () if is_own else (f"{ref.repo_id}@{ref.revision}",)
    # What the Hub does not say is not taken for public.
    return HubSource(hub, ref, is_private=is_hidden is not False, unreached=unreached)


def _is_hidden(info: "ModelInfo") -> bool | None:
    """Return whether a repo is private or gated, None where the Hub does not say both."""
    return bool(info.private or info.gated) or (None if None in (info.private, info.gated) else False)


class HubSource(Source):
    """The files of a Hub repo at one commit."""

    folder: Path | None = None
    links_out: tuple[str, ...] = ()
    requests = 0
    bytes_read = 0

    def __init__(
        self,
        hub: Hub,
        ref: RepoRef,
        *,
        is_private: bool | None = None,
        unreached: tuple[str, ...] = (),
        files: tuple[FileEntry, ...] | None = None,
    ) -> None:
        """Read what `ref` names: a repo at a revision that does not move. `files` are all of it unless they are given.

        Raises SourceError.
        """
        self.ref = ref
        self.is_private = is_private
        self.unreached = unreached
        self.batch_bytes = HUB_BATCH_BYTES
        self.join_gap_bytes = HUB_JOIN_GAP_BYTES
        self.ranges_at_once = RANGES_AT_ONCE
        self._hub = hub
        self._lock = Lock()
        self._group: Any = None
        self.files = tuple(hub.ask(ref.repo_id, SourceError, self._list)) if files is None else files
        self._by_path = {file.path: file for file in self.files}

    @override
    def path(self, file: str) -> None:
        """Return None: nothing of a Hub repo lies on this disk."""

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of `file`, through Xet where the repo has it.

        A stream that is cut is taken up again at the byte that it reached. Raises SourceError when that
        does not help, the server sends something else than it was asked for, or a file that is read whole is
        not the one that the Hub lists. Neither HTTP nor hf-xet 1.8 compares what arrives with a hash.
        """
        entry = self._entry(file)
        chunks = self._read(entry, start_byte, end_byte)
        return checked(entry, chunks) if (start_byte, end_byte) == (0, entry.bytes) else chunks

    @override
    def closed(self) -> str:
        """Return its name where it was public and is not known to be so now, else ""."""
        repo_id, is_hidden = self.ref.repo_id, None
        if self.is_private is not False:
            return ""
        with suppress(SourceError):
            is_hidden = self._hub.ask(repo_id, SourceError, lambda: _is_hidden(self._hub.api.model_info(repo_id)))
        return "" if is_hidden is False else repo_id

    @override
    def lend(self, files: Iterable[str]) -> LentSource:
        """Return access to `files` in the store, or where they lie; that of what the Hub itself keeps is a login.

        Raises SourceError where only somebody who is signed in can read one of them.
        """
        entries = [self._entry(file) for file in files]
        repo_id, revision = self.ref.repo_id, self.ref.revision

        def ask() -> LentSource:
            in_store = any(entry.xet_hash for entry in entries)
            grant = self._hub.grant("read", repo_id, revision) if in_store else None
            return LentSource(self.ref, tuple(map(self._lend, entries)), self._hub.endpoint, grant)

        lent = self._hub.ask(repo_id, SourceError, ask)
        of_hub = [entry.file for entry in lent.files if entry.place.startswith(f"{self._hub.endpoint}/")]
        if of_hub and self.is_private is not False:
            message = f"{repo_id} is private or gated, and its Hub shows {of_hub[0]} to nobody without a login."
            hint = "Other machines get none: work on it without --workers."
            raise SourceError(message, hint, Remedy("leave_workers_out"))
        return lent

    def _lend(self, entry: FileEntry) -> LentFile:
        if entry.xet_hash:
            return LentFile(entry.path, entry.bytes, entry.xet_hash)
        place = self._hub.address_to_lend(self.ref.repo_id, self.ref.revision, entry.path)
        return LentFile(entry.path, entry.bytes, place=place)

    def _entry(self, file: str) -> FileEntry:
        entry = self._by_path.get(file)
        if entry is None:
            message = f"{self.ref.repo_id} does not list {file} at {self.ref.revision}."
            raise SourceError(message, "Somebody may have removed it; start the same job again.")
        return entry

    def _read(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        with_xet = entry.xet_hash is not None and end_byte - start_byte >= self._hub.least_xet_bytes
        position, tries, begun = start_byte, 0, start_byte
        with self._hub.explained(self.ref.repo_id, SourceError):
            while position < end_byte:
                try:
                    # Bounded ranges: hf-xet holds what it has of a range in memory, and may stall on a long one.
                    stop = min(end_byte, position + self.batch_bytes)
                    for chunk in (self._xet if with_xet else self._http)(entry, position, stop):
                        position += len(chunk)
                        if position > stop:
                            message = f"The Hub sent more of {entry.path} than it was asked for."
                            raise SourceError(message, "Run again later.")
                        if position - begun >= LEAST_BYTES:  # or one that breaks off after each byte would never end
                            begun, tries = position, 0
                        with self._lock:
                            self.bytes_read += len(chunk)
                        yield chunk
                    if position < stop:
                        raise ConnectionError("the stream ended early")
                except Exception as error:
                    if not (may_pass(error) or isinstance(error, PermissionError)):
                        raise
                    self._group = None
                    self._hub.forget_access()
                    tries += 1
                    wait_to_retry(error, tries)

    def _list(self) -> list[FileEntry]:
        tree = self._hub.api.list_repo_tree(self.ref.repo_id, recursive=True, revision=self.ref.revision)
        files = []
        for file in listed_files(tree):
            problem = name_problem(file.path) or ("" if is_plain(file.path) else "leads elsewhere")
            if problem:
                message = f"The name of the file {shown_name(file.path)} in {self.ref.repo_id} {problem}."
                raise SourceError(message, "Whoever owns the repo should rename or remove it.")
            files.append(file)
            if len(files) > MAX_FILES:
                message = f"{self.ref.repo_id} holds more than {MAX_FILES} files."
                raise SourceError(message, "It is no repo of one model.")
        return sorted(files, key=lambda file: file.path)

    def _http(self, entry: FileEntry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        from huggingface_hub.utils import get_session, hf_raise_for_status

        self._count()
        url = self._hub.address(self.ref.repo_id, self.ref.revision, entry.path)
        asked = {"Range": f"bytes={start_byte}-{end_byte - 1}", "Accept-Encoding": "identity"}
        headers = {**self._hub.headers, **asked}
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=READ_TIMEOUT_SECONDS
        ) as response:
            hf_raise_for_status(response)
            # Redirected to a store, the Hub's own answer is the first; only that speaks of commits.
            self._refuse_changed(entry, [*response.history, response][0].headers)
            self._check_range(
                entry, response.status_code, response.headers.get("Content-Range", ""), start_byte, end_byte
            )
            yield from response.iter_raw()  # as it comes: what has come is not asked for again

    def _refuse_changed(self, entry: FileEntry, headers: Mapping[str, str]) -> None:
        """Raise SourceError where an answer says that it is of another commit, or of another content."""
        commit = headers.get("X-Repo-Commit", "")
        content = headers.get("X-Linked-Etag", "").strip('"')
        is_other_commit = _COMMIT.fullmatch(self.ref.revision) and commit not in ("", self.ref.revision)
        if is_other_commit or (_SHA256.fullmatch(content) and entry.sha256 not in (None, content)):
            raise SourceError(
                f"{entry.path} is not any more what the Hub listed at {self.ref.revision}.",
                "Run again; if that does not help, tell whoever owns the repo.",
            )

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


def checked(entry: FileEntry, chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks`, a whole file. Raises SourceError at the end where its hash is not the stated one."""
    stated = entry.sha256 or entry.git_sha1
    # Git puts the kind and the length before the content (gitformat-loose, "blob").
    digest = hashlib.sha256() if entry.sha256 else hashlib.sha1(b"blob %d\0" % entry.bytes, usedforsecurity=False)
    for chunk in chunks:
        digest.update(chunk)
        yield chunk
    if stated and digest.hexdigest() != stated:
        raise DamagedError(
            f"{entry.path} arrived damaged: its bytes are not those whose hash the Hub states.",
            "Run again; if that does not help, whoever owns the repo should upload the file again.",
        )
