"""Run visitors' jobs from a queue, each in its own process; only the owner of a job can see or stop it."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import takewhile
from queue import SimpleQueue
from threading import Event, RLock, Thread
from typing import Any, Literal

from sharding import job
from sharding.core.errors import Refused, Remedy
from sharding.core.limits import MAX_ACTIVE_JOBS, MEMORY_SHARE
from sharding.core.options import naming
from sharding.core.text import format_bytes
from sharding.core.values import Content, Plan
from sharding.desk import forecast as forecasts
from sharding.desk.job_store import Shelf
from sharding.desk.jobs import ACTIVE, JobRecord, JobRequest, JobStatus, Settings, destination_of, new_job_id, status_of
from sharding.desk.judgement import Reading, Results, Verdicts, reading_both, request_about
from sharding.desk.models import Models
from sharding.desk.runner import INTERRUPTED, ActiveJob, Runner, kill_stray
from sharding.loading.classic import free_disk_bytes
from sharding.loading.measure import free_memory_bytes
from sharding.planning.plan import identify_plan
from sharding.storage.hub.answers import Person
from sharding.storage.hub.lookup import Lookup

JOB_SECONDS = 24 * 3600
"""Longest time that a job runs, so that others get their turn: half a megabyte a second at 50 GB. You can resume it."""

SILENT_SECONDS = 30 * 60  # Then a job counts as hung. The longest pause in a sound one is the commit at its end.
JOBS_REMEMBERED = 100  # Finished jobs that forecasts of cost are based on.
SWEEP_SECONDS = 60.0  # Time between two searches of the desk for data to delete.
TIDY_SECONDS = 5.0  # Time after which the system gets free memory: 450 MB after three models of 95,000 tensors.


class Desk(AbstractContextManager["Desk"]):
    """Runs jobs from a queue and tells their owners. Leaving its context interrupts jobs; they can be resumed."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        """Start in `settings.folder`. `clock` returns seconds since 1970. Raises Refused if another desk uses it."""
        self._settings = settings
        self._clock = clock
        self._shelf = Shelf(settings.folder)
        self._jobs: dict[str, ActiveJob] = {}
        self._finished: deque[JobRecord] = deque(maxlen=JOBS_REMEMBERED)
        self._lock = RLock()
        self._closing = Event()
        self.models = Models(settings.endpoint)
        verdicts = Verdicts(self._shelf.folder, settings.endpoint)
        self.results = Results(settings.endpoint, self.models, self._shelf, verdicts)
        self._ended = lru_cache(maxsize=4)(self._read_ended)
        self.lookup = Lookup(settings.endpoint)
        self._runner = Runner(self._shelf, verdicts, settings.endpoint, clock, self._lock, self._closing)
        self._take_stock()
        self.sweep()
        # Daemon threads: a program that forgets to close its desk can still exit.
        self._queue: SimpleQueue[ActiveJob | None] = SimpleQueue()
        tasks: list[Callable[[], None]] = [self._work] * settings.jobs_at_once
        tasks += [partial(self._now_and_then, SWEEP_SECONDS, self.sweep)]
        tasks += [partial(self._now_and_then, TIDY_SECONDS, self.models.tidy)]
        self._threads = [Thread(target=task, name="desk", daemon=True) for task in tasks]
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all jobs, and return once they have ended. They can be resumed later."""
        with self._lock:
            self._closing.set()
            for taken in self._jobs.values():
                if taken.child:
                    taken.child.stop()
        self.models.close()
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._shelf.close()

    def forecast(self, original: Content, made: Plan | Content) -> forecasts.Forecast:
        """Return what it costs here to make the plan `made` from `original`, or to read it and the copy `made`."""
        with self._lock:
            finished = list(self._finished)
        return forecasts.forecast(self._work_of(original, made), finished)

    def has_room(self, needs: forecasts.Forecast) -> bool:
        """Return whether this machine has the memory and the disk that a job `needs` now."""
        memory, disk = MEMORY_SHARE * free_memory_bytes(), free_disk_bytes(self._settings.folder)
        return needs.peak_anon_bytes <= memory and needs.disk_bytes <= disk

    def _work_of(self, original: Content, made: Plan | Content) -> forecasts.Work:
        repo_id = (original if isinstance(made, Plan) else made).source.repo_id
        return forecasts.work_of(original, made, self.lookup.answer_seconds(repo_id) or 0.0)

    def submit(self, request: JobRequest, who: Person, token: str) -> str:
        """Accept a job of `who` and return its id. Raises Refused, and ShardingError if it would fail at once."""
        if request.kind != "shard":
            return self._submit_reading(request, who, token)
        request.refuse_contradictions()
        if not token:
            hint = "Sign in first. The copy goes into a repo of your own."
            raise Refused("You are not signed in.", hint, Remedy("sign_in"))
        destination = self.lookup.repo_id(request.destination, who)
        self._refuse_busy(who.name)
        self._refuse_written(destination)
        checkpoint, plan = self.models.plan(request.source, request.options, token)
        if request.expect not in ("", identify_plan(plan)):
            hint = "Look at the new plan, then start again."
            raise Refused("The model or your choices have changed since this plan was made.", hint)
        self._refuse_large(max(checkpoint.input_bytes, plan.total_bytes), who)
        pinned, beside = checkpoint.source.text, naming(checkpoint.beside)
        links: dict[str, Any] = {name: self.lookup.link(text) for name, text in beside.items()}
        linked = replace(request, source=self.lookup.link(pinned), options=replace(request.options, **links))
        job.check(replace(linked, destination=destination), endpoint=self._settings.endpoint, token=token)
        options = replace(request.options, **beside)
        # The classic engine plans once more, from what it has saved.
        expect = request.expect if request.engine == "stream" else ""
        request = replace(request, source=pinned, destination=destination, options=options, expect=expect)
        return self._queue_up(request, checkpoint, plan, who, token)

    def _queue_up(self, request: JobRequest, original: Content, made: Plan | Content, who: Person, token: str) -> str:
        """Queue the job that makes the plan `made` from `original`, or reads it and the copy `made`. Return its id."""
        options = made.options if isinstance(made, Plan) else request.options
        seconds = self._work_of(original, made).expected_seconds
        if seconds and request.engine == "classic":
            seconds *= forecasts.CLASSIC_TIMES
        seconds *= forecasts.STATED_TIMES if request.proof == "stated" else 1.0
        unreached = (*original.unreached, *(() if isinstance(made, Plan) else made.unreached))
        job_id = new_job_id(request.destination.partition("@")[0])
        record = JobRecord(job_id, who.name, request, made.total_bytes, self._clock(), expected_seconds=seconds)
        record = replace(record, unreached=tuple(dict.fromkeys(unreached)))
        read = Reading(original.inputs, {**options.deciding, "variant": original.variant})
        with self._lock:
            self._refuse_busy(who.name)
            if isinstance(made, Plan):
                self._refuse_written(request.destination)
            if self.queue_length >= MAX_ACTIVE_JOBS:
                hint = "Try again later. Or duplicate this Space: your own has no other visitors."
                raise Refused(f"The queue is full: it has {MAX_ACTIVE_JOBS} jobs.", hint)
            self._shelf.save(record)
            taken = self._jobs[record.id] = ActiveJob(record, token, read)
            self._queue.put(taken)
        return record.id

    def submit_about(self, kind: Literal["verify", "compare"], place: str, who: Person, token: str) -> str:
        """Accept a job that reads the result in `place` and its source, or loads both in turn. Raises as `submit`."""
        result = self.results.read(place, token)
        if result.report.needs_folder:
            hint = f"Run `shard-my-repo {kind}` on the machine that has the folder."
            raise Refused("The result was made from a folder, which is not on this machine.", hint)
        return self.submit(request_about(kind, result), who, token)

    def submit_comparison(self, original: str, copy: str, variant: str, who: Person, token: str) -> str:
        """Accept a job that compares every tensor of two repos, read as `Models.compare` does. Raises as `submit`."""
        return self.submit(reading_both(self.models.compare(original, copy, variant, token)), who, token)

    def _submit_reading(self, request: JobRequest, who: Person, token: str) -> str:
        original = self.models.inspect(request.source, request.options, token)
        copy = self.models.inspect(request.destination, token=token)
        if request.kind == "compare" and not (original.has_loadable_copy and copy.is_plain_model):
            hint = "It is a variant, or has the form of another library."
            raise Refused("transformers does not load the copy, so loading it cannot be measured here.", hint)
        self._refuse_large(max(original.input_bytes, copy.input_bytes), who)
        return self._queue_up(request, original, copy, who, token)

    def status(self, job_id: str, viewer: str | None) -> JobStatus | None:
        """Return the status of a job, or None if `viewer` has no job with this id."""
        with self._lock:
            taken = self._jobs.get(job_id)
            status = self._status(taken) if taken else None
        status = status or self._ended(job_id)
        return status if status and status.owner == viewer else None

    def findings(self, request: JobRequest) -> JobStatus | None:
        """Return the newest job that did `request` to its end. Only its proof and costs are for all."""
        same = (one for one in reversed(self._shelf.records()) if one.request == request and one.state not in ACTIVE)
        found = (status for one in same if (status := self._ended(one.id)))
        return next((status for status in found if status.costs or status.verification), None)

    def jobs_of(self, owner: str) -> list[JobRecord]:
        """Return the jobs of `owner` that are kept here, newest first."""
        with self._lock:
            active = {job_id: taken.record for job_id, taken in self._jobs.items()}
        kept = reversed(self._shelf.records())
        return [active.get(record.id, record) for record in kept if record.owner == owner]

    @property
    def queue_length(self) -> int:
        """The number of jobs that are queued or running."""
        return len(self._active())

    def cancel(self, job_id: str, viewer: str | None) -> None:
        """Stop a job and discard its staged files, a moment later. Raises Refused if the job is not the viewer's."""
        if self.status(job_id, viewer) is None:
            raise Refused("You have no job with this id.", "Sign in with the account that started it.")
        with self._lock:
            taken = self._jobs.get(job_id)
            if taken and taken.record.state in ("queued", "running"):  # it may have ended a moment ago
                taken.record = replace(taken.record, state="cancelling")
                if taken.child:
                    taken.child.stop()
                else:  # It was still waiting for its turn.
                    self._runner.end(taken, "cancelled")
                    self._settle(taken)

    def unfinished(self, repo_id: str, token: str) -> JobRequest | None:
        """Return the request that resumes the unfinished job in `repo_id`, if there is one. Raises DestinationError."""
        staged = job.find_unfinished(repo_id, endpoint=self._settings.endpoint, token=token)
        if staged is None or not staged.source.is_pinned:
            return None
        # The unfinished job was confirmed already.
        return JobRequest(staged.source.text, repo_id, staged.options, private=staged.private, confirmed=True)

    def sweep(self) -> None:
        """Remove jobs that ended long ago, and stop jobs that hang."""
        now = self._clock()
        self._shelf.sweep(now - self._settings.keep_seconds)
        self._ended.cache_clear()
        with self._lock:
            for taken in self._jobs.values():
                if taken.child and now - taken.heard > SILENT_SECONDS:
                    taken.problem = f"reported nothing for {SILENT_SECONDS // 60} minutes"
                    taken.child.stop()
                elif taken.child and now - (taken.record.started or now) > JOB_SECONDS:
                    taken.problem = f"reached the limit of {JOB_SECONDS // 3600} hours"
                    taken.child.stop()

    def _work(self) -> None:
        while taken := self._queue.get():
            # The next job must run even if the disk is full and this one cannot be recorded.
            with suppress(OSError):
                self._runner.run(taken)
            self._settle(taken)

    def _settle(self, taken: ActiveJob) -> None:
        with self._lock:
            if self._jobs.pop(taken.record.id, None):
                self._finished.append(taken.record)

    def _active(self) -> list[ActiveJob]:
        with self._lock:
            return [taken for taken in self._jobs.values() if taken.record.state in ACTIVE]

    def _refuse_large(self, size: int, who: Person) -> None:
        limit = self._settings.max_job_bytes
        if limit is not None and size > limit and who.name != self._settings.host:
            raise Refused(
                f"The model has {format_bytes(size)}. This shared machine accepts up to {format_bytes(limit)}.",
                "Duplicate this Space: your own accepts models of any size.",
            )

    def _refuse_busy(self, owner: str) -> None:
        own = next((taken.record for taken in self._active() if taken.record.owner == owner), None)
        if own:
            place = own.request.destination.partition("@")[0]
            hint = "Wait until it is done, or cancel it."
            raise Refused(f"You have a job here already: {place}.", hint, Remedy("open_job", own.id))

    def _refuse_written(self, destination: str) -> None:
        requests = [taken.record.request for taken in self._active()]
        if any(asked.kind == "shard" and asked.destination == destination for asked in requests):
            raise Refused(f"Another job is writing to {destination}.", "Choose another name.")

    def _take_stock(self) -> None:
        """Load the jobs of earlier desks. Those that had not ended count as interrupted."""
        for record in self._shelf.records():
            if record.state in ACTIVE:
                if record.process:
                    kill_stray(record.process)
                self._runner.end(ActiveJob(record, ""), "interrupted", INTERRUPTED)
            else:
                self._finished.append(record)

    def _now_and_then(self, seconds: float, tidy: Callable[[], None]) -> None:
        while not self._closing.wait(seconds):
            tidy()

    def _read_ended(self, job_id: str) -> JobStatus | None:
        record = self._shelf.load(job_id) if destination_of(job_id) else None
        if record and record.state in ACTIVE:  # its end could not be recorded
            record = replace(record, state="interrupted", error=INTERRUPTED)
        return status_of(record, self._shelf.history(record).told) if record else None

    def _status(self, taken: ActiveJob) -> JobStatus:
        if taken.record.state != "queued":
            return status_of(taken.record, taken.history.told)
        before = list(takewhile(lambda other: other is not taken, self._active()))
        factor, now = forecasts.correction(self._finished), self._clock()
        left = [forecasts.seconds_left(other.record, other.history.told.progress, factor, now) for other in before]
        seconds = forecasts.seconds_until_start(left, self._settings.jobs_at_once)
        return status_of(taken.record, taken.history.told, len(before), seconds)
