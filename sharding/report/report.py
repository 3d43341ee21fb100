"""Sum up a job as the values that become JSON. Pure."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sharding import __version__
from sharding.core.options import Engine
from sharding.core.values import Checkpoint, Finding, Plan, RepoRef, ShardRecord, Verification
from sharding.formats.names import CARD_NAME, DIGESTS_NAME, MAP_NAME, PICTURE_NAME, REPORT_NAME
from sharding.loading.costs import Comparison
from sharding.planning.plan import identify_plan
from sharding.report.comparison import summarize_comparison
from sharding.report.schema import (
    ComponentSummary,
    FleetCost,
    Inspection,
    PlannedShard,
    PlanSummary,
    Report,
    Resources,
    SideFile,
    SourceSummary,
    WeightFile,
    WrittenShard,
)


def summarize_source(checkpoint: Checkpoint) -> Inspection:
    """Return the facts in the headers of a source, and the files beside its weights."""
    side_files = tuple(SideFile(file=file.path, bytes=file.bytes) for file in checkpoint.side_files)
    return Inspection(**_facts(checkpoint), side_files=side_files, findings=checkpoint.findings)


def summarize_plan(plan: Plan, findings: Iterable[Finding] = (), plan_id: str = "") -> PlanSummary:
    """Return which shard holds what. `findings` are those of the source; they come before the plan's.

    Pass `plan_id` if you have it from `identify_plan` already.
    """
    return PlanSummary(
        max_shard_bytes=plan.total_bytes if plan.options.is_single_file else plan.options.max_shard_bytes,
        strategy=plan.options.strategy,
        order=plan.options.order,
        dtype=plan.options.dtype_made,
        keeps_others=plan.options.dtype == "keep" != plan.options.dtype_made,
        dequantized=plan.dequantized,
        merged=plan.merged,
        total_bytes=plan.total_bytes,
        total_parameters=plan.total_parameters,
        shards=tuple(
            PlannedShard(file=shard.file, bytes=shard.bytes, tensors=tuple(tensor.name for tensor in shard.tensors))
            for shard in plan.shards
        ),
        stages=plan.stages,
        pipeline=plan.pipeline,
        rank=plan.options.rank,
        findings=(*findings, *plan.findings),
        plan_id=plan_id or identify_plan(plan),
    )


def make_report(
    checkpoint: Checkpoint,
    plan: Plan,
    plan_id: str,
    records: Mapping[str, ShardRecord],
    verification: Verification,
    resources: Resources,
    *,
    destination: RepoRef,
    engine: Engine,
    overflowed: Mapping[str, int],
    comparison: Comparison | None,
    fleet: FleetCost | None = None,
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
        source=SourceSummary(**_facts(checkpoint)),
        destination=destination,
        plan=summarize_plan(plan, checkpoint.findings, plan_id),
        plan_id=plan_id,
        shards=tuple(WrittenShard(file=record.file, bytes=record.bytes, sha256=record.sha256) for record in written),
        files=(*side_files, *ours),
        verification=verification,
        overflowed=overflowed,
        resources=resources,
        fleet=fleet,
        comparison=summarize_comparison(comparison) if comparison else None,
    )


def files_written(plan: Plan, *, has_picture: bool) -> tuple[str, ...]:
    """Return the paths of all files that this tool writes for `plan`: shards, reports, indexes."""
    shards, picture = (shard.file for shard in plan.shards), [PICTURE_NAME] if has_picture else []
    return (*shards, CARD_NAME, MAP_NAME, *picture, DIGESTS_NAME, REPORT_NAME, *plan.indexes)


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields of a SourceSummary."""
    dtypes: dict[str, int] = {}
    for tensor in checkpoint.tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.bytes
    tensors_in = checkpoint.tensors_in
    return {
        "kind": checkpoint.source.kind,
        "repo_id": checkpoint.source.repo_id,
        "revision": checkpoint.source.revision,
        "folder": checkpoint.source.folder,
        "architecture": checkpoint.architecture,
        "library": checkpoint.library,
        "variant": checkpoint.variant,
        "other_variants": checkpoint.other_variants,
        "in_pieces": len(checkpoint.in_pieces),
        "base": checkpoint.base,
        "total_bytes": checkpoint.total_bytes,
        "total_parameters": sum(tensor.parameters for tensor in checkpoint.tensors),
        "tensors": len(checkpoint.tensors),
        "dtypes": dtypes,
        "components": tuple(
            ComponentSummary(folder=component.folder, base=component.stem, metadata=component.metadata)
            for component in checkpoint.components
        ),
        "weight_files": tuple(
            WeightFile(file=file.path, bytes=file.bytes, tensors=tensors_in.get(file.path, 0))
            for file in checkpoint.weight_files
        ),
    }
