"""Keep finished shards on a staging branch until they are published, so that any machine can continue the job."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Lock

from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import DestinationError, Remedy
from sharding.core.limits import MAX_REPORT_BYTES, RANGES_AT_ONCE
from sharding.core.text import format_bytes
from sharding.core.threads import readers
from sharding.core.values import ShardRecord, StagedJob
from sharding.formats.names import RECORDS_FOLDER
from sharding.storage.hub.repo import STAGING_BRANCH, Change, HubRepo, deleted, has_content, holds, stored
from sharding.storage.records import Noted, line_of, parse_line, whole

COMMIT_SECONDS = 60.0
"""Shortest time between commits that note finished shards. The Hub takes 128 an hour from one user, for all work."""

RECORDS = f"{RECORDS_FOLDER}/"
"""The folder on the staging branch for `job.json` (a `StagedJob`) and a `ShardRecord` of every finished shard."""

_JOB = f"{RECORDS}job.json"


class StagingBranch:
    """The shards of one job, each with its record. All methods raise DestinationError.

    Every commit names its parent, so a job that meets another job's commit there stops. `head` is the last commit that
    this job has seen or made.
    """

    def __init__(self, repo: HubRepo) -> None:
        self._repo = repo
        self.head = ""
        self._job: StagedJob | None = None
        self._is_at_work = False
        self._unnoted: list[ShardRecord] = []
        self._lock = Lock()
        self._notes = ThreadPoolExecutor(1, thread_name_prefix="note")
        self._noting: Future[None] | None = None
        self._next_note = 0.0
        self.finished: set[str] = set()

    def job(self, head: str) -> StagedJob | None:
        """Return the job whose shards are on the branch at commit `head`, None if the branch does not name it."""
        self.head, self._job = head, self._named(head)
        return self._job

    def _named(self, head: str) -> StagedJob | None:
        return parse_line(StagedJob, self._repo.read(head, _JOB)) if _JOB in self._repo.files(head) else None

    def records(self, plan_id: str) -> dict[str, ShardRecord]:
        """Return the finished shards of plan `plan_id`, by file name. Call `job` first."""
        job, head, files = self._job, self.head, self._repo.files(self.head)
        if _JOB not in files:
            return {}  # the job was killed before it named itself
        if job is None or job.plan_id != plan_id:
            raise DestinationError(
                f"{self._repo.repo_id} holds an unfinished job of another plan on its branch {STAGING_BRANCH}.",
                "If it is running, wait for it. If not, run it again with its own options, or choose another name. To "
                "discard it, add --restart.",
                Remedy("discard_unfinished"),
            )
        paths = list(filter(self._is_record, files))
        if (size := sum(files[path].bytes for path in paths)) > MAX_REPORT_BYTES:
            raise DestinationError(
                f"The records on the branch {STAGING_BRANCH} of {self._repo.repo_id} take {format_bytes(size)}. The "
                f"limit is {format_bytes(MAX_REPORT_BYTES)}. No job of this tool writes as many.",
                "To discard them, add --restart.",
                Remedy("discard_unfinished"),
            )
        with readers(RANGES_AT_ONCE) as pool:
            texts = pool.map(lambda path: self._repo.read(head, path, files[path].bytes), paths)
            notes = [parse_line(Noted, text) for text in texts]
        own = {note.record.file: note.record for note in notes if note and (note.job, note.plan) == (job.id, plan_id)}
        return whole(own, lambda record: holds(files.get(record.file), record))

    def begin(self, job: StagedJob, parent: str) -> None:
        """Create the branch at commit `parent`, and write on it only which job it belongs to."""
        create, repo_id = self._repo.hub.api.create_branch, self._repo.repo_id
        self._repo.ask(lambda: create(repo_id, branch=STAGING_BRANCH, revision=parent, exist_ok=True))
        self.head, self._job, self._is_at_work = parent, job, True
        inherited = [deleted(path) for path in self._repo.files(parent) if self._is_record(path)]
        self._commit("Begin", inherited, {_JOB: line_of(job)})

    def is_own(self, head: str) -> bool:
        """Return whether the branch at commit `head` belongs to this job."""
        if head == self.head:
            return True
        job = self._named(head)
        return job is not None and self._job is not None and job.id == self._job.id

    def may_go(self, head: str) -> bool:
        """Return whether this run may remove what is on the branch at commit `head`."""
        if not (self._is_at_work or self.finished) or not self.is_own(head):
            return False
        # Another run of the same command may have taken it over.
        return head == self.head or not [path for path in self._repo.files(head) if self._is_record(path)]

    def add(self, record: ShardRecord) -> None:
        """Commit a shard that the store has, with its record: the first at once, others later (`COMMIT_SECONDS`)."""
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
        """Commit the shards that were added and not committed yet; return when that is done."""
        self._await_commit()
        self._note()  # also what that commit has not noted, if it failed

    def _await_commit(self) -> None:
        """Return once no commit is under way, whether it has succeeded or not."""
        with self._lock:
            going, self._noting = self._noting, None
        if going:
            with suppress(DestinationError):
                going.result()

    def _note(self) -> None:
        noted = list(self._unnoted)
        if noted and (job := self._job):
            message = f"{noted[0].file} and {len(noted) - 1} more" if noted[1:] else noted[0].file
            notes = (Noted(job.id, job.plan_id, record) for record in noted)
            lines = {f"{RECORDS}{note.record.file}.json": line_of(note) for note in notes}
            self._commit(message, [stored(record) for record in noted], lines)
            self.finished |= {record.file for record in noted}
            with self._lock:
                self._unnoted = [record for record in self._unnoted if record not in noted]

    def forget(self) -> None:
        """Drop the shards that were added and not committed yet."""
        with self._lock:
            self._unnoted = []
        self._await_commit()

    def delete(self) -> None:
        """Delete the branch if it exists. Ask `is_own` first: another job may use it."""

        def delete() -> None:
            try:
                self._repo.hub.api.delete_branch(self._repo.repo_id, branch=STAGING_BRANCH)
            except HfHubHTTPError as error:
                if error.response.status_code != 404:  # gone already: an earlier try may have arrived
                    raise

        self._repo.ask(delete)

    def _commit(self, message: str, shards: Sequence[Change], lines: Mapping[str, bytes]) -> None:
        changes = [*shards, *self._repo.added(STAGING_BRANCH, lines)]

        def commit() -> str:
            try:
                return self._repo.commit(STAGING_BRANCH, self.head, message, changes)
            except HfHubHTTPError as error:
                has_moved = error.response.status_code == 412  # the branch is no longer at the named parent
                head = self._repo.branches().get(STAGING_BRANCH, "") if has_moved else self.head
                if head == self.head:
                    raise
                if not self.is_own(head):
                    taken = f"Another job uses the branch {STAGING_BRANCH} of {self._repo.repo_id}."
                    raise DestinationError(taken, "Wait until it ends, or choose another name.") from error
                self.head, files = head, self._repo.files(head)
                if all(has_content(files.get(path), data) for path, data in lines.items()):
                    return head  # an earlier try has arrived, but its answer has not
                # If somebody has added something, reading everything again finds it.
                return self._repo.commit(STAGING_BRANCH, head, message, changes)

        self.head, self._is_at_work = self._repo.ask(commit), True

    @staticmethod
    def _is_record(path: str) -> bool:
        return path.startswith(RECORDS) and path != _JOB
