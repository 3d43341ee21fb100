"""Turn the values of a finished job into JSON: events, the report and the digests. Pure.

`sharding_report.json` says what was done and what it cost; `sharding_digests.json` beside it holds the
SHA-256 of every file and tensor. Both carry a `schema` number that changes when a key changes its meaning.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.options import Engine
from sharding.core.values import Checkpoint, Finding, Plan, RepoRef, Resources, ShardRecord, Verification
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, PICTURE_NAME, REPORT_NAME
from sharding.loading.costs import Compared, Comparison, LoadCost, Probed, Spread, middle_run

SCHEMA = 1

Json = dict[str, Any]
"""An object ready for json.dumps."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a job did: the last event it yields, and `sharding_report.json` in the result."""

    source: Checkpoint
    destination: RepoRef
    plan: Plan
    plan_id: str
    records: Mapping[str, ShardRecord]
    verification: Verification
    resources: Resources
    finished: datetime
    version: str
    engine: Engine = "stream"
    comparison: Comparison | None = None
    overflowed: Mapping[str, int] = field(default_factory=dict)
    """Numbers that a cast has made infinite, as was allowed: how many, by tensor."""

    @property
    def files(self) -> tuple[str, ...]:
        """Every file of the result, the indexes last."""
        side = (file.path for file in self.source.side_files if file.path != CARD_NAME)
        shards = (shard.file for shard in self.plan.shards)
        picture = [PICTURE_NAME] if self.comparison and self.comparison.is_measured else []
        return (*side, *shards, CARD_NAME, *picture, DIGESTS_NAME, REPORT_NAME, *self.plan.indexes)


def plan_json(plan: Plan, findings: Iterable[Finding] = ()) -> Json:
    """Return `plan` as the command line prints it: shards, weight map, totals, `findings` of its source and its own."""
    return {
        "max_shard_bytes": plan.options.max_shard_bytes,
        "strategy": plan.options.strategy,
        "order": plan.options.order,
        "dtype": plan.options.dtype,
        "total_bytes": plan.total_bytes,
        "total_parameters": plan.total_parameters,
        "shards": [
            {"file": shard.file, "bytes": shard.bytes, "tensors": [tensor.name for tensor in shard.tensors]}
            for shard in plan.shards
        ],
        "weight_map": plan.weight_map,
        "stages": [asdict(stage) for stage in plan.stages],
        "findings": [asdict(finding) for finding in (*findings, *plan.findings)],
    }


def checkpoint_json(checkpoint: Checkpoint) -> Json:
    """Return what the headers of a source say: totals, dtypes (bytes of each), components, files, findings."""
    dtypes: dict[str, int] = {}
    tensors_in: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.bytes
        tensors_in[tensor.file] = tensors_in.get(tensor.file, 0) + 1
    return {
        **asdict(checkpoint.source),
        "architecture": checkpoint.architecture,
        "library": checkpoint.library,
        "variant": checkpoint.variant,
        "other_variants": list(checkpoint.other_variants),
        "total_bytes": checkpoint.total_bytes,
        "total_parameters": sum(tensor.parameters for tensor in checkpoint.tensors),
        "tensors": len(checkpoint.tensors),
        "dtypes": dtypes,
        "components": [
            {"folder": part.folder, "base": part.base, "metadata": dict(part.metadata)}
            for part in checkpoint.components
        ],
        "weight_files": [
            {"file": file.path, "bytes": file.bytes, "tensors": tensors_in.get(file.path, 0)}
            for file in checkpoint.weight_files
        ],
        "side_files": [{"file": file.path, "bytes": file.bytes} for file in checkpoint.side_files],
        "findings": [asdict(finding) for finding in checkpoint.findings],
    }


def verification_json(verification: Verification) -> Json:
    """Return the outcome of a verification; `identical` is the answer."""
    return {"identical": verification.identical, **asdict(verification)}


def report_json(report: Report) -> Json:
    """Return the report as an object; its `plan` has the shape of `plan_json`."""
    source = checkpoint_json(report.source)
    records = [report.records[shard.file] for shard in report.plan.shards]
    return {
        "schema": SCHEMA,
        "tool": f"shard-my-repo {report.version}",
        "finished": report.finished.isoformat(timespec="seconds"),
        "engine": report.engine,
        "source": {key: value for key, value in source.items() if key not in ("findings", "side_files")},
        "destination": asdict(report.destination),
        "plan": plan_json(report.plan, report.source.findings),
        "plan_id": report.plan_id,
        "shards": [{"file": record.file, "bytes": record.bytes, "sha256": record.sha256} for record in records],
        "files": list(report.files),
        "verification": verification_json(report.verification),
        "overflowed": dict(report.overflowed),
        "resources": asdict(report.resources),
        "comparison": comparison_json(report.comparison) if report.comparison else None,
    }


def event_json(event: Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report) -> Json:
    """Return one line of `--events`: what happened, under the key `event`, and its particulars."""
    match event:
        case Planned():
            return {"event": "planned", "source": checkpoint_json(event.checkpoint), "plan": plan_json(event.plan)}
        case Progress():
            return {"event": "progress", **asdict(event)}
        case ShardFinished():
            return {"event": "shard-finished", **asdict(event)}
        case Verified():
            return {"event": "verified", **verification_json(event.verification)}
        case Probed():
            cost = {key: given for key, given in asdict(event.cost).items() if key != "curve"}
            return {"event": "probed", "side": event.side, "round": event.round, "rounds": event.rounds, "cost": cost}
        case Compared():
            return {"event": "compared", **comparison_json(event.comparison)}
        case Published():
            return {"event": "published", **asdict(event)}
        case Report():
            return {"event": "report", **report_json(event)}


def to_bytes(document: Json) -> bytes:
    """Return a JSON file for people and programs: indented, one trailing newline."""
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


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
