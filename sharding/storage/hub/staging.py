"""Keep finished shards on a branch of a repo until they are published, so that any machine can go on from there."""

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import DestinationError, Remedy
from sharding.core.limits import COMMIT_SECONDS, MAX_REPORT_BYTES, RANGES_AT_ONCE
from sharding.core.threads import readers
from sharding.core.values import ShardRecord, StagedJob
from sharding.formats.names import RECORDS_FOLDER
from sharding.storage.hub.private import small, uploaded, went_to_store
from sharding.storage.hub.repo import HubRepo, Operation, has_content, has_moved, holds
from sharding.storage.records import job_line, parse_job, parse_staged, staged_line, whole

STAGING_BRANCH = "shard-my-repo-staging"
RECORDS = f"{RECORDS_FOLDER}/"
"""Folder on the staging branch: `job.json`, a `StagedJob`, and a `ShardRecord` for every finished shard."""

_JOB = f"{RECORDS}job.json"


class StagingBranch:
    """The shards of one job, each with its record. All methods raise DestinationError.

    Every commit names the one before it, so that a job which finds another's there ends. `head` is the last one that
    this job has seen or made.
    """

    def __init__(self, repo: HubRepo) -> None:
        """Take the branch of `repo`. Asks nothing."""
        self._repo = repo
        self.head = ""
        self._job: StagedJob | None = None
        self._is_begun = self._is_at_work = False
        self._unnoted: list[ShardRecord] = []
        self._lock = Lock()
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="note")
        self._noting: Future[None] | None = None
        self._next_note = 0.0
        self._is_json_small = False
        self.finished: set[str] = set()

    def job(self, head: str) -> StagedJob | None:
        """Return the job whose shards stand here, where the branch is at commit `head`; None if it is not said."""
        self.head = head
        self._is_begun = _JOB in self._repo.files(head)
        self._job = parse_job(self._repo.read(head, _JOB)) if self._is_begun else None
        return self._job

    def records(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return what was finished of plan `plan_id`, by file name; `job` comes first."""
        job, head = self._job, self.head
        if not self._is_begun:
            return {}  # killed before
        if job is None or job.plan_id != plan_id:
            raise DestinationError(
                f"{self._repo.repo_id} holds an unfinished job of another plan on its branch {STAGING_BRANCH}.",
                "If it is running, wait for it. Else finish it, or choose another name. Or discard it with --restart.",
                Remedy("discard_unfinished"),
            )
        files = self._repo.files(head)
        paths = list(filter(self._is_record, files))
        if sum(files[path].bytes for path in paths) > MAX_REPORT_BYTES:
            raise DestinationError(
                f"The records on the branch {STAGING_BRANCH} of {self._repo.repo_id} are larger than those of any job.",
                "Discard them with --restart.",
                Remedy("discard_unfinished"),
            )
        with readers(RANGES_AT_ONCE) as pool:
            texts = pool.map(lambda path: self._repo.read(head, path, files[path].bytes), paths)
            records = [parse_staged(text, job) for text in texts]
        by_file = {record.file: record for record in records if record}
        return whole(by_file, lambda record: holds(files.get(record.file), record))

    def begin(self, job: StagedJob, parent: str) -> None:
        """Make the branch at commit `parent`, and say on it which job it is of, and nothing else.

        Raises DestinationError where another job has begun there at the same moment.
        """
        create = self._repo.hub.api.create_branch
        repo_id = self._repo.repo_id
        self._repo.ask(lambda: create(repo_id, branch=STAGING_BRANCH, revision=parent, exist_ok=True))
        self.head, self._job, self._is_at_work = parent, job, True
        inherited = [CommitOperationDelete(path) for path in self._repo.files(parent) if self._is_record(path)]
        self._commit("Begin", inherited, {_JOB: job_line(job)})

    def go_on(self, kept: Iterable[ShardRecord]) -> None:
        """Take the shards `kept` of an earlier run as finished."""
        self.finished = {record.file for record in kept}

    def is_own(self, head: str) -> bool:
        """Return whether the branch, where it is at commit `head`, is of this job."""
        if head == self.head:
            return True
        job = parse_job(self._repo.read(head, _JOB)) if _JOB in self._repo.files(head) else None
        return job is not None and self._job is not None and job.id == self._job.id

    def may_go(self, head: str) -> bool:
        """Return whether what is on the branch, where it is at commit `head`, is this run's to remove."""
        if not (self._is_at_work or self.finished) or not self.is_own(head):
            return False
        # Another run of the same command may have taken it over.
        return head == self.head or not [path for path in self._repo.files(head) if self._is_record(path)]

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
            with suppress(DestinationError):  # what it has not committed is tried again
                going.result()
        self._note()

    def _note(self) -> None:
        noted = list(self._unnoted)
        if noted and self._job:
            message = f"{noted[0].file} and {len(noted) - 1} more" if noted[1:] else noted[0].file
            lines = {f"{RECORDS}{record.file}.json": staged_line(record, self._job) for record in noted}
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
        """Delete the branch, if it is there. Ask `is_own` first: another job may be at work on it."""

        def delete() -> None:
            try:
                self._repo.hub.api.delete_branch(self._repo.repo_id, branch=STAGING_BRANCH)
            except HfHubHTTPError as error:
                if error.response.status_code != 404:  # gone already: an earlier try may have arrived
                    raise

        self._repo.ask(delete)

    def _commit(self, message: str, changes: Sequence[Operation], lines: Mapping[str, bytes]) -> None:
        """Commit shards and files of JSON. Whether these go to the store, the Hub is asked the first time."""
        kind = small if self._is_json_small else CommitOperationAdd
        records = [kind(path, data) for path, data in lines.items()]

        def commit() -> str:
            try:
                return self._repo.commit(STAGING_BRANCH, self.head, message, [*changes, *records])
            except HfHubHTTPError as error:
                head = self._repo.branches().get(STAGING_BRANCH, "") if has_moved(error) else self.head
                if head == self.head:
                    raise
                if not self.is_own(head):
                    raise DestinationError(
                        f"Another job is at work on the branch {STAGING_BRANCH} of {self._repo.repo_id}.",
                        "Wait until it has ended, or choose another name.",
                    ) from error
                self.head, files = head, self._repo.files(head)
                if all(has_content(files.get(path), data) for path, data in lines.items()):
                    return head  # an earlier try had arrived, its answer not
                # What somebody has added is found out when all is read again.
                return self._repo.commit(STAGING_BRANCH, head, message, [*changes, *records])

        self.head, self._is_at_work = self._repo.ask(commit), True
        self._is_json_small = not went_to_store(records[0])

    @staticmethod
    def _is_record(path: str) -> bool:
        return path.startswith(RECORDS) and path != _JOB
