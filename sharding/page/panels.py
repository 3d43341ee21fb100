"""Turn plans, states of jobs and reports into the panels of the page. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from sharding.core.errors import ShardingError
from sharding.core.text import count, duration, format_bytes
from sharding.core.values import Checkpoint, Finding, Plan
from sharding.desk import JobStatus
from sharding.desk.forecast import Forecast
from sharding.loading.devices import DevicePlan
from sharding.page.file_table import files_of_plan, files_of_source, files_told
from sharding.page.links import Wish, query_of
from sharding.page.render import render
from sharding.report.report import summarize_source
from sharding.report.schema import Report
from sharding.report.snippets import how_to_check, loading_snippets
from sharding.storage.hub_lookup import SourceCard
from sharding.verify.trust import Level, Trust

_PHASES = {
    "check": "Checking what an earlier run has finished",
    "transfer": "Writing shards",
    "verify": "Reading the result again to prove it",
}
_CHECKING = "Reading every byte of both"
_LOADING = "Loading the original and the copy in turn, to compare"


@dataclass(frozen=True, slots=True)
class Bar:
    """How far a job is, in per cent of all that it moves, and the numbers beside it."""

    phase: str
    percent: int
    numbers: tuple[tuple[str, str], ...]


def message(text: str, hint: str = "", level: str = "note") -> str:
    """Return a sentence to stand beside the field it is about; an address in `hint` becomes a link."""
    return render("message", message=text, hint=hint, level=level)


def problem(error: ShardingError) -> str:
    """Return what went wrong and what helps."""
    return message(error.message, error.hint, "error")


def facts_panel(checkpoint: Checkpoint, card: SourceCard) -> str:
    """Return what a source is."""
    sizes = summarize_source(checkpoint).dtypes
    shares = sorted(sizes, key=lambda dtype: -sizes[dtype])
    access = "gated" if card.gated else "private" if card.private else "open to all"
    parameters = checkpoint.total_parameters
    dtypes = ", ".join(shares[:4])
    return render("facts", checkpoint=checkpoint, card=card, parameters=parameters, dtypes=dtypes, access=access)


def plan_panel(checkpoint: Checkpoint, plan: Plan) -> str:
    """Return the shards of a plan beside today's files."""
    return render("plan", old=files_of_source(checkpoint), new=files_of_plan(plan, checkpoint), plan=plan)


def forecast_panel(forecast: Forecast, findings: Sequence[Finding]) -> str:
    """Return what the job will take on this machine, and what else there is to know of it."""
    return render("forecast", forecast=forecast, found=findings)


def devices_panel(plan: DevicePlan) -> str:
    """Return which part of a model goes on which device, and the code that does it."""
    return render("devices", plan=plan)


def job_panel(status: JobStatus, source_link: str) -> str:
    """Return how a job is."""
    new = files_told(status.planned, (shard.file for shard in status.shards))[1] if status.planned else None
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
        new=new if status.state != "done" else None,
        done_count=len(status.shards),
        again=_form_of(status) if status.state in ("cancelled", "failed") and not is_check else None,
        is_check=is_check,
    )


def log_panel(lines: Sequence[str]) -> str:
    """Return what a job has said."""
    return render("log", lines=lines)


def result_panel(report: Report, repo_id: str, page: str, link: str, source_link: str | None, trust: Trust) -> str:
    """Return a result that may be relied on as far as `trust` says, which is not "contradicted"."""
    old, new = files_told(report)
    comparison, made_from = report.comparison, report.source
    load = loading_snippets(repo_id, made_from.architecture, made_from.library, made_from.variant)
    return render(
        "result",
        report=report,
        repo_id=repo_id,
        page=page,
        link=link,
        source_link=source_link,
        trust=trust,
        is_known=trust.level in _KNOWN,
        can_check=trust.level == "fits",
        verdict=_verdict(report, trust.level),
        infinite=sum(report.overflowed.values()),
        old=old,
        new=new,
        picture=Markup(comparison.picture) if comparison and comparison.picture else None,
        snippets={**load, **how_to_check(report, repo_id)},
    )


_KNOWN: tuple[Level, ...] = ("made-here", "read-now")
"""Levels at which this machine itself has read every byte."""


def _verdict(report: Report, level: Level) -> str:
    """Return the headline: it says no more than is known."""
    proof, source = report.verification, f"{report.source.repo_id}@{report.source.revision[:12]}"
    source += f", variant {report.source.variant}" if report.source.variant else ""
    cast = "" if proof.dtype == "keep" else f", cast to {proof.dtype}"
    if not proof.identical:
        return f"{count(len(proof.mismatches), 'difference')} from {source}; nothing was published"
    match level:
        case "made-here" | "read-now":
            return f"All {count(proof.tensors, 'tensor')} bit-identical to {source}{cast}"
        case "fits":
            return f"Fits together with {source}{cast}"
        case _:
            return f"Claims to be {source}{cast}"


def _headline(status: JobStatus) -> tuple[str, str]:
    match status.state:
        case "queued":
            before = f"Waiting for {count(status.position, 'job')} before this one" if status.position else "Starting"
            seconds = status.seconds_until_start
            start = f"It will start in about {duration(seconds)}." if seconds is not None and status.position else ""
            return before, f"{start} You may close this page and come back with its link.".strip()
        case "running":
            if status.loads:
                return _LOADING, "You may close this page and come back with its link."
            return _phase(status), "You may close this page and come back with its link."
        case "cancelling":
            return "Cancelling", "" if status.request.kind == "verify" else "What was staged is being discarded."
        case "cancelled" if status.request.kind == "verify":
            return "Cancelled", "So nothing is known of the bytes."
        case "cancelled":
            return "Cancelled", f"Nothing was published, and what was staged is gone. {status.remark}".rstrip()
        case "done":
            return "Done", status.remark
        case "interrupted":
            return "Interrupted", " ".join(status.error or ())
        case "failed":
            return "Failed", " ".join(status.error or ())


def _phase(status: JobStatus) -> str:
    if status.progress is None:
        return "Reading the headers"
    return _CHECKING if status.request.kind == "verify" else _PHASES[status.progress.stage]


def _form_of(status: JobStatus) -> str:
    return query_of(Wish(status.request.source.partition("@")[0], options=status.request.options))


def _bar(status: JobStatus) -> Bar | None:
    progress = status.progress
    if progress is None or status.state != "running":
        return None
    if status.loads:
        done, total = status.loads
        return Bar(_LOADING, int(100 * done / total), (("Loads", f"{done} of {total}"),))
    done, total = progress.bytes_done, progress.bytes_total
    is_check = status.request.kind == "verify"
    # Every byte of a job is moved once and read again once.
    before = 0.5 if progress.stage == "verify" and not is_check else 0.0
    span = 1.0 if is_check else 0.5
    left = progress.seconds_left
    numbers: tuple[tuple[str, str], ...] = (
        ("This phase", f"{format_bytes(done)} of {format_bytes(total)}"),
        ("Rate", f"{format_bytes(progress.bytes_per_second)}/s"),
        ("Left in it", duration(left) if left is not None else "…"),
        ("In work", progress.file or "…"),
        ("Memory now", format_bytes(progress.anon_bytes)),
    )
    if not is_check:
        uploaded, deduplicated = format_bytes(progress.bytes_uploaded), format_bytes(progress.bytes_deduplicated)
        numbers += (("Uploaded", uploaded), ("Deduplicated", deduplicated))
    return Bar(_phase(status), int(100 * (before + (span * done / total if total else 0))), numbers)
