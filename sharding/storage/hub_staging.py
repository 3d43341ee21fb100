"""Keep finished shards on a branch of a repo until they are published, so that any machine can go on from there."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import DestinationError
from sharding.core.limits import COMMIT_SECONDS, RANGES_AT_ONCE
from sharding.core.threads import readers
from sharding.core.values import ShardRecord, StagedJob
from sharding.storage.hub_private import small, uploaded, went_to_store
from sharding.storage.hub_repo import HubRepo, holds
from sharding.storage.records import job_line, parse_job, parse_record, record_line

STAGING_BRANCH = "shard-my-repo-staging"
RECORDS = "sharding_records/"
"""Folder on the staging branch: `job.json`, a `StagedJob`, and a `ShardRecord` for every finished shard."""

_JOB = f"{RECORDS}job.json"


class StagingBranch:
    """The shards of one job, each with its record. All methods raise DestinationError."""

    def __init__(self, repo: HubRepo) -> None:
        """Take the branch of `repo`. Asks nothing."""
        self._repo = repo
        self._unnoted: list[ShardRecord] = []
        self._lock = Lock()
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="note")
        self._noting: Future[None] | None = None
        self._next_note = 0.0
        self._is_json_small = False
        self.finished: set[str] = set()

    def job(self) -> StagedJob | None:
        """Return the job whose shards stand here; None if it is not said. The branch must be there."""
        return parse_job(self._read(_JOB)) if _JOB in self._repo.files(STAGING_BRANCH) else None

    def records(self, plan_id: str, job: StagedJob | None) -> dict[str, ShardRecord]:
        """Return what was finished of plan `plan_id`, by file name; `job` is the one that stands here."""
        files = self._repo.files(STAGING_BRANCH)
        if _JOB not in files:
            return {}  # killed before it was begun
        if job is None or job.plan_id != plan_id:
            raise DestinationError(
                f"{self._repo.repo_id} holds an unfinished job of another plan on its branch {STAGING_BRANCH}.",
                "Finish that one first, choose another name, or discard it with --restart.",
            )
        paths = [path for path in files if path.startswith(RECORDS) and path != _JOB]
        with readers(RANGES_AT_ONCE) as pool:
            records = [parse_record(text) for text in pool.map(self._read, paths)]
        return {record.file: record for record in records if record and holds(files.get(record.file), record)}

    def begin(self, job: StagedJob, parent: str) -> None:
        """Make the branch at commit `parent`, and say on it which job it is of."""
        create = self._repo.hub.api.create_branch
        repo_id = self._repo.repo_id
        self._repo.ask(lambda: create(repo_id, branch=STAGING_BRANCH, revision=parent, exist_ok=True))
        self._commit("Begin", [], {_JOB: job_line(job)})

    def go_on(self, kept: Iterable[ShardRecord]) -> None:
        """Take the shards `kept` of an earlier run as finished."""
        self.finished = {record.file for record in kept}

    def add(self, record: ShardRecord) -> None:
        """Have a shard, whose bytes the Hub's store has, committed with its record.

        The first of a job is when this returns. The others come some at a time (`limits.COMMIT_SECONDS`), and nobody
        waits for them: what went wrong with it is raised the next time.
        """
        with self._lock:
            self._unnoted.append(record)
            if (self._noting and not self._noting.done()) or time.monotonic() < self._next_note:
                return
            is_first = self._noting is None
            if self._noting:
                self._noting.result()
            self._next_note = time.monotonic() + COMMIT_SECONDS
            self._noting = noting = self._notes.submit(self._note)
        if is_first:
            noting.result()

    def note(self) -> None:
        """Commit the shards that were added and not committed yet; return when they are."""
        with self._lock:
            going, self._noting = self._noting, None
        if going:
            going.result()
        self._note()

    def _note(self) -> None:
        noted = list(self._unnoted)
        if noted:
            message = f"{noted[0].file} and {len(noted) - 1} more" if noted[1:] else noted[0].file
            lines = {f"{RECORDS}{record.file}.json": record_line(record) for record in noted}
            self._commit(message, [uploaded(record) for record in noted], lines)
            self.finished |= {record.file for record in noted}
            with self._lock:
                self._unnoted = [record for record in self._unnoted if record not in noted]

    def forget(self) -> None:
        """Drop what was added and not committed yet."""
        with self._lock:
            going, self._noting, self._unnoted = self._noting, None, []
        if going:
            with suppress(DestinationError):
                going.result()

    def delete(self) -> None:
        """Delete the branch, if it is there."""

        def delete() -> None:
            try:
                self._repo.hub.api.delete_branch(self._repo.repo_id, branch=STAGING_BRANCH)
            except HfHubHTTPError as error:
                if error.response.status_code != 404:  # gone already: an earlier try may have arrived
                    raise

        self._repo.ask(delete)

    def _commit(self, message: str, shards: list[CommitOperationAdd], lines: Mapping[str, bytes]) -> None:
        """Commit shards and files of JSON. Whether these go to the store, the Hub is asked the first time."""
        kind = small if self._is_json_small else CommitOperationAdd
        records = [kind(path, data) for path, data in lines.items()]
        self._repo.commit(STAGING_BRANCH, message, [*shards, *records])
        self._is_json_small = not went_to_store(records[0])

    def _read(self, path: str) -> bytes:
        return self._repo.read(STAGING_BRANCH, path)
