"""Turn the report of a result into panels that claim no more than is known. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from sharding.core.errors import UsageError
from sharding.core.made import Made, explained, keeps_sizes, phrase
from sharding.core.origin import Place
from sharding.core.text import count, format_bytes, time_range, within_words
from sharding.desk import Forecast, JobStatus
from sharding.formats.names import DIGESTS_NAME, REPORT_NAME
from sharding.page.links import Wish, query_of
from sharding.page.panels import message
from sharding.page.render import render
from sharding.planning.devices import parse_budgets
from sharding.report import snippets
from sharding.report.report import asked_of, decided_by
from sharding.report.schema import Report
from sharding.report.snippets import COLAB
from sharding.verify.trust import Level, Trust

TITLES = "Has a report", "Structure matches", "Hashes match", "Every byte read"  # The ladder of proofs.
READ_HERE: tuple[Level, ...] = ("made-here", "read-now")  # Levels at which this page has read every byte itself.
CLAIMED, FITS, STATED, READ = 1, 2, 3, 4  # The numbers of the steps.
_WRITTEN = "no proof: anyone could write one"


@dataclass(frozen=True, slots=True)
class Rung:
    """How far the ladder of proofs is climbed, and what each step rests on. One without words is left out."""

    reached: int
    failed: int = 0
    words: tuple[str, str, str, str] = ("", "names, shapes and dtypes", "", "read by this page")
    titles: tuple[str, str, str, str] = TITLES


def rung_of(trust: Trust) -> int:
    """Return the highest step of the ladder for a result that is not "contradicted"."""
    steps: dict[Level, int] = {"made-here": READ, "read-now": READ, "stated": STATED, "fits": FITS}
    return steps.get(trust.level, CLAIMED)


@dataclass(frozen=True, slots=True)
class Places:
    """Where a result is: its repo, and its `link` to this page. `badge` is "" if no other site can show it."""

    repo_id: str
    endpoint: str
    link: str
    revision: str = ""
    badge: str = ""
    install: str = "pip install .  # in a clone of the code of this page"


def result_panel(report: Report, trust: Trust, places: Places, reading: Forecast | None = None) -> str:
    """Return the certificate of a result, or that it does not match. `reading` is what a check would cost."""
    if trust.level == "contradicted":
        text = f"The report in {places.repo_id} does not match the repos, so it is not shown."
        return message(text, " ".join(trust.reasons), "error")
    documents = {REPORT_NAME: "The report", DIGESTS_NAME: "Checksums of every tensor"}
    codes = _codes(report, places.repo_id) if report.verification.holds else {}
    page, revision = f"{places.endpoint}/{places.repo_id}", places.revision or "main"
    links = {title: f"{page}/blob/{revision}/{name}" for name, title in documents.items() if name in report.files}
    known, size = made_of(trust), format_bytes(max(shard.bytes for shard in report.shards))
    values: dict[str, Any] = {"size": size, "verdict": _verdict(report, trust)}
    values |= {"rung": Rung(rung_of(trust), words=_words(report, trust, reading)), "again": _again(report)}
    values |= {"is_good": is_proved(report, trust), "is_told": is_told(report, trust), "documents": links}
    values |= {"made": known, "explained": explained(known), "infinite": sum(report.overflowed.values())}
    values |= {"snippets": codes, "next_step": _next_step(report, known, next(iter(codes), "")), "COLAB": COLAB}
    values |= {"command": "".join(snippets.how_to_check(report, places.repo_id).values())}
    return render("result", report=report, places=places, page=page, trust=trust, **values)


def _codes(report: Report, place: str) -> Mapping[str, str]:
    """Return how to use the result at `place`, by the name of the tool: first what it was probably made for."""
    source, plan = report.source, report.plan
    known = source.architecture, source.library, source.variant, source.weights_name
    load = snippets.gguf_snippets(report, place) or snippets.loading_snippets(place, *known)
    get, load = snippets.download_snippet(report, place), {**snippets.pipeline_snippets(report, place), **load}
    if len(plan.shards) == 1:
        return {**get, **load}
    fits = plan.total_bytes <= parse_budgets("colab-t4")["cuda:0"]
    is_first = COLAB in load and snippets.writes(source.architecture) and fits and not plan.pipeline
    return {**({COLAB: load[COLAB]} if is_first else {}), **load, **get}


def is_proved(report: Report, trust: Trust) -> bool:
    """Return whether this page has read every byte of a result and nothing about it is unknown. Only that is green."""
    proof = report.verification
    is_known = proof.may_be_published and not trust.within and not proof.unstated and not trust.caveats
    return rung_of(trust) == READ and is_known


def details_panel(
    report: Report, places: Places, trust: Trust, seconds: float | None = None, loads: JobStatus | None = None
) -> str:
    """Return what loading costs, links, and facts. `seconds` and `loads` are None if not of this page."""
    costs = loads.costs if loads else report.comparison
    picture = Markup(costs.picture) if costs and costs.picture else None
    is_ours, measured = trust.level in ("made-here", "stated"), loads.ended if loads else None
    values: dict[str, Any] = {"is_ours": is_ours, "seconds": seconds, "measured": measured, "picture": picture}
    return render("details", places=places, report=report, costs=costs, **values)


def _words(report: Report, trust: Trust, reading: Forecast | None) -> tuple[str, str, str, str]:
    proof, is_read = report.verification, trust.level in READ_HERE
    what = "names, shapes and dtypes" if keeps_sizes(proof.made) else "names and shapes"
    structure = f"{what} of {count(proof.tensors, 'tensor')}" if rung_of(trust) > CLAIMED else "not known"
    until = f"; known {trust.until}" if trust.until else ""
    if is_read and not is_proved(report, trust):
        return _WRITTEN, structure, "", f"read, but not all is known{until}"
    if is_read:
        when = "before it was published" if trust.level == "made-here" else "after it was published"
        return _WRITTEN, structure, "", f"{format_bytes(proof.bytes)}, by this page, {when}{until}"
    stated = f"the Hub states the same hashes; {proof.sample} read{until}" if trust.level == "stated" else ""
    if report.needs_folder:
        return _WRITTEN, structure, stated, "not here, because it was made from a folder"
    time = f", about {time_range(reading.lower_seconds, reading.upper_seconds)}" if reading else ""
    return _WRITTEN, structure, stated, f"not yet: {format_bytes(proof.bytes)}{time}"


def _next_step(report: Report, made: Made, first: str) -> str:
    then = made[-1].then if made else ""
    if report.plan.pipeline:
        return "Start this on each machine. Each loads only its own part."
    if len(report.plan.shards) == 1:
        return f"Download the file into the folder of your tool, or load it by its name. {then}".rstrip()
    if first == COLAB:
        return f"Run this cell in a notebook. It loads the copy and writes a sentence. {then}".rstrip()
    if then:
        return f"Load it by its name. {then}"
    if report.source.of("base"):
        return "Load it by its name, like the model that was trained."
    return "Load it by its name. If a download breaks, you lose at most one file."


def _again(report: Report) -> str:
    name = report.source.place.name
    if not all(place.is_pinned for place in report.source.inputs if place.gives_numbers):
        return ""
    try:
        _, options = asked_of(report)
    except UsageError:
        return query_of(Wish(name, sized=False))
    size = options.max_shard_size
    return query_of(Wish(name, replace(options, max_shard_size=_written(size) if isinstance(size, int) else size)))


def _written(size: int) -> str:
    """Return a number of bytes as somebody writes it.

    >>> _written(200_000_000), _written(1_500)
    ('200MB', '1500B')
    """
    units = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
    return next((f"{size // unit}{name}" for name, unit in units if size and size % unit == 0), f"{size}B")


def named(place: Place) -> str:
    """Return the name of an input, with the first letters of its commit if it has one."""
    return replace(place, revision=place.revision[:12]).text if place.is_pinned else place.words


def made_of(trust: Trust) -> Made:
    """Return what was done to the numbers, () if only a report says so: its words may be anybody's."""
    return trust.made if rung_of(trust) > CLAIMED else ()


def is_told(report: Report, trust: Trust) -> bool:
    """Return whether something was done to the numbers, but only a report says what."""
    return bool(report.plan.made) and not made_of(trust)


def change_of(report: Report, trust: Trust) -> str:
    """Return what goes on "a copy of X": what was done to the numbers, or only which other inputs gave some."""
    beside = (place for place in report.source.beside if place.gives_numbers and is_told(report, trust))
    return phrase(made_of(trust), named) + "".join(f" and {named(place)}" for place in beside)


def _verdict(report: Report, trust: Trust) -> str:
    proof, source = report.verification, named(report.source.place)
    source += f", variant {variant}" if (variant := decided_by(report)[1].variant) else ""
    change = change_of(report, trust)
    if not proof.holds:
        return f"{count(len(proof.mismatches), 'difference')} from {source}; nothing was published"
    within = max(proof.within, trust.within)
    match trust.level:
        case "made-here" | "read-now" if within:
            return f"{source}{change}: {within_words(proof.tensors, within)}"
        case "made-here" | "read-now":
            same = "match what was read from" if proof.unstated else "equal" if change else "bit-identical to"
            exact = ", bit for bit" if change and not proof.unstated else ""
            return f"All {count(proof.tensors, 'tensor')} {same} {source}{change}{exact}"
        case "stated":
            return f"Made from {source}{change}; the Hub states the same hashes, {proof.sample} read"
        case "unreached":
            return "Of a commit that is on no known branch"
        case "fits":
            return f"Matches the structure of {source}{change}; bytes not checked yet"
        case _:
            return f"Claims to be {'made from ' if is_told(report, trust) else ''}{source}{change}"
