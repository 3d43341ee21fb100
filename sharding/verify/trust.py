"""Say how far you can rely on a result, whose report may be anybody's, by the Hub and the headers. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from sharding.core.errors import SourceError, UsageError
from sharding.core.hints import Hints
from sharding.core.made import Made, agreed, keeps_sizes, phrase
from sharding.core.options import Options
from sharding.core.text import count, format_bytes, name_some, unreached_sentence
from sharding.core.values import Content, FileEntry
from sharding.planning.cast import keeping
from sharding.planning.draft import Draft
from sharding.planning.steps import Asks, drafted
from sharding.report.report import decided_by, summarize_source
from sharding.report.schema import Report
from sharding.verify.structure import contrasts_of

Level = Literal["made-here", "read-now", "stated", "fits", "unreached", "claims", "contradicted"]
"""How far you can rely on a result, from best to worst.

- made-here: this desk keeps a verdict of the job here that made the result and read it again.
- read-now: this desk keeps a verdict of a job that read every byte of the result and the source.
- stated: this desk keeps a verdict of the job here that made the result, and only compared hashes of the Hub.
- fits: the headers of both agree, and files and hashes match the report.
- unreached: no branch and no tag is known to lead to the result, or to its source.
- claims: there is nothing to compare the result with.
- contradicted: something does not fit.
"""

_MOST_REASONS = 5
_WRONG = {
    "added": "The copy has tensors that are not in the source",
    "missing": "Tensors of the source are missing",
    "shape": "Tensors have another shape than in the source",
    "dtype": "Tensors have another dtype than in the source",
}


@dataclass(frozen=True, slots=True)
class Trust:
    """A level, its reasons, caveats, and how many tensors differ `within` the tolerance of a merge. `made` is what was
    done to the numbers, as far as known. `until` says when a page forgets what it has read, or is ""."""

    level: Level
    reasons: tuple[str, ...]
    caveats: tuple[str, ...] = ()
    within: int = 0
    made: Made = ()
    until: str = ""


def lowered(trust: Trust, unreached: Iterable[str]) -> Trust:
    """Return `trust`, lowered to "unreached" if there are such commits ("owner/name@commit"); "contradicted" stays."""
    sentences = tuple(unreached_sentence(place) for place in dict.fromkeys(unreached))
    is_lower = sentences and trust.level != "contradicted"
    return replace(trust, level="unreached", reasons=(*sentences, *trust.reasons)) if is_lower else trust


def claim(report: Report, files: Iterable[FileEntry]) -> Trust:
    """Return "claims", or "contradicted", for the repo with `files`, before any header is read."""
    against = [*_not_there(report, files)]
    return _contradicted(against) if against else Trust("claims", ("Comparing it with the headers of both repos …",))


def _contradicted(against: Sequence[str]) -> Trust:
    more = f"and {len(against) - _MOST_REASONS} more"
    return Trust("contradicted", (*against[:_MOST_REASONS], *([more] if against[_MOST_REASONS:] else [])))


def judge(
    report: Report,
    files: Iterable[FileEntry],
    copy: Content,
    original: Content | None,
    why_not: str = "",
    known: Mapping[str, str] | None = None,
) -> Trust:
    """Return "fits" or a worse level for the repo with `files` and the headers of `copy`. `original` is None if it
    cannot be read: `why_not`. `known` are stored names of names in memory, as in `merged`."""
    unreached = (*copy.unreached, *(original.unreached if original else ()))
    against, missing = [*_not_there(report, files), *_not_planned(report, copy)], 0
    made: Made = ()
    if report.source.place.is_same(copy.source):
        against.append("The report names the repo itself as its source.")
    if original:
        against += _not_that_source(report, original)
        try:
            _, options = decided_by(report)
            asks = Asks(partial(_kept, copy), lambda _: known or {})
            names = {tensor.name for tensor in copy.tensors}
            kept = tuple(tensor for tensor in original.tensors if tensor.name in names)
            # The classic engine leaves out tied weights.
            held = original if report.engine == "stream" else replace(original, tensors=kept)
            missing = len(original.tensors) - len(held.tensors)
            draft = drafted(held, options, asks)
        except (SourceError, UsageError) as error:
            against.append(f"What the report says of its source does not fit: {error.message}")
        else:
            against += _not_of(report, draft, copy)
            made = agreed(report.plan.made, draft.made) or ()
    if against:
        return _contradicted(against)
    here = f"The {count(len(report.shards), 'file')} in the repo have the sizes and SHA-256 that its report names."
    level: Level = "claims"
    if original is None:
        both = f"Its source cannot be compared: {why_not}"
    elif missing:
        both = f"The copy has {len(copy.tensors):,} of the {count(len(original.tensors), 'tensor')} of its source"
        both += f". Headers do not show whether the other {missing:,} were tied."
    else:
        level, same = "fits", "names, shapes and dtypes" if keeps_sizes(made) else "names and shapes"
        once = phrase(made, lambda place: place.name)
        both = f"The headers of both name the same {len(copy.tensors):,} tensors{once}: {same} agree."
    return lowered(Trust(level, (here, both), made=made), unreached)


def _kept(copy: Content, before: Content, _: Options) -> Hints:
    """Return what a model class must keep in a cast that gives `copy`: tensors in fp32, or as they were."""
    was = {tensor.name: tensor.dtype for tensor in before.tensors}
    return keeping(tensor for tensor in copy.tensors if tensor.dtype in ("F32", was.get(tensor.name)))


def _not_there(report: Report, files: Iterable[FileEntry]) -> Iterable[str]:
    stored = {file.path: file for file in files}
    for shard in report.shards:
        file = stored.get(shard.file)
        if file is None:
            yield f"{shard.file} is not in the repo."
        elif file.bytes != shard.bytes:
            yield f"{shard.file} has {format_bytes(file.bytes)}, but the report says {format_bytes(shard.bytes)}."
        elif file.sha256 != shard.sha256:
            yield f"{shard.file} has another SHA-256 than the report says."


def _not_planned(report: Report, copy: Content) -> Iterable[str]:
    planned = report.plan.weight_map
    other = [tensor.name for tensor in copy.tensors if planned.pop(tensor.name, None) != tensor.file]
    if other or planned:
        names = name_some(sorted([*other, *planned]))
        yield f"The headers in the repo and the report disagree about which file holds these tensors: {names}."
    if copy.total_bytes != report.plan.total_bytes:
        said = format_bytes(report.plan.total_bytes)
        yield f"The tensors in the repo have {format_bytes(copy.total_bytes)}, but the report says {said}."


def _not_that_source(report: Report, original: Content) -> Iterable[str]:
    source = report.source
    if original.source.revision != source.revision:
        yield f"{source.repo_id} has no commit {source.revision[:12]}."
    there = summarize_source(original)
    if source.variant != there.variant:
        yield f"The report names the variant {source.variant!r}, but it is a copy of {there.variant!r}."
    facts = ("architecture", "total_parameters", "total_bytes", "tensors", "dtypes", "in_pieces")
    for fact in facts[1:] if source.of("base") else facts:  # with a base, the architecture comes from there
        if report.engine == "stream" and getattr(source, fact) != getattr(there, fact):
            yield f"The report and the headers of {source.repo_id} disagree on {fact.replace('_', ' ')}."
    report_files = {file.file: (file.bytes, file.tensors) for file in report.source.weight_files}
    tensors = original.tensors_in
    if report_files != {file.path: (file.bytes, tensors.get(file.path, 0)) for file in original.weight_files}:
        yield f"{original.source.repo_id} has other weight files at that commit than the report says."


def _not_of(report: Report, original: Draft, copy: Content) -> Iterable[str]:
    if agreed(report.plan.made, original.made) is None:
        done = phrase(original.made).removeprefix(", ") or "copied as it is"
        yield f"The report describes another copy than the headers, which give one that is {done}."
    contrasts = contrasts_of(original, {tensor.name: tensor for tensor in copy.tensors})
    for kind, problem in _WRONG.items():
        if names := [one.tensor for one in contrasts if one.kind == kind]:
            yield f"{problem}: {name_some(names)}."
