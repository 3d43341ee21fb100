"""Turn the state of a job into one timeline of all its phases, with one bar through them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sharding.core.text import format_bytes, time_range
from sharding.desk import JobStatus
from sharding.desk.forecast import range_around

_A_MOMENT = 5.0
_MOST_PERCENT = 99
"""The bar is never full before the job is done."""
_READING, _NUMBERS = 9, 1
"""The parts of the bar for reading and for the numbers that differ. How many differ is not known while it reads."""


@dataclass(frozen=True, slots=True)
class Step:
    """A phase of a job: its title and state, and its seconds once it is done. `headline` says it while it goes on."""

    title: str
    headline: str
    state: Literal["done", "current", "ahead"]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """All phases of a job. `percent` counts them together. `left` is the time left in words, "" if it is unknown."""

    steps: tuple[Step, ...]
    percent: int
    left: str
    numbers: tuple[tuple[str, str], ...]

    @property
    def headline(self) -> str:
        """What the job does now."""
        return next((step.headline for step in self.steps if step.state == "current"), "")


@dataclass(frozen=True, slots=True)
class _Phase:
    """A phase that a job will pass. `work` is its bytes, or what takes as long. `ended` is when it was done.

    `stages` are the phases of its progress events. If it is not `certain`, it only has its part of the bar.
    """

    title: str
    headline: str
    ended: float | None
    work: float = 0.0
    stages: tuple[str, ...] = ()
    certain: bool = True


def timeline_of(status: JobStatus) -> Timeline:
    """Return the timeline of a job that has been started."""
    phases = _of_check(status) if status.request.kind == "verify" else _of_copy(status)
    ends = [phase.ended for phase in phases]
    passed = max((number for number, end in enumerate(ends, 1) if end), default=0)
    # What was published last is still to be reported.
    passed = len(phases) if status.state == "done" else min(passed, len(phases) - 1)
    steps, began = [], status.started
    for number, phase in enumerate(phases):
        ended = phase.ended or (status.ended if number == len(phases) - 1 else None)
        seconds = ended - began if number < passed and ended and began else None
        state: Literal["done", "current", "ahead"] = (
            "done" if number < passed else "current" if number == passed else "ahead"
        )
        if phase.certain:
            steps.append(Step(phase.title, phase.headline, state, seconds))
        began = ended if number < passed else None
    works = [phase.work for phase in phases]
    done = sum(works[:passed])
    if passed < len(phases):
        done += works[passed] * _share_done(status, phases[passed])
    percent = min(int(100 * done / (sum(works) or 1)), _MOST_PERCENT)
    return Timeline(tuple(steps), percent, _left(status, phases[passed:]), _numbers(status, phases[passed:]))


def _of_copy(status: JobStatus) -> list[_Phase]:
    times, asked = status.times, status.request
    size = status.planned.plan.total_bytes if status.planned else 1
    again = size
    if status.planned and status.planned.plan.dtype != "keep":
        again += status.planned.source.total_bytes  # to prove the reads, the source is read whole
    phases = [_Phase("Plan", "Reading the headers", times.get("planned"))]
    if "check" in times:
        checking = "Checking the files that an earlier run finished"
        phases += [_Phase("Check the files of an earlier run", checking, times.get("transfer"), size, ("check",))]
    written = times.get("written", times.get("verify"))
    phases += [
        _Phase("Write the files", "Writing the files", written, size, ("transfer",)),
        _Phase("Read them again", "Reading the copy again to verify it", times.get("verified"), again, ("verify",)),
    ]
    if asked.compare_rounds:
        loading = "Loading the original and the copy in turn, to compare"
        phases += [_Phase("Load both", loading, times.get("compared"), size + again)]
    return [*phases, _Phase("Publish", "Publishing the copy", times.get("published"))]


def _of_check(status: JobStatus) -> list[_Phase]:
    times = status.times
    begun = min((times[phase] for phase in ("check", "verify") if phase in times), default=None)
    read = times.get("numbers", times.get("verified"))
    phases = [
        _Phase("Read the headers", "Reading the headers", begun),
        _Phase("Read every byte of both", "Reading every byte of both repos", read, _READING, ("check", "verify")),
    ]
    comparing, happens = "Comparing the numbers that differ", "numbers" in times
    if happens or "verified" not in times:
        ended, title = times.get("verified"), "Compare the numbers that differ"
        phases += [_Phase(title, comparing, ended, _NUMBERS, ("numbers",), happens)]
    return phases


def _share_done(status: JobStatus, phase: _Phase) -> float:
    """Return which share of its current `phase` a job has done."""
    progress = status.progress
    if progress and progress.phase in phase.stages and progress.bytes_total:
        return progress.bytes_done / progress.bytes_total
    return status.loads[0] / status.loads[1] if status.loads and not phase.stages else 0.0


def _left(status: JobStatus, ahead: Sequence[_Phase]) -> str:
    """Return the time left by the rate that was measured last. `ahead` begins with the current phase."""
    progress = status.progress
    if progress is None or not ahead or status.state != "running":
        return ""
    if status.loads and "loaded" in status.times and not ahead[0].stages and ahead[0].work:
        done, total = status.loads
        return _in_words((total - done) * (status.times["loaded"] - status.times.get("verified", 0.0)) / done)
    if progress.phase not in ahead[0].stages or not progress.bytes_per_second:
        return ""
    later = sum(phase.work for phase in ahead[1:] if phase.stages and phase.certain)
    words = _in_words((progress.bytes_total - progress.bytes_done + later) / progress.bytes_per_second)
    return f"{words}, without the loads" if status.request.compare_rounds else words


def _in_words(seconds: float) -> str:
    lower, upper = range_around(seconds)
    return "a few seconds left" if upper <= _A_MOMENT else f"about {time_range(lower, upper)} left"


def _numbers(status: JobStatus, ahead: Sequence[_Phase]) -> tuple[tuple[str, str], ...]:
    """Return the numbers that matter in the current phase, which `ahead` begins with."""
    progress = status.progress
    if progress is None or not ahead or status.state != "running":
        return ()
    rate: tuple[tuple[str, str], ...] = (("Memory", format_bytes(progress.anon_bytes)),)
    if progress.bytes_per_second:
        rate = (("Speed", f"{format_bytes(progress.bytes_per_second)}/s"), *rate)
    there = f"{format_bytes(progress.bytes_done)} of {format_bytes(progress.bytes_total)}"
    if status.request.kind == "verify":
        return (("Read", there), *rate)
    size = status.planned.plan.total_bytes if status.planned else 0
    numbers: tuple[tuple[str, str], ...] = (
        ("Written", f"{format_bytes(sum(status.written.values()))} of {format_bytes(size)}"),
    )
    if progress.phase == "verify":
        numbers += (("Read again", there),)
    if ahead[0].stages:
        numbers += rate
    elif status.loads:
        numbers += (("Loads", "{} of {}".format(*status.loads)),)
    uploaded, deduplicated = format_bytes(progress.bytes_uploaded), format_bytes(progress.bytes_deduplicated)
    return (*numbers, ("Uploaded", uploaded), ("On the Hub already", deduplicated))
