"""Turn the state of jobs into the panels that their owner sees. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sharding.core.errors import Remedy
from sharding.core.text import count, duration, format_bytes
from sharding.core.values import Mismatch
from sharding.desk import JobStatus
from sharding.desk.jobs import JobRecord, newest_of
from sharding.page.links import Wish, query_of
from sharding.page.remedies import help_with, without_options
from sharding.page.render import render

_PHASES = {
    "check": "Checking the files that an earlier run finished",
    "transfer": "Writing the files",
    "verify": "Reading the copy again to verify it",
    "numbers": "Comparing the numbers that differ",
}
_CHECKING = "Reading every byte of both repos"
_LOADING = "Loading the original and the copy in turn, to compare"
_OVERFLOW = Remedy("allow_overflow")
_MOST_JOBS = 8
_LATER = "You can close this page and come back with the link of the job."


@dataclass(frozen=True, slots=True)
class Bar:
    """The progress bar of a job, in per cent of all its bytes, and the numbers beside it.

    `step` is the number of the phase, and how many phases there are. `left` is an estimate in seconds.
    """

    phase: str
    step: tuple[int, int] | None
    percent: int
    left: float | None
    numbers: tuple[tuple[str, str], ...]


def heading_of(status: JobStatus) -> str:
    """Return the heading of a job."""
    if status.request.kind == "verify":
        return render("heading", title="Checking a result" if status.request.of_result else "Comparing two repos")
    return render("heading", title="Your copy" if status.state == "done" else "Making the copy")


def job_panel(status: JobStatus, source_link: str, link: str) -> str:
    """Return the panel with the status of a job. `link` leads back to it."""
    headline, detail = _headline(status)
    is_check = status.request.kind == "verify"
    return render(
        "job",
        status=status,
        source=status.request.source.partition("@")[0],
        source_link=source_link,
        headline=headline,
        detail=detail,
        bar=_bar(status),
        tick=f"{status.progress.bytes_done if status.progress else 0} {status.log[-1:]}",
        link=link,
        is_active=status.state in ("queued", "running", "cancelling"),
        finished=_runs(status),
        shards=len(status.planned.plan.shards) if status.planned else 0,
        help=help_with(status.remedy),
        mismatches=_mismatches(status),
        again=_form_of(status) if status.state in ("cancelled", "failed") and not is_check else None,
        overflowing=_form_of(status, with_overflow=True) if status.remedy == _OVERFLOW else None,
        is_check=is_check,
    )


def jobs_panel(jobs: Sequence[JobRecord]) -> str:
    """Return the list of an owner's `jobs` (newest first): the newest of each copy and check, with its link."""
    newest = newest_of(jobs)[:_MOST_JOBS]
    return render("jobs", jobs=[(record, query_of(Wish(job=record.id))) for record in newest])


def _headline(status: JobStatus) -> tuple[str, str]:
    match status.state:
        case "queued":
            before = f"Waiting for {count(status.position, 'job')} before this one" if status.position else "Starting"
            seconds = status.seconds_until_start
            start = f"It will start in about {duration(seconds)}." if seconds is not None and status.position else ""
            return before, f"{start} {_LATER}".strip()
        case "running":
            return _LOADING if status.loads else _phase(status), _LATER
        case "cancelling":
            return "Cancelling", "" if status.request.kind == "verify" else "Its staged files are being discarded."
        case "cancelled" if status.request.kind == "verify":
            return "Cancelled", "The check did not finish, so it proves nothing."
        case "cancelled":
            return "Cancelled", f"Nothing was published, and its staged files were discarded. {status.remark}".rstrip()
        case "done":
            return "Done", status.remark
        case "interrupted":
            reason = status.error[0] if status.error else ""
            return "Interrupted", f"{reason} Resume keeps the finished files and goes on from there.".strip()
        case "failed":
            text, hint = status.error or ("", "")
            return "They differ" if differs(status) else "Failed", f"{text} {without_options(hint)}".strip()


def _phase(status: JobStatus) -> str:
    if status.progress is None:
        return "Reading the headers"
    is_reading = status.request.kind == "verify" and status.progress.phase != "numbers"
    return _CHECKING if is_reading else _PHASES[status.progress.phase]


def differs(status: JobStatus) -> bool:
    """Return whether a job has read both repos and found a difference. Reading these commits again would not help."""
    proof = status.verification
    return status.request.kind == "verify" and proof is not None and not proof.identical


def _mismatches(status: JobStatus) -> list[Mismatch]:
    """Return the mismatches of a failed job, without those that `differences_panel` shows with their numbers."""
    proof = status.verification
    if proof is None or status.state != "failed":
        return []
    numbers = {difference.tensor for difference in proof.differences or ()}
    return [mismatch for mismatch in proof.mismatches if mismatch.tensor not in numbers]


def _form_of(status: JobStatus, with_overflow: bool = False) -> str:
    """Return the link to the plan of a job, with the same choices, and `with_overflow` with overflow allowed."""
    asked = status.request
    options = replace(asked.options, allow_overflow=asked.options.allow_overflow or with_overflow)
    return query_of(Wish(asked.source, options, to=asked.destination, private=bool(asked.private)))


def _runs(status: JobStatus) -> str:
    """Return which files are finished, as numbers from 0: "0-3,7". The map shows these in colour."""
    if status.planned is None:
        return ""
    done = {shard.file for shard in status.shards}
    runs: list[list[int]] = []
    for number, shard in enumerate(status.planned.plan.shards):
        if shard.file in done and runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        elif shard.file in done:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" for first, last in runs)


def _bar(status: JobStatus) -> Bar | None:
    progress = status.progress
    if progress is None or status.state != "running":
        return None
    if status.loads:
        done, total = status.loads
        return Bar(_LOADING, None, int(100 * done / total), None, (("Loads", f"{done} of {total}"),))
    done, total, rate = progress.bytes_done, progress.bytes_total, progress.bytes_per_second
    is_check = status.request.kind == "verify"
    numbers: tuple[tuple[str, str], ...] = (
        ("In this phase", f"{format_bytes(done)} of {format_bytes(total)}"),
        ("Speed", f"{format_bytes(rate)}/s"),
        ("File", progress.file or "…"),
        ("Memory", format_bytes(progress.anon_bytes)),
    )
    if is_check:
        return Bar(_phase(status), None, int(100 * done / total) if total else 0, progress.seconds_left, numbers)
    uploaded, there = format_bytes(progress.bytes_uploaded), format_bytes(progress.bytes_deduplicated)
    numbers += (("Uploaded", uploaded), ("On the Hub already", there))
    # Every byte is moved once and read again once.
    verifying = progress.phase == "verify"
    percent = int(100 * (0.5 * verifying + (0.5 * done / total if total else 0)))
    left = progress.seconds_left
    if left is not None and not verifying and rate:
        left += total / rate
    return Bar(_phase(status), (2 if verifying else 1, 2), percent, left, numbers)
