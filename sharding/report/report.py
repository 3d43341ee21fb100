"""Sum up a job as the values that become JSON: report, digests, events. Read digests and events again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, cast

from pydantic import ValidationError

from sharding import __version__
from sharding.core.bounds import Count, Sha256
from sharding.core.errors import Remedy, SourceError
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.meter import Meter
from sharding.core.options import SINGLE_FILE, Engine, Options, Order, naming
from sharding.core.origin import Place
from sharding.core.protocols import Destination
from sharding.core.values import Content, Finding, Plan, ShardRecord, TensorDigest
from sharding.core.verification import Verification
from sharding.formats.file_formats import format_of
from sharding.formats.gguf import parts_of
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.loading.costs import Compared, Comparison, Probed
from sharding.loading.measure import stored_dtypes
from sharding.planning.order import by_folder
from sharding.planning.plan import identify_plan, sentence
from sharding.recipes.stored import are_stored
from sharding.report import schema
from sharding.report.comparison import ComparisonSummary, summarize_comparison
from sharding.report.schema import Inspection, Json, PlannedShard, PlanSummary, Report, Resources, WrittenShard
from sharding.transfer.stream import Prepared, expected_digests


def summarize_source(checkpoint: Content) -> Inspection:
    """Return the facts in the headers of a source, and the files beside its weights."""
    side_files = tuple(schema.SideFile(file=file.path, bytes=file.bytes) for file in checkpoint.side_files)
    return Inspection(**_facts(checkpoint), side_files=side_files, findings=checkpoint.findings)


def inspection_json(checkpoint: Content) -> Json:
    """Return the facts about a source for JSON, with its `models` if they are GGUF."""
    models = {"models": _models(checkpoint)} if checkpoint.format == "gguf" else {}
    return schema.to_json(summarize_source(checkpoint)) | models


def _models(checkpoint: Content) -> list[Json]:
    models = {component.folder: component for component in checkpoint.components if component.gguf}
    documents = []
    for folder, tensors in by_folder(checkpoint.tensors, models).items():
        name = models[folder].stem
        files = [file for file in checkpoint.weight_files if (parts_of(file.path) or ("",))[0] == name]
        paths, size = [file.path for file in files], sum(file.bytes for file in files)
        model = {"name": name, "variant": models[folder].variant, "files": paths, "bytes": size}
        documents.append(model | {"tensors": len(tensors), "dtypes": stored_dtypes(tensors)})
    return documents


def summarize_plan(plan: Plan, findings: Iterable[Finding] = (), plan_id: str = "") -> PlanSummary:
    """Return which shard holds what. `findings` of the source come before its own. `plan_id` may be known already."""
    return PlanSummary(
        **{name: getattr(plan, name) for name in ("made", "total_bytes", "total_parameters", "stages", "pipeline")},
        **{name: getattr(plan.options, name) for name in ("strategy", "order", "rank")},
        max_shard_bytes=plan.total_bytes if plan.options.is_single_file else plan.options.max_shard_bytes,
        asked=plan.options.deciding,
        shards=tuple(
            PlannedShard(file=shard.file, bytes=shard.bytes, tensors=tuple(tensor.name for tensor in shard.tensors))
            for shard in plan.shards
        ),
        findings=(*findings, *plan.findings),
        plan_id=plan_id or identify_plan(plan),
    )


def make_report(
    checkpoint: Content,
    plan: Plan,
    plan_id: str,
    records: Mapping[str, ShardRecord],
    verification: Verification,
    resources: Resources,
    *,
    destination: Place,
    engine: Engine,
    comparison: Comparison | None,
    fleet: schema.FleetCost | None = None,
) -> Report:
    """Return the report of a job that ends now."""
    written = [records[shard.file] for shard in plan.shards]
    side_files = (file.path for file in checkpoint.side_files if file.path != CARD_NAME)
    ours = files_written(plan, has_picture=bool(comparison and comparison.is_measured))
    return Report(
        schema=1,
        tool=f"shard-my-repo {__version__}",
        finished=datetime.now(UTC).replace(microsecond=0),
        engine=engine,
        source=schema.SourceSummary(**_facts(checkpoint)),
        destination=destination,
        plan=summarize_plan(plan, checkpoint.findings, plan_id),
        plan_id=plan_id,
        shards=tuple(WrittenShard(file=record.file, bytes=record.bytes, sha256=record.sha256) for record in written),
        files=(*side_files, *ours),
        verification=verification,
        overflowed={name: count for record in written for name, count in record.overflowed.items()},
        resources=resources,
        fleet=fleet,
        comparison=summarize_comparison(comparison) if comparison else None,
    )


def resources_of(prepared: Prepared, target: Destination, meter: Meter, spent: Resources | None = None) -> Resources:
    """Return what a job has used so far. `spent` is what the workers of a fleet used."""
    here = Resources(
        peak_anon_bytes=max(meter.peak_anon_bytes, prepared.peak_anon_bytes),
        seconds=meter.seconds,
        bytes_read=sum(source.bytes_read for source in prepared.sources),
        read_requests=sum(source.requests for source in prepared.sources),
        bytes_uploaded=target.bytes_uploaded,
        bytes_deduplicated=target.bytes_deduplicated,
        disk_bytes_written=target.disk_bytes_written + prepared.disk_bytes_written,
    )
    return replace(here + spent, seconds=here.seconds) if spent else here


def decided_by(report: Report) -> tuple[str, Options]:
    """Return the source and the options that give the numbers of this copy, pinned, though it be cut otherwise."""
    source, asked = report.source, cast(Any, report.plan.asked)
    return source.place.text, Options(**asked, **naming(place for place in source.beside if place.is_pinned))


def asked_of(report: Report) -> tuple[str, Options]:
    """Return the source and the options that give this copy again, each input pinned. Raises UsageError."""
    plan, (source, options) = report.plan, decided_by(report)
    is_one = len(plan.shards) == 1 and plan.max_shard_bytes == plan.total_bytes
    size, order = SINGLE_FILE if is_one else plan.max_shard_bytes, cast("Order", plan.order)  # Options checks it
    return source, replace(options, max_shard_size=size, strategy=plan.strategy, order=order, rank=plan.rank)


def files_written(plan: Plan, *, has_picture: bool) -> tuple[str, ...]:
    """Return the paths of all files that this tool writes for `plan`: shards, reports, indexes."""
    beside = (CARD_NAME, MAP_NAME, *([PICTURE_NAME] * has_picture), DIGESTS_NAME, REPORT_NAME)
    return (*(shard.file for shard in plan.shards), *beside, *format_of(plan).indexes(plan))


def _facts(checkpoint: Content) -> dict[str, Any]:
    tensors_in = checkpoint.tensors_in
    same = ("architecture", "library", "variant", "other_variants", "beside", "total_bytes")
    return {
        **{name: getattr(checkpoint.source, name) for name in ("store", "repo_id", "revision", "inside")},
        **{name: getattr(checkpoint, name) for name in same},
        "in_pieces": len(checkpoint.in_pieces),
        "total_parameters": sum(tensor.parameters for tensor in checkpoint.tensors),
        "tensors": len(checkpoint.tensors),
        "dtypes": stored_dtypes(checkpoint.tensors),
        "components": tuple(
            schema.ComponentSummary(folder=component.folder, base=component.stem, metadata=component.metadata)
            for component in checkpoint.components
        ),
        "weight_files": tuple(
            schema.WeightFile(file=file.path, bytes=file.bytes, tensors=tensors_in.get(file.path, 0))
            for file in checkpoint.weight_files
        ),
    }


@dataclass(frozen=True, slots=True)
class _FileDigest:
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class _Digests:
    """The content of `sharding_digests.json`. `made` says how each tensor was made that was not copied."""

    schema: Literal[1]
    plan_id: str
    shards: Mapping[str, _FileDigest]
    tensors: Mapping[str, TensorDigest]
    made: Mapping[str, str] = field(default_factory=dict)


def digests_json(plan: Plan, plan_id: str, records: Mapping[str, ShardRecord]) -> Json:
    """Return the digests of the shards of `plan` for JSON, in the order of the plan."""
    shards = {one.file: _FileDigest(records[one.file].bytes, records[one.file].sha256) for one in plan.shards}
    tensors = expected_digests(plan.shards, records)
    sentences = {tensor.name: sentence(tensor) for tensor in plan.tensors if not are_stored([tensor])}
    document = schema.to_json(_Digests(1, plan_id, shards, tensors, sentences))
    return document if sentences else {key: value for key, value in document.items() if key != "made"}


def parse_digests(text: bytes, name: str) -> Mapping[str, TensorDigest]:
    """Return the tensor digests in the `sharding_digests.json` of `name`, which is untrusted. Raises SourceError."""
    try:
        digests: _Digests = schema.adapter(_Digests).validate_json(text, strict=True)
    except ValidationError as error:
        message = f"{DIGESTS_NAME} of {name} is not valid: {schema.first_problem(error)}."
        hint = "Leave out --quick to read and compare the weights."
        raise SourceError(message, hint, Remedy("read_every_byte")) from error
    return digests.tensors


@dataclass(frozen=True, slots=True)
class PlanMade:
    """The content of a `planned` event."""

    source: Inspection
    plan: PlanSummary


@dataclass(frozen=True, slots=True)
class Problem:
    """An error: its class, its message, and its hint. `remedy` is the hint as a value for programs."""

    kind: str
    message: str
    hint: str
    remedy: Remedy | None = None


JobEvent = (
    PlanMade | Progress | ShardFinished | Verification | Probed | ComparisonSummary | Published | Report | Problem
)

_NAMES: dict[type, str] = {
    PlanMade: "planned",
    Progress: "progress",
    ShardFinished: "shard-finished",
    Verification: "verified",
    Probed: "probed",
    ComparisonSummary: "compared",
    Published: "published",
    Report: "report",
}
_KINDS: dict[str, Any] = {name: kind for kind, name in _NAMES.items()} | {"verified": schema.Proof}


def event_json(event: Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report) -> Json:
    """Return one line of `--events`: the name of the event under the key `event`, and its fields."""
    payload: Any = event
    match event:
        case Planned():
            payload = PlanMade(summarize_source(event.checkpoint), summarize_plan(event.plan))
        case Verified():
            payload = event.verification
        case Compared():
            payload = summarize_comparison(event.comparison)
    name = _NAMES[type(payload)]
    line = {"event": name, **schema.to_json(payload, _KINDS[name])}
    if isinstance(event, Probed):
        del line["cost"]["curve"]  # the report has a curve for each side
    return line


def parse_event(line: Json) -> JobEvent:
    """Return the event in a line of a job. Raises ValueError if the line is no event of a job."""
    kind, payload = (Problem, line["error"]) if "error" in line else (_KINDS.get(str(line.get("event"))), line)
    if kind is None:
        raise ValueError("no event of a job: its name is unknown")
    try:
        return cast(JobEvent, schema.adapter(kind).validate_python(payload))
    except ValidationError as error:
        raise ValueError(f"no event of a job: {schema.first_problem(error)}") from error
