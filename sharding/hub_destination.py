"""Write a checkpoint into a repo of a Hub so that `main` shows it only once it is complete.

While a job runs, its shards stand on a staging branch of the repo, each with its record, so that any
machine can go on from there. Publishing is one commit on `main`; the branch goes after it.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from threading import Semaphore
from typing import TypeVar

from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.lfs import UploadInfo

from sharding.errors import DestinationError
from sharding.events import Published
from sharding.files import REPORT_NAME
from sharding.hub import SIGN_IN, Hub
from sharding.hub_writers import LfsShardWriter, XetShardWriter
from sharding.limits import COMMIT_SECONDS, COMMITS_AT_ONCE, MAX_REPORT_BYTES, RANGES_AT_ONCE
from sharding.protocols import Source
from sharding.staging import job_line, parse_job, parse_record, record_line
from sharding.threads import readers
from sharding.values import Discarded, FileEntry, RepoRef, ShardRecord, StagedJob

STAGING_BRANCH = "shard-my-repo-staging"
RECORDS = "sharding_records/"
"""Folder on the staging branch: `job.json`, a `StagedJob`, and a `ShardRecord` for every finished shard."""

_JOB = f"{RECORDS}job.json"

_OF_EVERY_NEW_REPO = {".gitattributes"}

_T = TypeVar("_T")


class HubDestination:
    """A repo of a Hub. See `protocols.Destination`."""

    def __init__(self, hub: Hub, name: str, *, private: bool | None = None, restart: bool = False) -> None:
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
        self._job: StagedJob | None = None
        self._created = False
        self._staging_seen = False
        self._finished: set[str] = set()
        self._unnoted: list[ShardRecord] = []
        self._notes = 0
        self._began = time.monotonic()
        self._parent: str | None = None
        self._stale: list[str] = []
        self._has_xet = True
        self._one_at_a_time = Semaphore()
        self._open: list[XetShardWriter | LfsShardWriter] = []
        self.ref = RepoRef("hub", name, "")
        if not hub.is_signed_in:
            raise DestinationError(f"Nobody is signed in, so nothing can be pushed to {name}.", f"First {SIGN_IN}")
        self._me = self._ask(hub.api.whoami)
        auth = self._me.get("auth", {})
        # A login through an application may have no right to change a repo that it has created.
        self._may_show_later = auth.get("type") != "oauth" or "manage-repos" in auth.get("scopes", ())
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
        api, repo_id = self._hub.api, self.ref.repo_id
        self._refuse_foreign_namespace()
        if not self._ask(lambda: api.repo_exists(repo_id)):
            return {}
        self._ask(lambda: api.auth_check(repo_id, write=True))
        branches = self._branches()
        self._parent = branches.get("main")
        self._refuse_foreign(staged=STAGING_BRANCH in branches)
        if STAGING_BRANCH not in branches:
            return {}
        self._staging_seen = True
        self._job = self._staged_job()
        self._created = bool(self._job and self._job.created)
        return {} if self._restart else self._staged_records(plan_id)

    def prepare(self, job: StagedJob, keep: Iterable[ShardRecord], new_bytes: int) -> None:
        """Create the repo and the staging branch where they are not there yet.

        Raises DestinationError where the Hub does not allow it.
        """
        api, repo_id = self._hub.api, self.ref.repo_id
        self._finished = {record.file for record in keep}
        if self._parent is None:
            hidden = self._may_show_later or self._private is not False
            self._created = True  # before it is known: the answer may be lost, and the repo must not be left behind
            self._ask(lambda: api.create_repo(repo_id, private=hidden, exist_ok=True))
            self._parent = self._branches()["main"]
        if not self._finished:
            if self._staging_seen:
                self._delete_staging()
            self._job = replace(job, private=self._private, created=self._created)
            self._ask(lambda: api.create_branch(repo_id, branch=STAGING_BRANCH, revision=self._parent, exist_ok=True))
            self._commit("Begin", [_small(_JOB, job_line(self._job))])
        self._has_xet = self._ask(lambda: self._hub.has_xet(repo_id, STAGING_BRANCH))

    def open_shard(self, file: str) -> XetShardWriter | LfsShardWriter:
        """Start a shard: a stream through hf-xet, with nothing on the disk; without Xet, one temporary file."""
        writer: XetShardWriter | LfsShardWriter
        if self._has_xet:
            start = partial(self._hub.upload_to, self.ref.repo_id, STAGING_BRANCH)
            writer = XetShardWriter(lambda: self._ask(start), file, self.finish)
        else:
            self._one_at_a_time.acquire()
            writer = LfsShardWriter(self._upload_lfs, file, self.finish)
        self._open.append(writer)
        return writer

    def staged(self, files: Iterable[str]) -> RepoRef:
        """Return where the finished shards can be read: the staging branch."""
        self._note()
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
        stale = [CommitOperationDelete(path) for path in self._stale if path not in new]
        message = f"Shard {origin.ref.repo_id} with Shard My Repo"
        commit = self._ask(lambda: self._publish([*operations, *stale], message, written[REPORT_NAME]))
        self.ref = RepoRef("hub", self.ref.repo_id, commit)
        self._delete_staging()
        remark = self._show() if self._created and not self._private else ""
        return Published(self.ref, self._hub.page(self.ref.repo_id), remark)

    def unfinished(self) -> StagedJob | None:
        """Return the job that stands on the staging branch. Changes nothing."""
        repo_id = self.ref.repo_id
        if not self._ask(lambda: self._hub.api.repo_exists(repo_id)) or STAGING_BRANCH not in self._branches():
            return None
        return self._staged_job()

    def discard(self) -> Discarded:
        """Remove the staging branch, and the repo where the job that made it has published nothing in it.

        A login that may create repos need not be one that may delete them: then the remark says so.
        """
        self._unnoted = []
        if not self._created:
            self._job = self._job or self.unfinished()
        self._created = self._created or bool(self._job and self._job.created)
        if self._job is None and not self._created:
            return Discarded(found=False)
        repo_id, self._job = self.ref.repo_id, None
        if not self._ask(lambda: self._hub.api.repo_exists(repo_id)):
            return Discarded(found=False)
        is_ours = self._created and {file.path for file in self._list("main")} <= _OF_EVERY_NEW_REPO
        if is_ours:
            try:
                self._ask(lambda: self._hub.api.delete_repo(repo_id, missing_ok=True))
                return Discarded(found=True, repo_deleted=True)
            except DestinationError as error:
                if not isinstance(error.__cause__, HfHubHTTPError) or error.__cause__.response.status_code != 403:
                    raise
        self._delete_staging()
        settings = f"{self._hub.page(repo_id)}/settings"
        remark = f"The login may not delete {repo_id}, which is empty: {settings}." if is_ours else ""
        return Discarded(found=True, remark=remark)

    def close(self) -> None:
        """Let go of the repo: shards that are not finished are gone."""
        with suppress(DestinationError):  # where the Hub does not answer, these shards are moved again
            self._note()
        for writer in self._open:
            writer.abort()
        self._open.clear()

    def finish(self, record: ShardRecord, bytes_uploaded: int, bytes_deduplicated: int) -> None:
        """Commit a shard, whose bytes the Hub's store has, to the staging branch, with its record.

        Where that would be too many commits, the next ones are waited for: see `limits.COMMIT_SECONDS`.
        """
        self.bytes_uploaded += bytes_uploaded
        self.bytes_deduplicated += bytes_deduplicated
        self._unnoted.append(record)
        if self._notes < COMMITS_AT_ONCE + (time.monotonic() - self._began) // COMMIT_SECONDS:
            self._note()

    def _note(self) -> None:
        noted, operations = list(self._unnoted), []
        for record in noted:
            operations += [_uploaded(record), _small(f"{RECORDS}{record.file}.json", record_line(record))]
        if operations:
            self._commit(f"{noted[0].file} and {len(noted) - 1} more" if noted[1:] else noted[0].file, operations)
            self._notes += 1
            self._finished |= {record.file for record in noted}
            self._unnoted = []

    def _ask(self, question: Callable[[], _T]) -> _T:
        return self._hub.ask(self.ref.repo_id, DestinationError, question)

    def _publish(
        self,
        operations: Sequence[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete],
        message: str,
        report: bytes,
    ) -> str:
        """Return the commit that shows the result."""
        try:
            return self._hub.api.create_commit(
                self.ref.repo_id, operations, commit_message=message, parent_commit=self._parent
            ).oid
        except HfHubHTTPError as error:
            # An earlier try may have arrived although its answer did not.
            if error.response.status_code == 412 and self._shows(report):
                return self._branches()["main"]
            raise

    def _shows(self, report: bytes) -> bool:
        files = {file.path for file in self._list("main")}
        return REPORT_NAME in files and self._read("main", REPORT_NAME) == report

    def _upload_lfs(self, operation: CommitOperationAdd) -> None:
        try:
            self._ask(lambda: self._hub.api.preupload_lfs_files(self.ref.repo_id, [operation], revision=STAGING_BRANCH))
            self.bytes_uploaded += operation.upload_info.size
            self.disk_bytes_written += operation.upload_info.size
        finally:
            self._one_at_a_time.release()

    def _commit(self, message: str, operations: Sequence[CommitOperationAdd]) -> None:
        repo_id = self.ref.repo_id
        self._ask(
            lambda: self._hub.api.create_commit(repo_id, operations, commit_message=message, revision=STAGING_BRANCH)
        )

    def _delete_staging(self) -> None:
        def delete() -> None:
            try:
                self._hub.api.delete_branch(self.ref.repo_id, branch=STAGING_BRANCH)
            except HfHubHTTPError as error:
                if error.response.status_code != 404:  # gone already: an earlier try may have arrived
                    raise

        self._ask(delete)

    def _show(self) -> str:
        try:
            self._ask(lambda: self._hub.api.update_repo_settings(self.ref.repo_id, private=False))
        except DestinationError as error:
            if not self._ask(lambda: self._hub.api.model_info(self.ref.repo_id)).private:
                return ""
            settings = f"{self._hub.page(self.ref.repo_id)}/settings"
            return f"It stays private, which you can change at {settings}: {error.message}"
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
        report = self._earlier_report() if REPORT_NAME in files else {}
        if staged or report or files <= _OF_EVERY_NEW_REPO:
            self._stale = [path for path in report.get("files", ()) if path in files]
            return
        names = (f"{self.ref.repo_id}-{number}" for number in range(2, 1000))
        free = next(name for name in names if not self._ask(lambda name=name: self._hub.api.repo_exists(name)))  # type: ignore[misc]
        raise DestinationError(
            f"{self.ref.repo_id} exists already, and this tool did not write what is in it.", f"A free name is {free}."
        )

    def _earlier_report(self) -> dict[str, list[str]]:
        try:
            return {"files": [str(path) for path in json.loads(self._read("main", REPORT_NAME))["files"]]}
        except (ValueError, LookupError, TypeError, RecursionError):
            return {}

    def _staged_job(self) -> StagedJob | None:
        files = {file.path for file in self._list(STAGING_BRANCH)}
        return parse_job(self._read(STAGING_BRANCH, _JOB)) if _JOB in files else None

    def _staged_records(self, plan_id: str) -> dict[str, ShardRecord]:
        if self._job is None or self._job.plan_id != plan_id:
            raise DestinationError(
                f"{self.ref.repo_id} holds an unfinished job of another plan on its branch {STAGING_BRANCH}.",
                "Finish that one first, choose another name, or discard it with --restart.",
            )
        files = {file.path: file for file in self._list(STAGING_BRANCH)}
        paths = [path for path in files if path.startswith(RECORDS) and path != _JOB]
        with readers(RANGES_AT_ONCE) as pool:
            records = [parse_record(text) for text in pool.map(lambda path: self._read(STAGING_BRANCH, path), paths)]
        stored = {path: (file.lfs.sha256, file.size) for path, file in files.items() if file.lfs}
        return {
            record.file: record
            for record in records
            if record and stored.get(record.file) == (record.sha256, record.bytes)
        }

    def _branches(self) -> dict[str, str]:
        refs = self._ask(lambda: self._hub.api.list_repo_refs(self.ref.repo_id))
        return {branch.name: branch.target_commit for branch in refs.branches}

    def _list(self, revision: str) -> list[RepoFile]:
        tree = self._ask(
            lambda: list(self._hub.api.list_repo_tree(self.ref.repo_id, recursive=True, revision=revision))
        )
        return [item for item in tree if isinstance(item, RepoFile)]

    def _read(self, revision: str, path: str) -> bytes:
        return self._ask(lambda: self._hub.get(self.ref.repo_id, revision, path, MAX_REPORT_BYTES))


def _uploaded(record: ShardRecord) -> CommitOperationAdd:
    """Return the operation that commits a file whose bytes the Hub's store already has."""
    operation = CommitOperationAdd(record.file, b"")
    operation.upload_info = UploadInfo(record.bytes, b"", bytes.fromhex(record.sha256))
    operation._upload_mode, operation._is_uploaded, operation._should_ignore = "lfs", True, False
    return operation


def _small(path: str, data: bytes) -> CommitOperationAdd:
    """Return the operation that commits a file of JSON, which no Hub keeps in its store: so none is asked."""
    operation = CommitOperationAdd(path, data)
    operation._upload_mode, operation._is_uploaded, operation._should_ignore = "regular", True, False
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
