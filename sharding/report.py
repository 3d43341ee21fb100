"""Turn the values of a finished job into JSON: events, the report and the digests. Pure.

`sharding_report.json` says what was done and what it cost; `sharding_digests.json` beside it holds the
SHA-256 of every file and tensor. Both carry a `schema` number that changes when a key changes its meaning.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sharding.costs import Comparison
from sharding.errors import SourceError
from sharding.events import Compared, Planned, Probed, Progress, Published, ShardFinished, Verified
from sharding.evidence import comparison_json
from sharding.files import CARD_NAME, DIGESTS_NAME, PICTURE_NAME, REPORT_NAME
from sharding.values import Checkpoint, Finding, Plan, RepoRef, Resources, ShardRecord, TensorDigest, Verification

SCHEMA = 1

Engine = Literal["stream", "classic"]

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
        "max_shard_bytes": plan.max_shard_bytes,
        "strategy": plan.strategy,
        "order": plan.order,
        "dtype": plan.dtype,
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


def digests_json(report: Report) -> Json:
    """Return the SHA-256 of every shard file and of every tensor's bytes, in hex."""
    shards, tensors = {}, {}
    for shard in report.plan.shards:
        record = report.records[shard.file]
        shards[shard.file] = {"bytes": record.bytes, "sha256": record.sha256}
        digests = record.tensor_sha256
        for tensor in shard.tensors:
            tensors[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "sha256": digests[tensor.name]}
    return {"schema": SCHEMA, "plan_id": report.plan_id, "shards": shards, "tensors": tensors}


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


class _TensorLine(BaseModel):
    model_config = ConfigDict(strict=True)
    dtype: str
    shape: list[Annotated[int, Field(ge=0)]]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class _Digests(BaseModel):
    model_config = ConfigDict(strict=True)
    schema_: Literal[1] = Field(alias="schema")
    tensors: dict[str, _TensorLine]


def parse_digests(text: bytes) -> dict[str, TensorDigest]:
    """Return the tensor digests of a `sharding_digests.json`, which may come from anybody.

    Raises SourceError when it is not what this tool writes.
    """
    try:
        digests = _Digests.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])[:100]
        message = f"{DIGESTS_NAME} is not valid: {place}: {problem['msg']}."
        raise SourceError(message, "Verify without --quick, which reads the weights.") from error
    return {name: TensorDigest(line.dtype, tuple(line.shape), line.sha256) for name, line in digests.tensors.items()}
