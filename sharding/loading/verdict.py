"""Explain the result of a comparison of loads in a few sentences. Pure."""

from collections.abc import Mapping, Sequence

from sharding.core.dtypes import BY_NAME, NUMBERS
from sharding.core.text import format_bytes
from sharding.loading.costs import Cause, Kind, LoadCost, Prediction, Side, Spread, Verdict

_LEAST_MEMORY_SHARE = 0.1
_LEAST_MEMORY_BYTES = 32_000_000
_LEAST_TIME_SHARE = 0.25
_LEAST_SECONDS = 0.5  # Less is noise: between equal loads, time varies by a fifth, memory hardly at all.
_CAST = {BY_NAME[dtype].torch for dtype in NUMBERS}  # A load casts these. Integers and booleans do not count.


def judge(
    original: Sequence[LoadCost], sharded: Sequence[LoadCost], alone: str = "", computes_the_same: bool = True
) -> Verdict:
    """Return the verdict on runs of the same load. Without one of the original, `alone` says why."""
    if alone:
        return _alone(sharded, alone)
    original_cost, sharded_cost = original[0], sharded[0]
    if {cost.outcome for cost in (*original, *sharded)} != {"loaded"}:
        return _not_loaded(original, sharded)
    if computes_the_same and len({cost.logits_sha256 for cost in (*original, *sharded)}) > 1:
        return Verdict("outputs-differ", None, "The two compute different logits, so they are not the same model.")
    memory = _difference(_memory(original), _memory(sharded), _LEAST_MEMORY_SHARE, _LEAST_MEMORY_BYTES)
    time = _difference(_time(original), _time(sharded), _LEAST_TIME_SHARE, _LEAST_SECONDS)
    cause = _cause(original_cost, sharded_cost) if memory <= 0 and time <= 0 else _cause(sharded_cost, original_cost)
    if not memory and (not time or cause == "unknown"):
        return Verdict("no-difference", None, _no_difference(original, sharded, times_differ=bool(time)))
    kind: Kind = "gain" if memory <= 0 and time <= 0 else "loss" if memory >= 0 and time >= 0 else "mixed"
    reasons = [f"{_bytes(sharded)} of anonymous memory instead of {_bytes(original)}"] if memory else []
    reasons += [f"{_seconds(sharded)} instead of {_seconds(original)} to load and compute"] if time else []
    because = _because(cause, original_cost, sharded_cost)
    return Verdict(kind, cause, f"The sharded copy needs {' and '.join(reasons)}. {because}")


def _alone(costs: Sequence[LoadCost], why: str) -> Verdict:
    if failed := next((cost for cost in costs if cost.outcome != "loaded"), None):
        return Verdict("not-loaded", None, f"The copy does not load: {failed.message}")
    needs = f"The copy needs {_bytes(costs)} of anonymous memory, and {_seconds(costs)} to load and compute."
    return Verdict("copy-alone", None, f"Only the copy was loaded, because the original cannot be. {why} {needs}")


def judge_predicted(predicted: Mapping[Side, Prediction], alone: str = "") -> Verdict:
    """Return the verdict on predictions, of both or of the copy alone. Its first words say what they are."""
    now = predicted["sharded"].peak_anon_bytes
    if alone:
        needs = f"the copy needs about {format_bytes(now)} of anonymous memory."
        return Verdict("copy-alone", None, f"Predicted, not measured: {needs} The original cannot be loaded. {alone}")
    was = predicted["original"].peak_anon_bytes
    kind: Kind = "gain" if now < was else "loss"
    what = f"the sharded copy needs about {format_bytes(now)} of anonymous memory instead of {format_bytes(was)}."
    if abs(was - now) < _LEAST_MEMORY_SHARE * was:
        kind = "no-difference"
        what = f"no meaningful difference, about {format_bytes(was)} of anonymous memory for both."
    return Verdict(kind, None, f"Predicted, not measured: {what}")


def _difference(theirs: Spread, ours: Spread, least_share: float, least: float) -> int:
    """Return -1 if the sharded copy needs clearly less, 1 if it needs clearly more, 0 if the spreads overlap."""
    if abs(ours.median - theirs.median) < max(least, least_share * max(ours.median, theirs.median)):
        return 0
    return (ours.low > theirs.high) - (ours.high < theirs.low)


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
            sides = (("the original", original), ("the copy", sharded))
            (cast_name, cast), (kept_name, kept) = sides if original.is_cast else sides[::-1]
            dtypes = kept.stored_dtypes or {"an unknown dtype": 0}
            dtype = max(dtypes, key=lambda dtype: dtypes[dtype])
            return (
                f"The reason is the dtype on the disk, not the shard size. {_upper(_casts(cast_name, cast))} while "
                "loading, which makes a second set of weights that cannot be memory-mapped. "
                f"{_upper(kept_name)} is stored in {dtype} and needs no cast."
            )
        case "format":
            return f"The reason is the file format ({sharded.format} instead of {original.format}), not the shard size."
        case "file-size":
            return (
                "The reason is that memory mapping is off, so each whole file passes through memory. The largest file "
                f"has {format_bytes(sharded.largest_file_bytes)} in the copy and "
                f"{format_bytes(original.largest_file_bytes)} in the original."
            )
        case "memory-mapping":
            return "The reason is that one of the two was memory-mapped and the other was not."
        case "unknown":
            unlike = "A cast, the file format and memory mapping do not explain it"
            return f"{unlike}, so the reason is probably outside the checkpoints."


def _no_difference(original: Sequence[LoadCost], sharded: Sequence[LoadCost], *, times_differ: bool) -> str:
    one, other = _time(original), _time(sharded)
    ranges = f"{one.low:.1f} to {one.high:.1f} s and {other.low:.1f} to {other.high:.1f} s"
    why = f"but the runs vary more than that: {ranges}"
    if times_differ:
        why = "which nothing in the checkpoints explains"
    elif abs(one.median - other.median) < max(_LEAST_SECONDS, _LEAST_TIME_SHARE * max(one.median, other.median)):
        why = "which is normal variation"
    sentence = (
        f"No meaningful difference: both need about {_bytes(sharded)} of anonymous memory. "
        f"To load and compute takes {_seconds(original)} with the original and {_seconds(sharded)} with the copy, "
        f"{why}."
    )
    if original[0].is_cast and sharded[0].is_cast:
        casts = [_casts(name, cost) for name, cost in (("the original", original[0]), ("the copy", sharded[0]))]
        both = _casts("each of the two", sharded[0])
        if casts[0].replace("the original", "the copy") != casts[1]:
            both = " and ".join(casts)
        sentence += f" {_upper(both)} while loading. Weights stored in {sharded[0].dtype_asked} need no cast."
        sentence += " Another shard size does not help."
    return sentence


def _casts(name: str, cost: LoadCost) -> str:
    """Return from which dtypes a checkpoint is cast, and how many of its bytes: it may be only some, such as norms."""
    stored = cost.stored_dtypes or {}
    cast = {dtype: size for dtype, size in stored.items() if dtype in _CAST and dtype != cost.dtype_asked}
    dtypes = " and ".join(sorted(cast, key=lambda dtype: -cast[dtype])) or "an unknown dtype"
    part = "" if sum(cast.values()) == sum(stored.values()) else f"{format_bytes(sum(cast.values()))} of "
    return f"{part}{name} is cast from {dtypes} to {cost.dtype_asked}"


def _not_loaded(original: Sequence[LoadCost], sharded: Sequence[LoadCost]) -> Verdict:
    failed, lost = (next((cost for cost in costs if cost.outcome != "loaded"), None) for costs in (original, sharded))
    limits = {cost.memory_limited_by for cost in (*original, *sharded)} - {None}
    under = f" under the limit ({limits.pop()})" if limits else ""
    if failed and lost:
        both = f". The original: {failed.message} The copy: {lost.message}"
        both = f": {lost.message}" if failed.message == lost.message else both
        return Verdict("not-loaded", None, f"Neither loads{under}{both}")
    if lost:
        return Verdict("loss", None, f"The original loads{under}, but the sharded copy does not: {lost.message}")
    assert failed, "one of them failed"
    if failed.outcome != "out-of-memory":
        return Verdict("gain", None, f"The sharded copy loads, but the original does not: {failed.message}")
    cause = _cause(failed, sharded[0])
    because = f" {_because(cause, failed, sharded[0])}" if cause in ("dtype", "format", "file-size") else ""
    return Verdict("gain", cause, f"The sharded copy loads{under}, but the original does not.{because}")


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _memory(costs: Sequence[LoadCost]) -> Spread:
    return Spread.of([cost.peak_anon_bytes for cost in costs])


def _time(costs: Sequence[LoadCost]) -> Spread:
    return Spread.of([cost.working_seconds for cost in costs])


def _bytes(costs: Sequence[LoadCost]) -> str:
    return format_bytes(_memory(costs).median)


def _seconds(costs: Sequence[LoadCost]) -> str:
    return f"{_time(costs).median:.1f} s"
