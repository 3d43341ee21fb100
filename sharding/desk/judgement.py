"""Say how far a result may be relied on, by what this desk has done itself, and else by what is stated of it."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from sharding.core.errors import SourceError
from sharding.core.text import unchecked_sentence
from sharding.core.values import UNCHECKED, Checkpoint
from sharding.desk.jobs import JobRecord
from sharding.report.fetch import Result
from sharding.verify.trust import Trust, judge, lowered


def judge_result(result: Result, inspect: Callable[..., Checkpoint], records: Iterable[JobRecord]) -> Trust:
    """Return how far `result` may be relied on: `inspect` reads headers of a source, its variant and its base.

    Only a record of this very commit and this very commit of its source says more than what is stated.
    """
    source, copy, original, why_not = result.report.source, f"{result.repo_id}@{result.revision}", None, ""
    pinned = f"{source.repo_id}@{source.revision}"
    # Only what was dequantized cannot be told from headers without the configuration, which is the base's.
    base = source.base if result.report.plan.dequantized else None
    if source.kind == "folder":
        why_not = "it was a folder on somebody's machine."
    elif base and base.kind == "folder":
        why_not = "the model that was trained was a folder on somebody's machine."
    else:
        try:
            original = inspect(pinned, source.variant, f"{base.repo_id}@{base.revision}" if base else "")
        except SourceError as error:
            why_not = error.message
    held = inspect(copy)
    trust = judge(result.report, result.files, held, original, why_not)
    if trust.level != "contradicted":
        ours = [record for record in records if (record.result, record.request.source) == (copy, pinned)]
        # One that found a difference counts, whenever that was: the others had read other bytes, or read them wrongly.
        for record in sorted(ours, key=lambda record: record.state == "done")[:1]:
            now = (*held.unreached, *(original.unreached if original else ()))
            return lowered(_own(record), (*record.unreached, *now))
    return lowered(trust, result.report.verification.unreached)  # it says so itself, of its base for example


def _own(record: JobRecord) -> Trust:
    """Return what this desk's own record of a job says of its result."""
    day = datetime.fromtimestamp(record.ended or record.created, UTC).strftime("%d %B %Y, %H:%M UTC")
    if record.state != "done" and record.error:
        return Trust("contradicted", (f"Every byte of both was read here on {day}.", record.error[0]))
    if record.request.kind == "verify":
        read = f"Every byte of the weights of both was read here on {day}, and every tensor compared."
        cast = "How many numbers became infinite in the cast was not counted."
        return Trust(
            "read-now",
            (read, unchecked_sentence(UNCHECKED), *([cast] if record.request.options.dtype != "keep" else [])),
        )
    return Trust("made-here", (f"It was made here on {day}, and every byte read again before it was published.",))
