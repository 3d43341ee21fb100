"""Write a checkpoint into a repo of a Hub so that `main` shows it only once it is complete.

While a job runs, its shards stand on a staging branch of the repo, each with its record, so that any
machine can go on from there. Publishing is one commit on `main`; the branch goes after it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from threading import Semaphore

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.lfs import UploadInfo

from sharding.errors import DestinationError
from sharding.events import Published
from sharding.files import REPORT_NAME
from sharding.hub import SIGN_IN, Hub
from sharding.hub_writers import LfsShardWriter, XetShardWriter
from sharding.limits import HEADER_THREADS, MAX_REPORT_BYTES
from sharding.protocols import Source
from sharding.values import FileEntry, RepoRef, ShardRecord

STAGING_BRANCH = "shard-my-repo-staging"
RECORDS = "sharding_records/"
"""Folder on the staging branch: `plan.json`, and a `ShardRecord` as JSON for every finished shard."""

_OF_EVERY_NEW_REPO = {".gitattributes"}


class HubDestination:
    """A repo of a Hub. See `protocols.Destination`."""

    def __init__(self, hub: Hub, name: str, *, private: bool, restart: bool = False) -> None:
        """Aim at `name` ("owner/name", or "name" in one's own namespace). Changes nothing on the Hub.

        `private` is the visibility of a new repo; one that exists keeps its own. Raises DestinationError
        where nobody is signed in.
        """
        self.disk_bytes_written = 0
        self.bytes_uploaded = 0
        self.bytes_deduplicated = 0
        self._hub = hub
        self._private = private
        self._restart = restart
        self._created = False
        self._staging_made = False
        self._finished: set[str] = set()
        self._parent: str | None = None
        self._stale: list[str] = []
        self._has_xet = True
        self._one_at_a_time = Semaphore()
        self._open: list[XetShardWriter | LfsShardWriter] = []
        if not hub.is_signed_in:
            raise DestinationError(f"Nobody is signed in, so nothing can be pushed to {name}.", f"First {SIGN_IN}")
        with hub.explained(name, DestinationError):
            self._me = hub.api.whoami()
        self.ref = RepoRef("hub", name if "/" in name else f"{self._me['name']}/{name}", "")

    @property
    def has_finished_shards(self) -> bool:
        """Whether a later run would find something to go on from."""
        return bool(self._finished)

    def done(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the shards of plan `plan_id` that an earlier run finished, by file name. Changes nothing.

        Raises DestinationError where the repo may not be written, holds what this tool did not write, or
        has an unfinished job of another plan staged.
        """
        repo_id = self.ref.repo_id
        with self._hub.explained(repo_id, DestinationError):
            self._refuse_foreign_namespace()
            if not self._hub.api.repo_exists(repo_id):
                return {}
            self._hub.api.auth_check(repo_id, write=True)
            branches = {branch.name: branch.target_commit for branch in self._hub.api.list_repo_refs(repo_id).branches}
            self._parent = branches.get("main")
            self._refuse_foreign(staged=STAGING_BRANCH in branches)
            if STAGING_BRANCH not in branches:
                return {}
            self._staging_made = True
            return self._staged_records(plan_id)

    def prepare(self, plan_id: str, keep: Iterable[ShardRecord], new_bytes: int) -> None:
        """Create the repo and the staging branch where they are not there yet.

        Raises DestinationError where the Hub does not allow it.
        """
        api, repo_id = self._hub.api, self.ref.repo_id
        self._finished = {record.file for record in keep}
        with self._hub.explained(repo_id, DestinationError):
            if self._parent is None:
                api.create_repo(repo_id, private=True)
                self._created = True
                self._parent = api.model_info(repo_id).sha
            self._has_xet = self._hub.has_xet(repo_id)
            if self._staging_made and not self._finished:
                api.delete_branch(repo_id, branch=STAGING_BRANCH)
                self._staging_made = False
            if not self._staging_made:
                api.create_branch(repo_id, branch=STAGING_BRANCH, revision=self._parent)
                self._staging_made = True
                plan = json.dumps({"plan_id": plan_id}).encode()
                self._commit("Begin", [CommitOperationAdd(f"{RECORDS}plan.json", plan)])

    def open_shard(self, file: str) -> XetShardWriter | LfsShardWriter:
        """Start a shard: a stream through hf-xet, with nothing on the disk; without Xet, one temporary file."""
        writer: XetShardWriter | LfsShardWriter
        if self._has_xet:
            with self._hub.explained(self.ref.repo_id, DestinationError):
                writer = XetShardWriter(self._hub.upload_to(self.ref.repo_id, STAGING_BRANCH), file, self.finish)
        else:
            self._one_at_a_time.acquire()
            writer = LfsShardWriter(self._upload_lfs, file, self.finish)
        self._open.append(writer)
        return writer

    def staged(self, files: Iterable[str]) -> RepoRef:
        """Return where the finished shards can be read: the staging branch."""
        return RepoRef("hub", self.ref.repo_id, STAGING_BRANCH)

    def publish(
        self,
        records: Mapping[str, ShardRecord],
        side_files: Iterable[FileEntry],
        origin: Source,
        written: Mapping[str, bytes],
    ) -> Published:
        """Show the result: one commit on `main` with everything; then the staging branch goes.

        Raises DestinationError, with everything still staged, where somebody else has changed `main` meanwhile.
        """
        operations = [
            *(_uploaded(record) for record in records.values()),
            *(_copied(file, origin) for file in side_files),
            *(CommitOperationAdd(path, data) for path, data in written.items()),
        ]
        new = {operation.path_in_repo for operation in operations}
        api, repo_id = self._hub.api, self.ref.repo_id
        with self._hub.explained(repo_id, DestinationError):
            commit = api.create_commit(
                repo_id,
                [*operations, *(CommitOperationDelete(path) for path in self._stale if path not in new)],
                commit_message=f"Shard {origin.ref.repo_id} with Shard My Repo",
                parent_commit=self._parent,
            )
            self.ref = RepoRef("hub", repo_id, commit.oid)
            api.delete_branch(repo_id, branch=STAGING_BRANCH)
        remark = self._show() if self._created and not self._private else ""
        return Published(self.ref, self._hub.page(repo_id), remark)

    def discard(self) -> None:
        """Remove the staging branch, and the repo if this job created it."""
        api, repo_id = self._hub.api, self.ref.repo_id
        with self._hub.explained(repo_id, DestinationError):
            if self._created:
                api.delete_repo(repo_id, missing_ok=True)
            elif self._staging_made:
                api.delete_branch(repo_id, branch=STAGING_BRANCH)
        self._created = self._staging_made = False

    def close(self) -> None:
        """Let go of the repo: shards that are not finished are gone."""
        for writer in self._open:
            writer.abort()

    def finish(self, record: ShardRecord, bytes_uploaded: int, bytes_deduplicated: int) -> None:
        """Commit a shard, whose bytes the Hub's store has, to the staging branch, with its record."""
        line = json.dumps(asdict(record)).encode()
        self._commit(record.file, [_uploaded(record), CommitOperationAdd(f"{RECORDS}{record.file}.json", line)])
        self.bytes_uploaded += bytes_uploaded
        self.bytes_deduplicated += bytes_deduplicated
        self._finished.add(record.file)

    def _upload_lfs(self, operation: CommitOperationAdd) -> None:
        try:
            with self._hub.explained(self.ref.repo_id, DestinationError):
                self._hub.api.preupload_lfs_files(self.ref.repo_id, [operation], revision=STAGING_BRANCH)
            self.bytes_uploaded += operation.upload_info.size
            self.disk_bytes_written += operation.upload_info.size
        finally:
            self._one_at_a_time.release()

    def _commit(self, message: str, operations: Sequence[CommitOperationAdd]) -> None:
        with self._hub.explained(self.ref.repo_id, DestinationError):
            self._hub.api.create_commit(self.ref.repo_id, operations, commit_message=message, revision=STAGING_BRANCH)

    def _show(self) -> str:
        try:
            self._hub.api.update_repo_settings(self.ref.repo_id, private=False)
        except HfHubHTTPError:
            return f"It stays private, as the login may not change that: {self._hub.page(self.ref.repo_id)}/settings."
        return ""

    def _refuse_foreign_namespace(self) -> None:
        namespace = self.ref.repo_id.split("/")[0]
        mine = [self._me["name"], *(org["name"] for org in self._me.get("orgs", ()))]
        if namespace not in mine:
            raise DestinationError(
                f"{self._me['name']} may not write to the namespace {namespace}.",
                f"Namespaces open to you: {', '.join(mine)}.",
            )

    def _refuse_foreign(self, staged: bool) -> None:
        files = {file.path for file in self._list("main")}
        report = json.loads(self._read("main", REPORT_NAME)) if REPORT_NAME in files else {}
        if staged or report or files <= _OF_EVERY_NEW_REPO:
            self._stale = [path for path in report.get("files", ()) if path in files]
            return
        free = next(
            name for number in range(2, 1000) if not self._hub.api.repo_exists(name := f"{self.ref.repo_id}-{number}")
        )
        raise DestinationError(
            f"{self.ref.repo_id} exists already, and this tool did not write what is in it.", f"A free name is {free}."
        )

    def _staged_records(self, plan_id: str) -> dict[str, ShardRecord]:
        files = {file.path: file for file in self._list(STAGING_BRANCH)}
        plan = json.loads(self._read(STAGING_BRANCH, f"{RECORDS}plan.json")) if f"{RECORDS}plan.json" in files else {}
        if self._restart:
            return {}
        if plan.get("plan_id") != plan_id:
            raise DestinationError(
                f"{self.ref.repo_id} holds an unfinished job of another plan on its branch {STAGING_BRANCH}.",
                "Finish that one with its own command, or discard it with --restart.",
            )
        paths = [path for path in files if path.startswith(RECORDS) and path.endswith(".safetensors.json")]
        with ThreadPoolExecutor(HEADER_THREADS) as pool:
            texts = list(pool.map(lambda path: self._read(STAGING_BRANCH, path), paths))
        records = [ShardRecord(**json.loads(text)) for text in texts]
        stored = {path: (file.lfs.sha256, file.size) for path, file in files.items() if file.lfs}
        return {record.file: record for record in records if stored.get(record.file) == (record.sha256, record.bytes)}

    def _list(self, revision: str) -> list[RepoFile]:
        tree = self._hub.api.list_repo_tree(self.ref.repo_id, recursive=True, revision=revision)
        return [item for item in tree if isinstance(item, RepoFile)]

    def _read(self, revision: str, path: str) -> bytes:
        return self._hub.get(self.ref.repo_id, revision, path, MAX_REPORT_BYTES)


def _uploaded(record: ShardRecord) -> CommitOperationAdd:
    """Return the operation that commits a file whose bytes the Hub's store already has."""
    operation = CommitOperationAdd(record.file, b"")
    operation.upload_info = UploadInfo(record.bytes, b"", bytes.fromhex(record.sha256))
    operation._upload_mode, operation._is_uploaded, operation._should_ignore = "lfs", True, False
    return operation


def _copied(file: FileEntry, origin: Source) -> CommitOperationAdd | CommitOperationCopy:
    """Return the operation that copies a side file: on the server where the bytes lie in its store."""
    if file.xet_hash:
        return CommitOperationCopy(
            file.path,
            file.path,
            src_revision=origin.ref.revision,
            src_repo_id=origin.ref.repo_id,
            src_repo_type="model",
        )
    return CommitOperationAdd(file.path, origin.path(file.path) or b"".join(origin.read(file.path, 0, file.bytes)))
