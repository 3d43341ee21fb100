"""Judge how far you can trust a result or a copy: by what this desk's own jobs found out about it, which it keeps."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from sharding.core.environment import outlives_restart
from sharding.core.errors import SourceError
from sharding.core.made import Made, agreed, phrase
from sharding.core.options import Options, naming
from sharding.core.origin import Place
from sharding.core.text import unchecked_sentence, unread_sentence
from sharding.core.threads import readers
from sharding.core.verification import UNCHECKED, Outcome
from sharding.desk.forecast import this_machine
from sharding.desk.job_store import Shelf, for_us_alone
from sharding.desk.jobs import JobRequest
from sharding.desk.models import Models, fingerprint
from sharding.planning.steps import names_asked
from sharding.report.files import Result, read_result
from sharding.report.report import decided_by
from sharding.report.schema import Report
from sharding.verify.structure import Likeness, sentence_of
from sharding.verify.trust import Level, Trust, judge, lowered

MOST_VERDICTS = 20_000  # At about 1 kB each, the file takes 20 MB.


@dataclass(frozen=True, slots=True)
class Reading:
    """All that decides which numbers a job held a copy to. `asked` has the variant that was read, asked for or not."""

    inputs: tuple[Place, ...]
    asked: Mapping[str, str | bool]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a job found out about `copy`, a commit of the Hub at `hub`, that it held to `read`. `ended` is in seconds
    since 1970. `error` says what is wrong or undecided. `unstated` and `unreached` are as in `Verification`."""

    hub: str
    copy: str
    read: Reading
    kind: Literal["shard", "verify"]
    outcome: Outcome
    ended: float
    version: str
    error: str = ""
    made: Made = ()
    unstated: bool = False
    unreached: tuple[str, ...] = ()


_ROW = TypeAdapter(Verdict)


class Verdicts:
    """The verdicts about copies on one Hub, a line each in a file. `until` says when they are forgotten, or is ""."""

    def __init__(self, folder: Path, hub: str) -> None:
        """Keep them in `folder`, which only one desk uses and no other user can write to."""
        self.until = "" if outlives_restart(folder) else "until this Space restarts"
        self._hub, self._file = hub, folder / "verdicts.jsonl"

    def add(self, verdict: Verdict) -> None:
        """Keep `verdict` or an earlier one that counts more. The oldest above `MOST_VERDICTS` are forgotten."""
        known = self.of(verdict.copy, verdict.read)
        lines, row = self._lines(), _ROW.dump_json(min(known or verdict, verdict, key=_weight))
        is_torn = bool(lines and lines[-1])  # The machine may have stopped in the middle of a line.
        lines = [line for line in lines if line]
        if len(lines) < MOST_VERDICTS:
            with open(self._file, "ab", opener=for_us_alone) as stream:
                stream.write(b"\n" * is_torn + row + b"\n")
            return
        part = self._file.with_suffix(".part")
        with open(part, "wb", opener=for_us_alone) as stream:
            stream.writelines(line + b"\n" for line in [*lines[1 - MOST_VERDICTS :], row])
        os.replace(part, self._file)

    def of(self, copy: str, read: Reading) -> Verdict | None:
        """Return the verdict that counts for `copy`, of a job that read exactly `read`. None if there is none."""
        name = to_json(copy)
        rows = (row for line in self._lines() if name in line and (row := _parse(line)))
        ours = (row for row in rows if (row.hub, row.copy, row.read) == (self._hub, copy, read))
        return min(ours, key=_weight, default=None)

    def _lines(self) -> list[bytes]:
        try:
            return self._file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []


def _parse(line: bytes) -> Verdict | None:
    try:
        # A row of a later version may mean something that this one does not know, so it is not read in part.
        return _ROW.validate_json(line, strict=True, extra="forbid")
    except ValidationError:
        return None


def _weight(verdict: Verdict) -> tuple[int, bool]:
    """Return the rank of a verdict. The lowest counts, whatever its date: a difference, then what nobody can tell.
    Reading every byte counts more than a sample. Of two agreements, the one with commits on a branch counts."""
    return {"different": 0, "undecided": 1, "stated": 3}.get(verdict.outcome.kind, 2), bool(verdict.unreached)


BESIDE = "The files beside the weights, such as the configuration and the tokenizer, were copied and not compared."

_NOT_READ = "Only a sample of it was read again, and what was read of the original was not compared with its hashes."
_UNSTATED = "The Hub states no hash for some of the files that were read, so only what was read is known to match."


@dataclass(frozen=True)
class Results:
    """The copies that visitors ask about, judged by their headers and by the verdicts of this desk."""

    endpoint: str
    models: Models
    shelf: Shelf
    verdicts: Verdicts

    def read(self, place: str, token: str | None) -> Result:
        """Return the result in `place`, whose report may be anybody's. Raises SourceError."""
        this_machine()  # is measured meanwhile
        return read_result(place, endpoint=self.endpoint, token=token)

    def judge(self, place: str, token: str | None) -> tuple[Result, Trust]:
        """Return the result in `place`, and how far you can trust it. Raises SourceError."""
        result = self.read(place, token)
        return result, self.trust(result, token)

    def trust(self, result: Result, token: str | None) -> Trust:
        """Return how far you can trust a result. Raises SourceError if its headers cannot be read."""
        report, copy = result.report, f"{result.repo_id}@{result.revision}"
        original, why_not, known = None, "", dict[str, str]()
        # What computes numbers needs the configuration too, which a base may have.
        read = [place for place in report.source.inputs if place.gives_numbers or report.plan.made]
        inspect = partial(self.models.inspect, token=token)
        with readers(1) as pool:  # beside the source: a slow Hub takes as long for one as for both
            reading = pool.submit(inspect, copy)
            if lost := next((place for place in read if not place.is_pinned), None):
                why_not = f"the {lost.called} was a folder on somebody's machine."
            else:
                try:
                    options = Options(variant=decided_by(report)[1].variant, **naming(read))
                    original = inspect(report.source.place.text, options)
                    if asked := names_asked(original):
                        known = dict(self.models.names(asked, fingerprint(token) or "trust"))
                except SourceError as error:
                    why_not = error.message
            held = pool.result(reading)
        judged = partial(judge, report, result.files, held, original, why_not, known)
        # All who ask for one result wait for the same answer, so the result itself is the caller.
        is_slow = original and original.others
        trust = self.models.in_turn(("trust", copy), copy, judged) if is_slow else judged()
        if trust.level != "contradicted" and (verdict := self.verdicts.of(copy, _read_for(report))):
            own = _own(verdict, held.other_weights, self.verdicts.until)
            # Without its source, nothing else tells whether the report is about what the job made.
            if own.level == "contradicted" or agreed(report.plan.made, verdict.made) is not None:
                now = (*held.unreached, *(original.unreached if original else ()))
                return lowered(own, (*verdict.unreached, *now))
        return lowered(trust, report.verification.unreached)  # it may name commits, of its base for example

    def compare(
        self, original: str, copy: str, token: str | None, session: str | None = None, variant: str = ""
    ) -> tuple[Likeness, Trust]:
        """Return how alike two repos are, as `Models.compare` does, and how far you can rely on that."""
        likeness = self.models.compare(original, copy, variant, token, session)
        return likeness, judge_likeness(likeness, self.verdicts)

    def seconds_of(self, result: Result) -> float | None:
        """Return the time of the whole job that made `result` here, or None if no record of it is kept."""
        commit = f"{result.repo_id}@{result.revision}"
        records = (record for record in self.shelf.records() if record.result == commit)
        return next((record.whole_seconds for record in records if record.request.kind == "shard"), None)


def request_about(kind: Literal["verify", "compare"], result: Result) -> JobRequest:
    """Return the request for a job that reads `result` and its source, or loads both."""
    (original, options), copy = decided_by(result.report), f"{result.repo_id}@{result.revision}"
    return JobRequest(original, copy, options, kind=kind, of_result=True)


def reading_both(likeness: Likeness) -> JobRequest:
    """Return the request for a job that reads every byte of two repos, as `likeness` compares them."""
    options = Options(**cast(Any, likeness.asked))
    return JobRequest(likeness.original.text, likeness.copy.text, options, kind="verify")


def judge_likeness(likeness: Likeness, verdicts: Verdicts) -> Trust:
    """Return how far you can rely on a copy. A verdict counts only about these commits, read in this way."""
    read = Reading((likeness.original,), {**likeness.asked, "variant": likeness.variant})
    verdict = verdicts.of(likeness.copy.text, read)
    if verdict and (likeness.verdict != "different" or verdict.error):
        own = _own(verdict, likeness.unread, verdicts.until)
        return lowered(own, (*verdict.unreached, *likeness.unreached))
    level: Level = "contradicted" if likeness.verdict == "different" else "fits"
    caveats = (unread_sentence(likeness.unread),) if likeness.unread else ()
    return lowered(Trust(level, (sentence_of(likeness),), caveats), likeness.unreached)


def _read_for(report: Report) -> Reading:
    plan, inputs = report.plan, report.source.inputs
    if not report.needs_folder:  # no number depends on an input in a folder, and no job here can read it
        inputs = tuple(place for place in inputs if place.is_pinned)
    return Reading(inputs, {**plan.asked, "variant": report.source.variant})


def _own(verdict: Verdict, unread: Sequence[str], until: str) -> Trust:
    """Return the trust that follows from this desk's own verdict. `unread` are the copy's other weights."""
    day = datetime.fromtimestamp(verdict.ended, UTC).strftime("%d %B %Y, %H:%M UTC")
    caveats = (*((unread_sentence(unread),) if unread else ()), *((_UNSTATED,) if verdict.unstated else ()))
    within = verdict.outcome.tensors if verdict.outcome.kind == "within" else 0
    if within:
        differ = "1 tensor differs" if within == 1 else f"{within:,} tensors differ"
        caveats += (f"The bits of {differ}, but no more than another order of summation explains.",)
    said = f"This page read every byte of both repos on {day}.", verdict.error
    if verdict.outcome.kind == "undecided":
        return Trust("fits", said, caveats, made=verdict.made)
    if verdict.outcome.kind == "different":
        return Trust("contradicted", said)
    if verdict.kind == "verify":
        read = f"This page read every tensor of both repos on {day} and compared them"
        read += f" with the original's{first}." if (first := phrase(verdict.made)) else "."
        others = (change.caveat for change in verdict.made if change.caveat)
        reasons = (read, unchecked_sentence(UNCHECKED), *others)
        return Trust("read-now", reasons, caveats, within, verdict.made, until)
    if verdict.outcome.kind == "stated":
        made = f"This page made the copy on {day}, and the Hub states the hashes of what was sent."
        return Trust("stated", (made, _NOT_READ, BESIDE), caveats, made=verdict.made, until=until)
    text = f"This page made the copy on {day}. It read every byte again before it published the copy."
    return Trust("made-here", (text, BESIDE), caveats, made=verdict.made, until=until)
