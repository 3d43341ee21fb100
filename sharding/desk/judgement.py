"""Judge how far you can trust a result or a copy: by this desk's own records if there are some."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from sharding.core.errors import SourceError
from sharding.core.made import agreed, phrase
from sharding.core.text import unchecked_sentence, unread_sentence
from sharding.core.threads import readers
from sharding.core.verification import UNCHECKED
from sharding.desk.gauge import this_machine
from sharding.desk.job_store import Shelf
from sharding.desk.jobs import JobRecord, Reading, reading_of
from sharding.desk.models import Models, fingerprint
from sharding.planning.steps import names_asked
from sharding.report.files import Result, read_result
from sharding.report.report import decided_by
from sharding.report.schema import Report
from sharding.verify.structure import Likeness, sentence_of
from sharding.verify.trust import Level, Trust, judge, lowered

BESIDE = "The files beside the weights, such as the configuration and the tokenizer, were copied and not compared."
"""What a job that copies does not prove."""

_UNSTATED = "The Hub states no hash for some of the files that were read, so only what was read is known to match."


@dataclass(frozen=True)
class Results:
    """The copies that visitors ask about, judged by their headers and by the records of this desk."""

    endpoint: str
    models: Models
    shelf: Shelf

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
                    inputs = {place.role: place.text for place in read}
                    variant = decided_by(report)[1].variant
                    original = inspect(inputs.pop("model"), variant, inputs=inputs)
                    if asked := names_asked(original):
                        known = dict(self.models.names(asked, fingerprint(token) or "trust"))
                except SourceError as error:
                    why_not = error.message
            held = pool.result(reading)
        judged = partial(judge, report, result.files, held, original, why_not, known)
        # All who ask for one result wait for the same answer, so the result itself is the caller.
        is_slow = original and original.others
        trust = self.models.in_turn(("trust", copy), copy, judged) if is_slow else judged()
        if trust.level != "contradicted":
            for record in _decisive(self.shelf.records(), _read_for(report), copy):
                own = _own(record, held.other_weights)
                # Without its source, nothing else tells whether the report is about what the job made.
                if own.level == "contradicted" or agreed(report.plan.made, record.made) is not None:
                    now = (*held.unreached, *(original.unreached if original else ()))
                    return lowered(own, (*record.unreached, *now))
        return lowered(trust, report.verification.unreached)  # it may name commits, of its base for example

    def compare(
        self, original: str, copy: str, token: str | None, session: str | None = None, variant: str = ""
    ) -> tuple[Likeness, Trust]:
        """Return how alike two repos are, as `Models.compare` does, and how far you can rely on that."""
        likeness = self.models.compare(original, copy, variant, token, session)
        return likeness, judge_likeness(likeness, self.shelf.records())

    def seconds_of(self, result: Result) -> float | None:
        """Return the time of the whole job that made `result` here, or None if no record of it is kept."""
        commit = f"{result.repo_id}@{result.revision}"
        records = (record for record in self.shelf.records() if record.result == commit)
        return next((record.whole_seconds for record in records if record.request.kind == "shard"), None)


def judge_likeness(likeness: Likeness, records: Iterable[JobRecord]) -> Trust:
    """Return how far you can rely on a copy that is compared with an original.

    A record counts only if it is about these commits, read in the same way. Headers show at most "fits".
    """
    read = reading_of((likeness.original,), likeness.variant, likeness.asked)
    for record in _decisive(records, read, likeness.copy.text):
        if likeness.verdict != "different" or record.state != "done":
            return lowered(_own(record, likeness.unread), (*record.unreached, *likeness.unreached))
    level: Level = "contradicted" if likeness.verdict == "different" else "fits"
    caveats = (unread_sentence(likeness.unread),) if likeness.unread else ()
    return lowered(Trust(level, (sentence_of(likeness),), caveats), likeness.unreached)


def _read_for(report: Report) -> Reading:
    """Return what a job must have read to prove what `report` claims."""
    plan, inputs = report.plan, report.source.inputs
    if not report.needs_folder:  # no number depends on an input in a folder, and no job here can read it
        inputs = tuple(place for place in inputs if place.is_pinned)
    return reading_of(inputs, report.source.variant, plan.asked)


def _decisive(records: Iterable[JobRecord], read: Reading, copy: str) -> list[JobRecord]:
    """Return the record that counts for `copy`, of a job that read exactly `read`. Empty if there is none."""
    ours = [record for record in records if (record.result, record.read) == (copy, read)]
    # A record of a difference wins, whatever its date: the other jobs read other bytes, or read them wrongly. Then
    # comes one of which nobody can tell.
    return sorted(ours, key=lambda record: (record.state == "done", record.is_undecided))[:1]


def _own(record: JobRecord, unread: Sequence[str]) -> Trust:
    """Return the trust in a copy that follows from this desk's own record of a job. `unread` are its other weights."""
    day = datetime.fromtimestamp(record.ended or record.created, UTC).strftime("%d %B %Y, %H:%M UTC")
    caveats = (*((unread_sentence(unread),) if unread else ()), *((_UNSTATED,) if record.unstated else ()))
    within = record.outcome.tensors if record.outcome and record.outcome.kind == "within" else 0
    if within:
        differ = "1 tensor differs" if within == 1 else f"{within:,} tensors differ"
        caveats += (f"The bits of {differ}, but no more than another order of summation explains.",)
    if record.is_undecided and record.error:
        said = f"This page read every byte of both repos on {day}.", record.error[0]
        return Trust("fits", said, caveats, made=record.made)
    if record.state != "done" and record.error:
        return Trust("contradicted", (f"This page read every byte of both repos on {day}.", record.error[0]))
    if record.request.kind == "verify":
        read = f"This page read every tensor of both repos on {day} and compared them"
        read += f" with the original's{first}." if (first := phrase(record.made)) else "."
        others = (change.caveat for change in record.made if change.caveat)
        return Trust("read-now", (read, unchecked_sentence(UNCHECKED), *others), caveats, within, record.made)
    text = f"This page made the copy on {day}. It read every byte again before it published the copy."
    return Trust("made-here", (text, BESIDE), caveats, made=record.made)
