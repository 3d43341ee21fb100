"""Say in one sentence what a comparison of loads shows, and why. Pure."""

from collections.abc import Callable, Sequence

from sharding.core.text import format_bytes
from sharding.loading.costs import Cause, Kind, LoadCost, Prediction, Spread, Verdict

_LEAST_MEMORY_SHARE = 0.1
_LEAST_MEMORY_BYTES = 32_000_000
_LEAST_TIME_SHARE = 0.25
_LEAST_SECONDS = 0.5
"""Below these a difference is noise: time varies by a fifth between runs of the same load, memory hardly."""


def judge(original: Sequence[LoadCost], sharded: Sequence[LoadCost]) -> Verdict:
    """Return the verdict on runs of the same load of two checkpoints, at least one of each."""
    original_cost, sharded_cost = original[0], sharded[0]
    if {cost.outcome for cost in (*original, *sharded)} != {"loaded"}:
        return _not_loaded(original, sharded)
    if len({cost.logits_sha256 for cost in (*original, *sharded)}) > 1:
        return Verdict("outputs-differ", None, "The two do not compute the same logits: they are not the same model.")
    memory = _difference(original, sharded, lambda cost: cost.peak_anon_bytes, _LEAST_MEMORY_SHARE, _LEAST_MEMORY_BYTES)
    time = _difference(original, sharded, lambda cost: cost.working_seconds, _LEAST_TIME_SHARE, _LEAST_SECONDS)
    cause = _cause(original_cost, sharded_cost) if memory <= 0 and time <= 0 else _cause(sharded_cost, original_cost)
    if not memory and (not time or cause == "unknown"):
        return Verdict("no-difference", None, _no_difference(original, sharded))
    kind: Kind = "gain" if memory <= 0 and time <= 0 else "loss" if memory >= 0 and time >= 0 else "mixed"
    reasons = []
    if memory:
        reasons.append(f"{_memory(sharded)} of anonymous memory instead of {_memory(original)}")
    if time:
        reasons.append(f"{_seconds(sharded)} instead of {_seconds(original)} to load and compute")
    because = _because(cause, original_cost, sharded_cost)
    return Verdict(kind, cause, f"The sharded copy needs {' and '.join(reasons)}{because}")


def judge_predicted(original: Prediction, sharded: Prediction) -> Verdict:
    """Return what two predictions say, marked as such in its first words."""
    memory = (format_bytes(original.peak_anon_bytes), format_bytes(sharded.peak_anon_bytes))
    if abs(original.peak_anon_bytes - sharded.peak_anon_bytes) < _LEAST_MEMORY_SHARE * original.peak_anon_bytes:
        sentence = f"Predicted, not measured: no meaningful difference, about {memory[0]} of anonymous memory for both."
        return Verdict("no-difference", None, sentence)
    sentence = f"Predicted, not measured: about {memory[1]} of anonymous memory instead of {memory[0]}."
    return Verdict("gain" if sharded.peak_anon_bytes < original.peak_anon_bytes else "loss", None, sentence)


def _difference(
    original: Sequence[LoadCost],
    sharded: Sequence[LoadCost],
    figure: Callable[[LoadCost], float],
    least_share: float,
    least: float,
) -> int:
    """Return -1 where the sharded copy needs meaningfully less, 1 where more, else 0: the spreads must not overlap."""
    ours, theirs = (Spread.of([figure(cost) for cost in costs]) for costs in (sharded, original))
    change = ours.median - theirs.median
    if abs(change) < max(least, least_share * max(ours.median, theirs.median)):
        return 0
    if ours.high < theirs.low:
        return -1
    return 1 if ours.low > theirs.high else 0


def _cause(dear: LoadCost, cheap: LoadCost) -> Cause:
    if dear.is_cast and not cheap.is_cast:
        return "dtype"
    if dear.format != cheap.format:
        return "format"
    if dear.is_mapped is not None and cheap.is_mapped is not dear.is_mapped:
        return "memory-mapping"
    if not cheap.is_cast and cheap.is_mapped is False and dear.largest_file_bytes > 1.1 * cheap.largest_file_bytes:
        return "file-size"
    return "unknown"


def _because(cause: Cause, original: LoadCost, sharded: LoadCost) -> str:
    match cause:
        case "dtype":
            cast, kept = (original, sharded) if original.is_cast else (sharded, original)
            names = ("the original", "the copy") if original.is_cast else ("the copy", "the original")
            return (
                f", because of the dtype on the disk, not of the shards: {names[1]} is stored in {_stored(kept)} as it "
                f"is loaded, {names[0]} in {_stored(cast)} and cast while loading, which makes a second, "
                "unmappable set of weights."
            )
        case "format":
            return (
                f", because of the file format: {sharded.format} instead of {original.format}, not of the shard size."
            )
        case "file-size":
            return (
                ", because memory mapping is off, so that whole files pass through memory: the largest has "
                f"{format_bytes(sharded.largest_file_bytes)} instead of {format_bytes(original.largest_file_bytes)}."
            )
        case "memory-mapping":
            return ", because one of the two was memory-mapped and the other was not."
        case "unknown":
            return "; dtype, format and mapping are the same, so the cause lies outside the checkpoints."


def _no_difference(original: Sequence[LoadCost], sharded: Sequence[LoadCost]) -> str:
    sentence = (
        f"No meaningful difference: both need about {_memory(sharded)} of anonymous memory, and {_seconds(original)} "
        f"(original) and {_seconds(sharded)} (copy) to load and compute, which is within what a machine varies by."
    )
    if original[0].is_cast and sharded[0].is_cast:
        sentence += (
            f" Both are cast from {_stored(sharded[0])} to {sharded[0].dtype_asked} while loading; "
            "only another dtype on the disk would change that, not another shard size."
        )
    return sentence


def _not_loaded(original: Sequence[LoadCost], sharded: Sequence[LoadCost]) -> Verdict:
    failed = [next((cost for cost in costs if cost.outcome != "loaded"), None) for costs in (original, sharded)]
    limits = {cost.memory_limited_by for cost in (*original, *sharded)} - {None}
    under = f" under the limit ({limits.pop()})" if limits else ""
    match failed:
        case [LoadCost() as original_cost, LoadCost() as sharded_cost]:
            if original_cost.message == sharded_cost.message:
                return Verdict("not-loaded", None, f"Neither loads{under}: {original_cost.message}")
            return Verdict(
                "not-loaded", None, f"Neither loads{under}: {original_cost.message} And: {sharded_cost.message}"
            )
        case [LoadCost() as original_cost, None] if original_cost.outcome != "out-of-memory":
            return Verdict("gain", None, f"The sharded copy loads, the original does not: {original_cost.message}")
        case [LoadCost() as original_cost, None]:
            cause = _cause(original_cost, sharded[0])
            because = _because(cause, original_cost, sharded[0]) if cause in ("dtype", "format", "file-size") else "."
            return Verdict("gain", cause, f"The sharded copy loads{under} and the original does not{because}")
        case [None, LoadCost() as sharded_cost]:
            return Verdict(
                "loss", None, f"The original loads{under}, the sharded copy does not: {sharded_cost.message}"
            )
    raise AssertionError("somebody asked why a load failed that did not")


def _memory(costs: Sequence[LoadCost]) -> str:
    return format_bytes(Spread.of([cost.peak_anon_bytes for cost in costs]).median)


def _seconds(costs: Sequence[LoadCost]) -> str:
    return f"{Spread.of([cost.working_seconds for cost in costs]).median:.1f} s"


def _stored(cost: LoadCost) -> str:
    dtypes = cost.stored_dtypes or {}
    return max(dtypes, key=lambda dtype: dtypes[dtype], default="an unknown dtype")
