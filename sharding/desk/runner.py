"""Run one job to its end: start its process, read its events, decide how it ended."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread, Timer
from typing import IO, Any

import psutil

from sharding import __version__
from sharding.core.environment import child_command, job_variables, proxy_logins
from sharding.core.limits import EVENT_BYTES, EVENTS_BYTES, STDERR_BYTES
from sharding.core.text import count, undecided_sentence
from sharding.desk.job_store import Shelf
from sharding.desk.jobs import History, JobRecord, JobRequest, State
from sharding.desk.judgement import Reading, Verdict, Verdicts
from sharding.storage.hub.lookup import Lookup

STOP_SECONDS = 5.0  # Time that a job gets to stop before it is killed.


class Child:
    """`python -m sharding …` in a session of its own. The token is in its environment and nowhere else."""

    def __init__(self, arguments: Sequence[str], folder: Path, endpoint: str, token: str) -> None:
        """Start it in `folder`, which is also its home."""
        for name in ("here", "home", "tmp"):
            (folder / name).mkdir(exist_ok=True)
        environment = job_variables() | {"HF_ENDPOINT": endpoint, "HF_TOKEN": token}
        environment |= {"HOME": str(folder / "home"), "HF_HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
        secrets = {token: "[token]"} | dict.fromkeys(proxy_logins(), "[login]@")
        self._secrets = {secret.encode(): shown.encode() for secret, shown in secrets.items()}
        self._process = subprocess.Popen(
            child_command("sharding", *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder / "here",  # empty, so that no folder is mistaken for a repo of the same name
            start_new_session=True,
        )
        assert self._process.stdout and self._process.stderr
        self._output: IO[bytes] = self._process.stdout
        self._tail = bytearray()
        self._reader = Thread(target=self._keep_tail, args=[self._process.stderr], name="stderr", daemon=True)
        self._reader.start()

    @property
    def identity(self) -> tuple[int, float] | None:
        """Id and start time of the process, which together are unique. None if it is gone."""
        with suppress(psutil.NoSuchProcess):
            return self._process.pid, psutil.Process(self._process.pid).create_time()
        return None

    def lines(self) -> Iterator[bytes]:
        """Yield its output, line by line, until it ends. Raises ValueError if a line is too long."""
        while line := self._output.readline(EVENT_BYTES + 1):
            if len(line) > EVENT_BYTES:
                raise ValueError("the line is too long")
            yield self._without_secrets(line)

    def stop(self) -> None:
        """Ask it to stop, and kill it if it has not ended a little later. Does not wait."""
        self._signal(signal.SIGTERM)
        timer = Timer(STOP_SECONDS, self.kill)
        timer.daemon = True
        timer.start()

    def kill(self) -> None:
        """Kill it now, with all processes that it has started."""
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status. A negative one is the signal that killed it."""
        self._output.close()
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            status = self._process.wait()
        self._reader.join(STOP_SECONDS)
        return status

    @property
    def last_words(self) -> str:
        """The last line that it printed to standard error."""
        lines = self._without_secrets(bytes(self._tail)).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""

    def _without_secrets(self, text: bytes) -> bytes:
        for secret, shown in self._secrets.items():
            text = text.replace(secret, shown)
        return text

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _keep_tail(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read1(STDERR_BYTES):  # type: ignore[attr-defined]
                self._tail += chunk
                del self._tail[:-STDERR_BYTES]


def kill_stray(identity: tuple[int, float]) -> None:
    """Kill a process that an earlier desk left behind, with its whole session, if it still runs."""
    number, started = identity
    with suppress(psutil.NoSuchProcess, ProcessLookupError):
        if psutil.Process(number).create_time() == started:
            os.killpg(number, signal.SIGKILL)


DISCARD_SECONDS = 120.0  # Longest time to remove what a job staged: a few requests, for which the queue waits.
PROGRESS_KEPT_SECONDS = 1.0  # Between progress events on the disk. The newest is always in memory.
Outcome = tuple[State, tuple[str, str] | None, str]  # Last state, error (sentence and hint), and remark.
RESUME = "Start it again with the same choices. It keeps the finished files and goes on from there."
INTERRUPTED = ("The server was restarted before the job was done.", RESUME)


@dataclass(eq=False)
class ActiveJob:
    """A job that has not ended, with its token. Change it only under the desk's lock. `read` is all that it reads."""

    record: JobRecord
    token: str
    read: Reading | None = None
    history: History = field(default_factory=History)
    child: Child | None = None
    heard: float = 0.0
    problem: str = ""


@dataclass(frozen=True)
class Runner:
    """Runs jobs, one in each call of `run`. It changes jobs only under `lock`. It starts none once `closing` is set."""

    shelf: Shelf
    verdicts: Verdicts
    endpoint: str
    clock: Callable[[], float]
    lock: AbstractContextManager[Any]
    closing: Event

    def run(self, job: ActiveJob) -> None:
        """Run `job` and record how it ended. Raises OSError if that cannot be written to the disk."""
        try:
            if child := self._start(job):
                self.end(job, *self._follow(job, child))
        except Exception as problem:
            if child := job.child:  # also if it was started but could not be recorded
                child.kill()
                child.wait()
            self.end(job, "failed", (f"The job could not run: {problem}.", RESUME))

    def end(self, job: ActiveJob, state: State, error: tuple[str, str] | None = None, remark: str = "") -> None:
        """Record how `job` ended, and forget its token."""
        told, proof, ended = job.history.told, job.history.told.verification, self.clock()
        resumed = any(shard.kept for shard in told.shards)
        cost = told.report.resources if told.report and not resumed else None
        with self.lock:
            job.token = ""
            record = replace(
                job.record,
                state=state,
                ended=ended,
                process=None,
                error=error,
                remedy=job.history.remedy if error and error == job.history.error else None,
                remark=remark,
                result=_result(job) if state == "done" else _compared(job, equal=False) if state == "failed" else "",
                seconds=ended - (job.record.started or ended) - job.history.comparing_seconds if cost else None,
                peak_anon_bytes=cost.peak_anon_bytes if cost else None,
                disk_bytes_written=cost.disk_bytes_written if cost else None,
                outcome=proof.outcome if proof else None,
            )
            kind = record.request.kind
            if record.result and job.read and proof and kind != "compare":
                found = self.endpoint, record.result, job.read, kind, proof.outcome, ended, __version__
                what = (proof.made, proof.unstated, record.unreached)
                self.verdicts.add(Verdict(*found, record.error[0] if record.error else "", *what))
            self.shelf.clear(record.id)
            self.shelf.save(record)
            job.record = record  # not before: if it cannot be saved, the job ends in another way
            job.history.close(record)

    def _start(self, job: ActiveJob) -> Child | None:
        with self.lock:
            if job.record.state != "queued":  # cancelled while it waited
                return None
            if self.closing.is_set():
                self.end(job, "interrupted", INTERRUPTED)
                return None
            folder = self.shelf.work_folder(job.record.id)
            job.child = Child(command_of(job.record.request), folder, self.endpoint, job.token)
            now = job.heard = self.clock()
            job.record = replace(job.record, state="running", started=now, process=job.child.identity)
            self.shelf.save(job.record)
            return job.child

    def _follow(self, job: ActiveJob, child: Child) -> Outcome:
        try:
            self._listen(job, child)
        except (ValueError, RecursionError) as error:
            job.problem = f"sent an invalid event ({error})"
            child.kill()
        status = child.wait()
        if _result(job) or (job.record.request.kind == "compare" and job.history.told.costs):
            return "done", None, job.history.told.published.remark if job.history.told.published else ""
        if job.record.state == "cancelling":
            # A job without a plan has staged nothing: staged files there belong to another job.
            has_staged = job.record.request.kind == "shard" and job.history.told.planned
            return "cancelled", None, self._discard(job) if has_staged else ""
        if self.closing.is_set():
            return "interrupted", INTERRUPTED, ""
        return "failed", _reason(job, status, child.last_words), ""

    def _listen(self, job: ActiveJob, child: Child) -> None:
        kept_bytes, phase_kept = 0, (None, 0.0)
        for line in child.lines():
            event, now = json.loads(line), self.clock()
            if not isinstance(event, dict):
                raise ValueError("it is not a JSON object")
            with self.lock:
                job.heard = now
                job.history.take(event, now)
            phase = event.get("stage")
            if phase is not None and phase == phase_kept[0] and now - phase_kept[1] < PROGRESS_KEPT_SECONDS:
                continue
            phase_kept = (phase, now)
            if "plan" in event:
                event["plan"].pop("weight_map", None)  # repeats the shards
            kept_bytes += self.shelf.note(job.record.id, event, now)
            if kept_bytes > EVENTS_BYTES:
                raise ValueError("the events take too many bytes")

    def _discard(self, job: ActiveJob) -> str:
        """Remove the staged files of a job. Return a remark on what is left to do."""
        destination = job.record.request.destination
        folder = self.shelf.work_folder(job.record.id)
        child = Child(["discard", "--json", "--", destination], folder, self.endpoint, job.token)
        limit = Timer(DISCARD_SECONDS, child.kill)
        limit.start()
        try:
            answer = json.loads(b"".join(child.lines()) or b"{}")
        except ValueError:
            answer = {}
        child.wait()
        limit.cancel()
        if isinstance(answer, dict) and "repo_deleted" in answer:
            return str(answer["remark"]) or Lookup(self.endpoint).remark_on_empty(destination, job.token)
        reason = answer["error"]["message"] if isinstance(answer, dict) and "error" in answer else child.last_words
        return f"Its staged files in {destination} could not be removed: {reason}"


def command_of(request: JobRequest) -> list[str]:
    """Return the command line of a job."""
    numeric = ["--numeric"] if request.kind == "verify" else []
    return [request.kind, *request.words(request.kind), *numeric, "--events", "--", request.source, request.destination]


def _result(job: ActiveJob) -> str:
    """Return the commit that a job has published or found equal, or "" if there is none."""
    published = job.history.told.published
    return published.ref.text if published else _compared(job, equal=True)


def _compared(job: ActiveJob, equal: bool) -> str:
    """Return the commit that a job has compared and found `equal` or not, or "" if there is none."""
    proof = job.history.told.verification
    is_it = job.record.request.kind == "verify" and proof and proof.holds == equal
    return job.record.request.destination if is_it else ""


def _reason(job: ActiveJob, status: int, last_words: str) -> tuple[str, str]:
    verification = job.history.told.verification
    if job.problem:
        return f"The job's process {job.problem}.", RESUME
    if job.history.error:
        return job.history.error
    if verification and not verification.holds:
        if job.record.request.kind == "verify":
            if verification.outcome.kind == "undecided":
                return undecided_sentence(verification.undecided), "Make the copy again yourself."
            first = verification.mismatches[0]
            number = count(len(verification.mismatches), "tensor")
            of_result = job.record.request.of_result
            other, hint = ("its source", "Do not use the copy.") if of_result else ("the original", "")
            return f"The copy differs from {other} in {number}. The first is {first.tensor}: {first.problem}.", hint
        return "The copy is not identical to the source, so it was not published.", "Start the job again."
    how = f"was killed (signal {-status})" if status < 0 else f"ended with status {status}"
    return f"The job's process {how}{f': {last_words}' if last_words else ''}.", RESUME
