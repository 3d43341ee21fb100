"""Turn a comparison into JSON: medians with their spread, and one memory curve a side. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from sharding.costs import Comparison, LoadCost, Spread

_PHASES = ("import", "load", "forward", "tokens")


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return the comparison as it stands in the report; `original` and `sharded` are None where nothing was loaded.

    A curve is a list of rows: seconds since the start, then bytes of anonymous, file-mapped and all memory.
    """
    original, sharded = comparison.predicted
    return {
        "measured": comparison.is_measured,
        "reason_not_measured": comparison.reason_not_measured,
        "verdict": asdict(comparison.verdict),
        "method": comparison.method,
        "dtype": comparison.dtype_asked,
        "memory_mapping": comparison.with_mapping,
        "memory_limit_bytes": comparison.memory_limit_bytes,
        "machine": comparison.machine,
        "predicted": {"original": asdict(original), "sharded": asdict(sharded)},
        "original": _side(comparison.original),
        "sharded": _side(comparison.sharded),
        "classic": asdict(comparison.classic) if comparison.classic else None,
    }


def middle_run(costs: Sequence[LoadCost]) -> LoadCost:
    """Return the run whose time is the median: the one whose curve is shown."""
    return sorted(costs, key=lambda cost: cost.working_seconds)[(len(costs) - 1) // 2]


def _side(costs: Sequence[LoadCost]) -> dict[str, Any] | None:
    if not costs:
        return None
    shown = middle_run(costs)

    def spread(figure: Callable[[LoadCost], float]) -> dict[str, float]:
        return asdict(Spread.of([figure(cost) for cost in costs]))

    return {
        "runs": len(costs),
        "outcome": next((cost.outcome for cost in costs if cost.outcome != "loaded"), "loaded"),
        "message": next((cost.message for cost in costs if cost.message), ""),
        "architecture": shown.architecture,
        "format": shown.format,
        "files": shown.files,
        "weight_bytes": shown.weight_bytes,
        "largest_file_bytes": shown.largest_file_bytes,
        "stored_dtypes": dict(shown.stored_dtypes or {}),
        "is_cast": shown.is_cast,
        "is_mapped": shown.is_mapped,
        "cache": shown.cache,
        "memory_limited_by": shown.memory_limited_by,
        "logits_sha256": shown.logits_sha256,
        "tokens": list(shown.tokens),
        "seconds": {
            phase: spread(lambda cost, phase=phase: cost.seconds[phase])  # type: ignore[misc]
            for phase in _PHASES
            if all(phase in cost.seconds for cost in costs)
        },
        "working_seconds": spread(lambda cost: cost.working_seconds),
        "base_anon_bytes": spread(lambda cost: cost.base_anon_bytes),
        "peak_anon_bytes": spread(lambda cost: cost.peak_anon_bytes),
        "peak_file_bytes": spread(lambda cost: cost.peak_file_bytes),
        "peak_total_bytes": spread(lambda cost: cost.peak_total_bytes),
        "disk_bytes_read": spread(lambda cost: cost.disk_bytes_read or 0),
        "curve": [
            [round(moment.seconds, 3), moment.anon_bytes, moment.file_bytes, moment.total_bytes]
            for moment in shown.curve
        ],
    }
