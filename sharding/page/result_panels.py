"""Turn the report of a result into panels that claim no more than is known. Pure."""

from dataclasses import dataclass

from markupsafe import Markup

from sharding.core.text import count, source_name
from sharding.page.panels import files_of
from sharding.page.render import render
from sharding.report.schema import Report
from sharding.report.snippets import download_snippet, how_to_check, loading_snippets, pipeline_snippets
from sharding.verify.trust import Level, Trust

READ_HERE: tuple[Level, ...] = ("made-here", "read-now")
"""Levels at which this page has read every byte itself."""

CLAIMED, FITS, READ = 1, 2, 3
"""The steps of the ladder of proofs."""


@dataclass(frozen=True, slots=True)
class Rung:
    """How far the ladder of proofs is climbed: the last step that is `reached`, and the one that `failed`, if any.

    `words` say below each step what it rests on.
    """

    reached: int
    failed: int = 0
    words: tuple[str, str, str] = ("somebody says so", "names, shapes and dtypes", "read by this page")


def rung_of(trust: Trust) -> Rung:
    """Return how far the ladder is climbed for a result that is not "contradicted"."""
    if trust.level in READ_HERE:
        return Rung(READ)
    return Rung(FITS if trust.level == "fits" else CLAIMED)


def result_panel(report: Report, trust: Trust) -> str:
    """Return the head of a result, in words for the level of `trust`, which is not "contradicted"."""
    return render(
        "result",
        report=report,
        trust=trust,
        is_known=trust.level in READ_HERE,
        can_check=can_check(report, trust),
        verdict=_verdict(report, trust.level),
        infinite=sum(report.overflowed.values()),
    )


def can_check(report: Report, trust: Trust) -> bool:
    """Return whether a visitor can have every byte read here, and has a reason to."""
    return trust.level == "fits" and not report.needs_folder


@dataclass(frozen=True, slots=True)
class Places:
    """Where a result is: its `repo_id` and `page` on the Hub, its `link` to this page, and the page of its `source`.

    `badge` is the address of its badge, "" if other sites cannot reach this page.
    """

    repo_id: str
    page: str
    link: str
    source: str | None
    badge: str = ""


def details_panel(report: Report, places: Places, trust: Trust, seconds: float | None = None) -> str:
    """Return how to use a result, its link, and the facts of its report: files, cost of loading, how it was made.

    Unless the copy was made here, they are shown as the word of its report. `seconds` is the time of the whole job,
    None if this page did not run it. A report counts only copying and checking, because it is published with the copy.
    For a single file, the line that downloads it comes first.
    """
    source, comparison = report.source, report.comparison
    load = loading_snippets(places.repo_id, source.architecture, source.library, source.variant, source.weights_name)
    get, load = download_snippet(report, places.repo_id), {**pipeline_snippets(report, places.repo_id), **load}
    snippets = {**get, **load} if len(report.plan.shards) == 1 else {**load, **get}
    return render(
        "details",
        places=places,
        snippets={**snippets, **how_to_check(report, places.repo_id)},
        report=report,
        is_ours=trust.level == "made-here",
        seconds=seconds,
        new=files_of(report.plan),
        picture=Markup(comparison.picture) if comparison and comparison.picture else None,
    )


def _verdict(report: Report, level: Level) -> str:
    """Return the headline, which claims no more than is known."""
    proof, source = report.verification, source_name(report.source.kind, report.source.repo_id)
    source += f"@{report.source.revision[:12]}" if report.source.kind == "hub" else ""
    source += f", variant {report.source.variant}" if report.source.variant else ""
    cast = "" if proof.dtype == "keep" else f", cast to {proof.dtype}"
    cast = f", dequantized to {proof.dtype} ({proof.dequantized})" if proof.dequantized else cast
    if not proof.identical:
        return f"{count(len(proof.mismatches), 'difference')} from {source}; nothing was published"
    match level:
        case "made-here" | "read-now":
            same = "match what was read from" if proof.unstated else "bit-identical to"
            return f"All {count(proof.tensors, 'tensor')} {same} {source}{cast}"
        case "unreached":
            return "Of a commit that is on no known branch"
        case "fits":
            return f"Matches the structure of {source}{cast}; bytes not checked yet"
        case _:
            return f"Claims to be {source}{cast}"
