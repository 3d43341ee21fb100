"""Turn the state of jobs into the panels and the timeline that their owner sees. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from markupsafe import Markup

from sharding.core.errors import Remedy
from sharding.core.made import keeps_sizes, phrase
from sharding.core.text import count, duration, format_bytes, without_revision
from sharding.core.verification import Mismatch
from sharding.desk import JobStatus
from sharding.desk.forecast import range_around
from sharding.desk.jobs import JobRecord, newest_of
from sharding.page.links import Wish, query_of
from sharding.page.panels import about, log_panel
from sharding.page.render import help_with, render, without_options

_MOST_PERCENT = 99  # The bar is never full before the job is done.
_READING, _NUMBERS = 9, 1  # Parts of the bar. How many numbers differ is not known while it reads.
_FETCHING, _IMPORTING, _LOADING = 1, 1, 8  # The parts of the bar of a job that only measures loads.


@dataclass(frozen=True, slots=True)
class Step:
    """A phase of a job. It ends at the first of the times `ends` that is known. If it is not `certain`, it only has its
    part of the bar, which is `work` in bytes."""

    title: str
    headline: str
    ends: tuple[str, ...]
    work: float = 0.0
    stages: tuple[str, ...] = ()
    certain: bool = True
    state: str = "ahead"
    seconds: float | None = None


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


def timeline_of(status: JobStatus) -> Timeline:
    """Return the timeline of a job that has been started."""
    phases = {"verify": _of_check, "compare": _of_loads, "shard": _of_copy}[status.request.kind](status)
    ends = [next((status.times[name] for name in phase.ends if name in status.times), None) for phase in phases]
    passed = max((number for number, end in enumerate(ends, 1) if end), default=0)
    # What was published last is still to be reported.
    passed = len(phases) if status.state == "done" else min(passed, len(phases) - 1)
    steps, began = [], status.started
    for number, (phase, end) in enumerate(zip(phases, ends, strict=True)):
        ended = end or (status.ended if number == len(phases) - 1 else None)
        seconds = ended - began if number < passed and ended and began else None
        state = "done" if number < passed else "current" if number == passed else "ahead"
        if phase.certain:
            steps.append(replace(phase, state=state, seconds=seconds))
        began = ended if number < passed else None
    works = [phase.work for phase in phases]
    done = sum(works[:passed])
    if passed < len(phases):
        done += works[passed] * _share_done(status, phases[passed])
    percent, ahead = min(int(100 * done / (sum(works) or 1)), _MOST_PERCENT), phases[passed:]
    left = _left(status, ahead) if ahead and status.state == "running" else ""
    return Timeline(tuple(steps), percent, left, _numbers(status, ahead))


def _of_copy(status: JobStatus) -> list[Step]:
    size = status.planned.plan.total_bytes if status.planned else 1
    again = size
    if status.planned and not keeps_sizes(status.planned.plan.made):
        again += status.planned.source.total_bytes  # to prove the reads, the source is read whole
    phases = [Step("Plan", "Reading the headers", ("planned",))]
    if "check" in status.times:
        phases += [Step("Check earlier files", "Checking earlier files", ("transfer",), size, ("check",))]
    phases += [Step("Write the files", "Writing the files", ("written", "verify"), size, ("transfer",))]
    if status.request.proof == "stated":
        comparing = "Comparing the Hub's hashes, and reading a sample"
        phases += [Step("Compare the hashes", comparing, ("verified",), size / 100)]
    else:
        phases += [Step("Read them again", "Reading the copy again", ("verified",), again, ("verify",))]
    if status.request.compare_rounds:
        phases += [Step("Measure loading", _loading(status), ("compared",), size + again)]
    return [*phases, Step("Publish", "Publishing the copy", ("published",))]


def _of_check(status: JobStatus) -> list[Step]:
    read, numbers = ("check", "verify"), "Compare the numbers that differ"
    happens = "numbers" in status.times
    may_happen = happens or "verified" not in status.times
    return [
        Step("Read the headers", "Reading the headers", read),
        Step("Read every byte of both", "Reading both repos", ("numbers", "verified"), _READING, read),
        *[Step(numbers, "Comparing what differs", ("verified",), _NUMBERS, ("numbers",), happens)] * may_happen,
    ]


def _of_loads(status: JobStatus) -> list[Step]:
    now, begun = _loading(status), ("loading", "compared")
    return [
        Step("Fetch the files", now, ("fetched", *begun), _FETCHING, ("fetch",)),
        Step("Import the libraries", now, begun, _IMPORTING),
        Step("Measure loading", now, ("compared",), _LOADING),
    ]


def _loading(status: JobStatus) -> str:
    if status.loads:
        return "Loading both in turn"
    return "Importing the libraries" if "fetched" in status.times else "Fetching the files"


def _share_done(status: JobStatus, phase: Step) -> float:
    progress = status.progress
    if progress and progress.phase in phase.stages and progress.bytes_total:
        return progress.bytes_done / progress.bytes_total
    return status.loads[0] / status.loads[1] if status.loads and not phase.stages else 0.0


def _left(status: JobStatus, ahead: Sequence[Step]) -> str:
    """Return the time left by the rate that was measured last. `ahead` begins with the current phase."""
    now, times, without = status.progress, status.times, ""
    if status.loads and not ahead[0].stages and ahead[0].work:
        done, total = status.loads
        if done < 2:
            return ""
        seconds = (total - done) * (times["loaded"] - times["loading"]) / (done - 1)
    elif now and now.waiting_seconds:
        return f"the Hub asks to wait {about(*range_around(now.waiting_seconds))}"
    elif not now or now.phase not in ahead[0].stages or not now.bytes_per_second:
        return ""
    else:
        later = sum(phase.work for phase in ahead[1:] if phase.stages and phase.certain)
        seconds = (now.bytes_total - now.bytes_done + later) / now.bytes_per_second
        loads = status.request.compare_rounds or status.request.kind == "compare"
        without = ", without the loads" if loads else ""
    return f"{about(*range_around(seconds))} left{without}"


def _numbers(status: JobStatus, ahead: Sequence[Step]) -> tuple[tuple[str, str], ...]:
    """Return the numbers of a job: the same names from its start to its end, so that no row moves."""
    now, kind, loads = status.progress, status.request.kind, ("Loads", "{} of {}".format(*status.loads or (0, "–")))
    there = {now.phase: f"{format_bytes(now.bytes_done)} of {format_bytes(now.bytes_total)}"} if now else {}
    reads = now and now.bytes_per_second and ahead and now.phase in ahead[0].stages
    speed = ("Speed", f"{format_bytes(now.bytes_per_second)}/s" if now and reads else "–")
    if kind == "compare":
        return ("Fetched", there.get("fetch", "–")), speed, loads
    if kind == "verify":
        return ("Read", next(iter(there.values()), "–")), speed
    size = format_bytes(status.planned.plan.total_bytes) if status.planned else "–"
    again = ("Read again", f"{format_bytes(sum(status.reread.values()))} of {size}")
    return (
        ("Written", f"{format_bytes(sum(status.written.values()))} of {size}"),
        *([again] if status.request.proof == "read" else []),
        speed,
        ("Memory", format_bytes(now.anon_bytes) if now and now.anon_bytes else "–"),
        *([loads] if status.request.compare_rounds else []),
        ("Uploaded", format_bytes(now.bytes_uploaded) if now else "–"),
        ("On the Hub already", format_bytes(now.bytes_deduplicated) if now else "–"),
    )


_MOST_JOBS = 8
_LATER = "You can close this page and come back with the link of the job."
_CANCELLED = {
    "compare": "Nothing was measured to the end.",
    "verify": "The check did not finish, so it proves nothing.",
    "shard": "Nothing was published, and its unfinished files were deleted.",
}


def heading_of(status: JobStatus) -> str:
    """Return the heading of a job that has not come to its result."""
    is_over, asked = status.state in ("failed", "cancelled"), status.request
    title = "Checking a result" if asked.of_result else "Comparing two repos"
    if asked.kind == "compare":
        title = "Loading was not measured" if is_over else "Measuring what loading costs"
    elif asked.kind == "shard":
        title = "The copy was not published" if is_over else "Making the copy"
    return render("heading", title=title)


def past_panel(status: JobStatus, source_link: str) -> str:
    """Return how a job went that has come to its result, folded."""
    parts = {"job": Markup(job_panel(status, source_link, "")), "log": Markup(log_panel(status))}
    return render("past", seconds=status.whole_seconds, **parts)


def job_panel(status: JobStatus, source_link: str, link: str) -> str:
    """Return the panel with the status of a job. `link` leads back to it."""
    is_active = status.state in ("queued", "running", "cancelling")
    is_timed = is_active or (status.started and status.state not in ("failed", "cancelled"))
    timeline = timeline_of(status) if is_timed else None
    headline, detail = _headline(status, timeline)
    asked, is_check = status.request, status.request.kind != "shard"
    pair = Wish(compare=asked.source, against=asked.destination)
    read = query_of(Wish(result=asked.destination) if asked.of_result else pair)
    before = (read, "Go back") if is_check else (_form_of(status), "Back to the plan")
    overflowing = _form_of(status, with_overflow=True) if status.remedy == Remedy("allow_overflow") else None
    values: dict[str, Any] = {"source": without_revision(asked.source), "source_link": source_link}
    values |= {"done": _done(status), "headline": headline, "detail": detail, "timeline": timeline, "link": link}
    values |= {"is_active": is_active, "is_running": status.state == "running", "is_check": is_check}
    values |= {"tick": f"{status.progress.bytes_done if status.progress else 0} {status.log[-1:]}"}
    values |= {"files": files_of(status) if status.state != "failed" else Files(), "overflowing": overflowing}
    values |= {"again": before if status.state in ("cancelled", "failed") else None}
    return render("job", status=status, help=help_with(status.remedy), mismatches=mismatches_of(status), **values)


def _done(status: JobStatus) -> str:
    """Return what goes on "a copy of X": what was done to the numbers or, if that is not known yet, what was asked."""
    known = status.planned.plan if status.planned else status.verification
    if known:
        return phrase(known.made, lambda place: place.name)
    asked = status.request.options.inputs.items()
    return "".join(f", with the {role} {without_revision(text)}" for role, text in asked)


def jobs_panel(jobs: Sequence[JobRecord]) -> str:
    """Return the list of an owner's `jobs` (newest first): the newest of each copy and check, with its link."""
    newest = newest_of(jobs)[:_MOST_JOBS]
    return render("jobs", jobs=[(record, query_of(Wish(job=record.id))) for record in newest])


def _headline(status: JobStatus, timeline: Timeline | None) -> tuple[str, str]:
    match status.state:
        case "queued":
            before = f"Waiting for {count(status.position, 'job')} before this one" if status.position else "Starting"
            seconds = status.seconds_until_start
            start = f"It will start in about {duration(seconds)}." if seconds is not None and status.position else ""
            return before, f"{start} {_LATER}".strip()
        case "running":
            return timeline.headline if timeline else "Starting", _LATER
        case "cancelling":
            return "Cancelling", "" if status.request.kind != "shard" else "Its unfinished files are being deleted."
        case "cancelled":
            return "Cancelled", f"{_CANCELLED[status.request.kind]} {status.remark}".rstrip()
        case "done":
            return "Done", ""
        case "interrupted":
            reason = status.error[0] if status.error else ""
            return "Interrupted", f"{reason} Resume keeps the finished files and goes on from there.".strip()
        case "failed":
            text, hint = status.error or ("", "")
            differ = "Cannot be told" if status.is_undecided else "They differ"
            return differ if differs(status) else "Failed", f"{text} {without_options(hint)}".strip()


def differs(status: JobStatus) -> bool:
    """Return whether a job has read both repos and not found them equal. Reading these commits again would not help."""
    proof = status.verification
    return status.request.kind == "verify" and proof is not None and not proof.holds


def has_outcome(status: JobStatus) -> bool:
    """Return whether a job has made, read or measured what it was to, so that it shows that instead of itself."""
    proof = status.verification
    differed = status.state == "failed" and differs(status)
    return status.state == "done" or bool(differed and proof and proof.differences)


def mismatches_of(status: JobStatus) -> list[Mismatch]:
    """Return the mismatches of a failed job, without those that `differences_panel` shows with their numbers."""
    proof = status.verification
    if proof is None or status.state != "failed":
        return []
    numbers = {difference.tensor for difference in proof.differences or ()}
    return [mismatch for mismatch in proof.mismatches if mismatch.tensor not in numbers]


def _form_of(status: JobStatus, with_overflow: bool = False) -> str:
    asked = status.request
    options = replace(asked.options, allow_overflow=asked.options.allow_overflow or with_overflow)
    wish = Wish(asked.source, options, asked.goal, to=asked.destination, private=bool(asked.private), proof=asked.proof)
    return query_of(replace(wish, measure=bool(asked.compare_rounds), engine=asked.engine))


@dataclass(frozen=True, slots=True)
class Files:
    """How far a copy is: runs of its files ("0-3,7-7"), and those `filling` with the per cent ("4:45")."""

    finished: str = ""
    filling: str = ""
    checked: str = ""
    written: int = 0
    reread: int = 0


def files_of(status: JobStatus) -> Files:
    """Return how far the files of a job are. One that was finished is whole, and none that is written is."""
    if status.planned is None:
        return Files()
    done, filling = {shard.file for shard in status.shards}, []
    shards = status.planned.plan.shards
    for number, shard in enumerate(shards):
        percent = 100 * status.written.get(shard.file, 0) // (shard.bytes or 1)
        if shard.file not in done and percent:
            filling.append(f"{number}:{min(percent, 99)}")
    finished = [number for number, shard in enumerate(shards) if shard.file in done]
    # A file without bytes has nothing to read again.
    checked = [n for n in finished if status.reread.get(shards[n].file, -1) >= shards[n].bytes]
    return Files(_runs(finished), ",".join(filling), _runs(checked), len(finished), len(checked))


def _runs(numbers: Iterable[int]) -> str:
    runs = ([number for _, number in run] for _, run in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]))
    return ",".join(f"{run[0]}-{run[-1]}" for run in runs)
