"""Ask one repo of a Hub the questions of a destination, and commit to it."""

import hashlib
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils.sha import git_hash

from sharding.core.errors import DestinationError
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.repo import Repo
from sharding.core.values import FileEntry, ShardRecord
from sharding.formats.names import is_weights
from sharding.storage.hub.answers import checked_commit, checked_flag, listed_files
from sharding.storage.hub.client import Hub
from sharding.storage.hub.private import quietly
from sharding.storage.hub.retry import OddAnswer

COMMITTED_BYTES = 20_000_000
"""Most bytes of side files in a commit itself, where they are in base64 and several times in memory. The tokenizers
that repos keep in git are smaller. Beyond this limit the largest files go to the store."""


Operation = CommitOperationAdd | CommitOperationCopy | CommitOperationDelete

_T = TypeVar("_T")

_IGNORE_NOTHING = "# nothing\n"
"""A `.gitignore` for the Hub to use. Instead of an empty one, it may use the one in the repo."""


class HubRepo:
    """A repo, which may not exist yet. Retries failures that may pass. All methods raise DestinationError."""

    def __init__(self, hub: Hub, repo_id: str) -> None:
        """Use the repo `repo_id`. Asks nothing. An error from `before_commit` prevents a commit."""
        self.hub = hub
        self.repo_id = repo_id
        self.before_commit: Callable[[], None] = lambda: None

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
        return self.ask(self.is_private_now)

    def is_private_now(self) -> bool:
        """Return the same, without retries. Raises the client's errors."""
        return checked_flag(self.hub.api.model_info(self.repo_id).private)

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
        branches = self.hub.refs(self.repo_id).branches or ()
        commits = {branch.name: checked_commit(branch.commit) for branch in branches}
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
                return checked_commit(file.last_commit.oid) if file.last_commit else None
            raise OddAnswer(f"lists {path}, but has no details about it")

        return self.ask(look)

    def read(self, revision: str, path: str, max_bytes: int = MAX_REPORT_BYTES) -> bytes:
        """Return a small file, cut off at `max_bytes`."""
        return self.ask(lambda: self.hub.get(self.repo_id, revision, path, max_bytes))

    def commit(self, branch: str, parent: str, message: str, operations: Sequence[Operation]) -> str:
        """Return the commit that adds to `branch`, which must be at `parent`. Raises the client's errors.

        Without this method's own `.gitignore`, the client would silently leave out the files that a `.gitignore` names.
        """
        additions = [operation for operation in operations if isinstance(operation, CommitOperationAdd)]
        upload = self.hub.api.preupload_lfs_files
        quietly(
            lambda: upload(
                self.repo_id, additions, revision=branch, gitignore_content=_IGNORE_NOTHING, free_memory=False
            )
        )
        self.before_commit()  # as late as this: nobody can see uploaded files before
        info = self.hub.api.create_commit(
            self.repo_id, operations, commit_message=message, revision=branch, parent_commit=parent
        )
        return checked_commit(info.oid)

    def history(self, commit: str) -> list[tuple[str, str]]:
        """Return the titles and ids of `commit` and those before it, newest first."""
        commits = self.ask(lambda: list(self.hub.commits(self.repo_id, commit)))
        return [(entry.title, entry.id) for entry in commits]

    def other_refs(self, known: Collection[str]) -> list[str]:
        """Return the names of the branches that are not `known`, and of all tags and pull requests."""
        refs = self.ask(lambda: self.hub.refs(self.repo_id, pull_requests=True))
        branches = {branch.name for branch in refs.branches or ()} - set(known)
        return [*branches, *(ref.name for ref in (*(refs.tags or ()), *(refs.pull_requests or ())))]


def fit_for_commit(files: Iterable[FileEntry]) -> tuple[list[FileEntry], list[FileEntry]]:
    """Return the side files that fit into a commit, smallest first, and those that do not.

    A commit copies a file on the server, or carries it itself up to a limit. It carries no weights, because a Hub keeps
    them in its store whatever their size.

    >>> files = [FileEntry("a", 15_000_000), FileEntry("b", 9), FileEntry("c", 16_000_000)]
    >>> [[file.path for file in some] for some in fit_for_commit(files)]
    [['b', 'a'], ['c']]
    """
    fit, too_much, count = list[FileEntry](), list[FileEntry](), 0
    for file in sorted(files, key=lambda file: file.bytes):
        count += 0 if file.xet_hash else file.bytes
        is_carried = count <= COMMITTED_BYTES and not is_weights(file.path)
        (fit if file.xet_hash or is_carried else too_much).append(file)
    return fit, too_much


def copied(file: FileEntry, origin: Repo) -> CommitOperationAdd | CommitOperationCopy:
    """Return the operation that copies a side file. If its bytes are in the Hub's store, the server copies it."""
    if file.xet_hash:
        return CommitOperationCopy(
            file.at,
            file.path,
            src_revision=origin.sources[file.source].ref.revision,
            src_repo_id=origin.sources[file.source].ref.repo_id,
            src_repo_type="model",
        )
    return CommitOperationAdd(file.path, b"".join(origin.read(file.path, 0, file.bytes)))


def has_moved(error: Exception) -> bool:
    """Return whether a Hub has refused a commit because its branch is no longer at the named parent."""
    return isinstance(error, HfHubHTTPError) and error.response.status_code == 412


def has_content(file: FileEntry | None, data: bytes) -> bool:
    """Return whether a listed file is `data`, by its SHA-256 or its git hash."""
    if file and file.sha256:
        return file.sha256 == hashlib.sha256(data).hexdigest()
    return file is not None and file.git_sha1 == git_hash(data)


def is_alike(file: FileEntry, other: FileEntry | None) -> bool:
    """Return whether two listed files have the same content."""
    return other is not None and (file.sha256, file.git_sha1) == (other.sha256, other.git_sha1)


def holds(file: FileEntry | None, record: ShardRecord) -> bool:
    """Return whether a listed file is the shard of `record`."""
    return file is not None and (file.sha256, file.bytes) == (record.sha256, record.bytes)
