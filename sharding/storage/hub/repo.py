"""Ask one repo of a Hub the questions of a destination, and commit to it."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import quote

from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from pydantic import BaseModel

from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.origin import Place
from sharding.core.protocols import Inputs
from sharding.core.values import FileEntry, ShardRecord
from sharding.formats.names import is_weights
from sharding.storage.hub.answers import FLAG, SHA, OddAnswer, Sha, is_without, listed_files, parsed
from sharding.storage.hub.client import Hub

COMMITTED_BYTES = 20_000_000
"""Most bytes of side files in a commit, where they are in base64 and several times in memory. The rest is stored."""

STAGING_BRANCH = "shard-my-repo-staging"
OF_EVERY_NEW_REPO = {".gitattributes"}  # What the Hub itself puts into a new repo.

_MODES_AT_ONCE, _COPIES_AT_ONCE = 256, 500  # Most files in one request, as huggingface_hub 2.4 sends them.
_T = TypeVar("_T")


class _Modes(BaseModel):
    class Mode(BaseModel):
        path: str
        uploadMode: Literal["regular", "lfs"]

    files: list[Mode]


class _Copied(BaseModel):
    class NotCopied(BaseModel):
        sha256: str

    failed: list[NotCopied] | None = None


class _Committed(BaseModel):
    commitOid: Sha


@dataclass(frozen=True, slots=True)
class Change:
    """What a commit does to one file, as the Hub's commit endpoint takes it."""

    key: Literal["file", "lfsFile", "deletedFile"]
    path: str
    fields: Mapping[str, str | int]


def stored(record: ShardRecord) -> Change:
    """Return the change that adds a file whose bytes the Hub's store already has."""
    return Change("lfsFile", record.file, {"algo": "sha256", "oid": record.sha256, "size": record.bytes})


def small(path: str, data: bytes) -> Change:
    """Return the change that adds a file to git itself."""
    return Change("file", path, {"content": base64.b64encode(data).decode(), "encoding": "base64"})


def deleted(path: str) -> Change:
    """Return the change that deletes a file."""
    return Change("deletedFile", path, {})


class HubRepo:
    """A repo, which may not exist yet. Retries failures that may pass. All methods raise DestinationError."""

    def __init__(
        self,
        hub: Hub,
        repo_id: str,
        before_commit: Callable[[], None] = lambda: None,
        store: Callable[[str, Iterable[bytes]], ShardRecord] | None = None,
    ) -> None:
        """Use `repo_id`. An error from `before_commit` prevents a commit. `store` puts a file into the Hub's store."""
        self.hub, self.repo_id = hub, repo_id
        self._before_commit, self._store = before_commit, store

    def ask(self, question: Callable[[], _T]) -> _T:
        """Return the result of `question`."""
        return self.hub.ask(self.repo_id, DestinationError, question)

    def exists(self) -> bool:
        """Return whether the repo exists."""
        return self.ask(lambda: self.hub.api.repo_exists(self.repo_id))

    def refuse_without_refs(self) -> None:
        """Raise DestinationError if the Hub cannot list the branches of a repo. This repo need not exist yet."""

        def look() -> None:
            with suppress(RepositoryNotFoundError):
                self.hub.refs(self.repo_id)

        self.ask(look)

    def is_private(self) -> bool:
        """Return whether it is hidden from others."""
        return self.ask(lambda: parsed(FLAG, self.hub.api.model_info(self.repo_id).private))

    def refuse_renamed(self) -> None:
        """Raise DestinationError if the Hub knows the repo by another name, which may be that of the source."""
        now = self.ask(lambda: str(self.hub.api.model_info(self.repo_id).id))
        if now != self.repo_id:
            message = f"The Hub calls {self.repo_id} {now[:200]} now."
            raise DestinationError(message, "Name the destination as the Hub does, or choose a new name.")

    def branches(self) -> dict[str, str]:
        """Return the commit of each branch, `main` among them."""
        return self.ask(self._branches)

    def _branches(self) -> dict[str, str]:
        commits = {branch.name: branch.commit for branch in self.hub.refs(self.repo_id).branches or ()}
        if "main" not in commits:
            raise OddAnswer("does not list a branch main")
        return commits

    def files(self, revision: str) -> dict[str, FileEntry]:
        """Return all files at `revision`, by path."""

        def look() -> dict[str, FileEntry]:
            tree = self.hub.api.list_repo_tree(self.repo_id, recursive=True, revision=revision)
            return {file.path: file for file in listed_files(tree)}

        return self.ask(look)

    def last_change(self, revision: str, path: str) -> str | None:
        """Return the commit that last changed a file, None if the Hub does not say."""

        def look() -> str | None:
            for file in self.hub.api.get_paths_info(self.repo_id, path, revision=revision, expand=True):
                return parsed(SHA, file.last_commit.oid) if file.last_commit else None
            raise OddAnswer(f"lists {path}, but has no details about it")

        return self.ask(look)

    def read(self, revision: str, path: str, max_bytes: int = MAX_REPORT_BYTES) -> bytes:
        """Return a small file, cut off at `max_bytes`."""
        return self.ask(lambda: self.hub.get(self.repo_id, revision, path, max_bytes))

    def added(self, branch: str, files: Mapping[str, bytes]) -> list[Change]:
        """Return the changes that add `files`, each to git or to the store, as the Hub wants it. Uploads the latter."""
        assert self._store, "only a destination adds files"
        in_store = self.ask(lambda: set(self._meant_for_store(branch, files)))
        return [
            stored(self._store(path, [data])) if path in in_store else small(path, data) for path, data in files.items()
        ]

    def _meant_for_store(self, branch: str, files: Mapping[str, bytes]) -> Iterator[str]:
        wishes = [
            {"path": path, "size": len(data), "sample": base64.b64encode(data[:512]).decode()}
            for path, data in files.items()
            if data  # the store takes no empty file
        ]
        for batch in _batches(wishes, _MODES_AT_ONCE):
            answer = self.hub.send("POST", self._api(f"preupload/{quote(branch, safe='')}"), json={"files": batch})
            yield from (file.path for file in parsed(_Modes, answer.json()).files if file.uploadMode == "lfs")

    def copied(self, files: Iterable[FileEntry], origin: Inputs) -> list[Change]:
        """Return the changes that add those of `files` that the Hub's store copies here; others have to be sent."""
        in_store = [file for file in files if file.xet_hash and file.sha256]
        changes = list[Change]()
        for number in {file.source for file in in_store}:
            source = origin.sources[number].ref
            for batch in _batches([file for file in in_store if file.source == number], _COPIES_AT_ONCE):
                failed = self.ask(lambda source=source, batch=batch: self._not_copied(source, batch))  # type: ignore[misc]
                copied = (file for file in batch if file.sha256 not in failed)
                changes += [stored(ShardRecord(file.path, file.bytes, file.sha256 or "", {})) for file in copied]
        return changes

    def _not_copied(self, source: Place, files: Sequence[FileEntry]) -> set[str | None]:
        wishes = [
            {"xetHash": file.xet_hash, "sha256": file.sha256, "filename": source.inside + file.at} for file in files
        ]
        url = f"{self.hub.endpoint}/api/models/{source.repo_id}/lfs-files/duplicate"
        question = {"target": {"type": "model", "name": self.repo_id}, "files": wishes}
        try:
            answer = self.hub.send("POST", url, json=question).json()
        except HfHubHTTPError as error:
            if not is_without(error):
                raise
            return {file.sha256 for file in files}
        return {file.sha256 for file in parsed(_Copied, answer).failed or ()}

    def commit(self, branch: str, parent: str, title: str, changes: Iterable[Change]) -> str:
        """Return the commit that adds to `branch`, which must be at `parent`. Raises the client's errors."""
        # The client's own method would ask for each file where the Hub wants it, and upload it.
        lines = [
            {"key": "header", "value": {"summary": title, "description": "", "parentCommit": parent}},
            *({"key": change.key, "value": {"path": change.path, **change.fields}} for change in changes),
        ]
        body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        self._before_commit()  # as late as this: nobody can see uploaded files before
        url, kind = self._api(f"commit/{quote(branch, safe='')}"), {"Content-Type": "application/x-ndjson"}
        return parsed(_Committed, self.hub.send("POST", url, kind, content=body).json()).commitOid

    def _api(self, path: str) -> str:
        return f"{self.hub.endpoint}/api/models/{self.repo_id}/{path}"

    def history(self, commit: str) -> list[tuple[str, str]]:
        """Return the titles and ids of `commit` and those before it, newest first."""
        return self.ask(lambda: [(entry.title, entry.id) for entry in self.hub.commits(self.repo_id, commit)])

    def other_refs(self) -> list[str]:
        """Return the names of the branches that are neither main nor for staging, of all tags and pull requests."""
        refs = self.ask(lambda: self.hub.refs(self.repo_id, pull_requests=True))
        branches = {branch.name for branch in refs.branches or ()} - {"main", STAGING_BRANCH}
        return [*branches, *(ref.name for ref in (*(refs.tags or ()), *(refs.pull_requests or ())))]


def free_name(hub: Hub, repo_id: str) -> str:
    """Return the first of `repo_id`, `repo_id`-2, … `repo_id`-99 that no repo has yet. Raises DestinationError."""
    for name in (repo_id, *(f"{repo_id}-{number}" for number in range(2, 100))):
        if not HubRepo(hub, name).exists():
            return name
    raise DestinationError(f"{repo_id} and {repo_id}-2 to {repo_id}-99 are taken.", "Choose another name.")


def fit_for_commit(files: Iterable[FileEntry]) -> tuple[list[FileEntry], list[FileEntry]]:
    """Return the side files that a commit itself may carry, smallest first, and those that it may not.

    It carries no weights, because a Hub keeps them in its store whatever their size.

    >>> files = [FileEntry("a", 15_000_000), FileEntry("b", 9), FileEntry("c", 16_000_000), FileEntry("d.bin", 1)]
    >>> [[file.path for file in some] for some in fit_for_commit(files)]
    [['b', 'a'], ['d.bin', 'c']]
    """
    fit, too_much, count = list[FileEntry](), list[FileEntry](), 0
    for file in sorted(files, key=lambda file: file.bytes):
        count += file.bytes
        (fit if count <= COMMITTED_BYTES and not is_weights(file.path) else too_much).append(file)
    return fit, too_much


def has_content(file: FileEntry | None, data: bytes) -> bool:
    """Return whether a listed file is `data`, by its SHA-256 or its git hash."""
    if file and file.sha256:
        return file.sha256 == hashlib.sha256(data).hexdigest()
    # Git puts the kind and the length before the content (gitformat-loose, "blob").
    git_sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    return file is not None and file.git_sha1 == git_sha1


def is_alike(file: FileEntry, other: FileEntry | None) -> bool:
    """Return whether two listed files have the same content."""
    return other is not None and (file.sha256, file.git_sha1) == (other.sha256, other.git_sha1)


def holds(file: FileEntry | None, record: ShardRecord) -> bool:
    """Return whether a listed file is the shard of `record`."""
    return file is not None and (file.sha256, file.bytes) == (record.sha256, record.bytes)


def _batches(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
