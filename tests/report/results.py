"""Results of jobs that nobody ran: checkpoints, plans and reports, built from values."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sharding.core.made import Change, Made, without_effect
from sharding.core.options import Engine, Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry, Plan, ShardRecord
from sharding.core.verification import Evidence, Verification
from sharding.loading.costs import Comparison
from sharding.planning.cast import cast_change
from sharding.report.report import make_report
from sharding.report.schema import FleetCost, Report, Resources
from tests.planning.tensors import in_ranks
from tests.tensors import plan_of, stored_tensor

SOURCE, COPY = Place("hub", "acme/model", "a" * 40), Place("hub", "me/copy", "")
FOLDER, OUT = Place("folder", "model", "1"), Place("folder", "out", "")
FILES = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
BASE = Place("hub", "acme/base", "f" * 40, role="base")
LORA = Place("hub", "bob/lora", "b" * 40, "sub/", "adapter")
MERGE = Change(
    *("adapter", f"with the adapter {LORA.text} merged", "The adapter"),
    *("The changed ones are what PEFT computes.", "It needs no PEFT and no adapter.", 2, 6, LORA),
    is_exact=False,
    relation="finetune",
    evidence=f"adapter_model.safetensors {'c' * 64}",
    peer="PEFT",
)
UNDONE = without_effect(MERGE)
DEQUANTIZED = Change(
    *("dequantize", "dequantized to bf16 (fp8, one scale for 128×128)", "Dequantizing"),
    *("Every quantized number is multiplied by its scale.", "It takes the memory of bf16 weights.", 4, 6),
    keeps_size=False,
)
CAST = cast_change("bf16", 6, 6)
LIMIT = 1000
"""Bytes of a shard, in which two of the tensors fit."""
PIPED = Options(LIMIT, strategy="pp:2")


def checkpoint(source: Place = SOURCE, **changes: Any) -> Content:
    """A Llama of four layers in two files: a matrix in each layer, one before them and one after them."""
    names = ["model.embed_tokens.weight", *(f"model.layers.{n}.mlp.up_proj.weight" for n in range(4)), "lm_head.weight"]
    tensors = tuple(
        stored_tensor(name, "F32", (10, 10), FILES[n // 3], 400 * (n % 3), 400 * (n % 3 + 1))
        for n, name in enumerate(names)
    )
    weights = tuple(FileEntry(file, 1300) for file in FILES)
    beside = tuple(FileEntry(file, 100) for file in ("config.json", "tokenizer.json"))
    whole = Content(source, tensors, (Component(),), weights, beside, (), architecture="LlamaForCausalLM")
    return replace(whole, **changes)


@dataclass(frozen=True)
class Result:
    """A result: what was read, what was planned, and the report of the job."""

    source: Content
    plan: Plan
    report: Report


def made(
    options: Options | None = None,
    source: Content | None = None,
    *,
    destination: Place = COPY,
    engine: Engine = "stream",
    made: Made = (),
    overflowed: Mapping[str, int] | None = None,
    comparison: Comparison | None = None,
    fleet: FleetCost | None = None,
    **proof: Any,
) -> Result:
    """The result of a job that shards `source` as `options` say. `proof` are fields of its verification."""
    options, source = options or Options(LIMIT), source or checkpoint()
    hints = {"": in_ranks([tensor.name for tensor in source.tensors], options.ranks)} if options.ranks else {}
    if adapter := next((change.by for change in made if change.by), None):
        source = replace(source, beside=(adapter,))
    plan = plan_of(source, options, hints)
    asked = {change.kind: True for change in made if change.kind == "dequantize"}
    plan = replace(plan, made=(*made, *plan.made), options=replace(plan.options, **asked))
    records = {shard.file: ShardRecord(shard.file, shard.bytes + 100, "d" * 64, {}) for shard in plan.shards}
    verification = Verification(len(plan.tensors), plan.total_bytes, 2.0, Evidence("hub"), (), plan.made)
    report = make_report(
        *(source, plan, "a plan", records),
        replace(verification, **proof),
        Resources(50_000_000, 8.2, 2600, 3, 1900, 700, 0),
        destination=destination,
        engine=engine,
        comparison=comparison,
        fleet=fleet,
    )
    now = datetime(2026, 11, 28, 4, tzinfo=UTC)
    report = replace(report, tool="shard-my-repo 1.0", finished=now, overflowed=overflowed or {})
    return Result(source, plan, report)


def of(report: Report, **source: Any) -> Report:
    """The same, of another source."""
    return replace(report, source=replace(report.source, **source))


def planned(report: Report, **plan: Any) -> Report:
    """The same, by another plan."""
    return replace(report, plan=replace(report.plan, **plan))


def proved(report: Report, **proof: Any) -> Report:
    """The same, with another proof."""
    return replace(report, verification=replace(report.verification, **proof))
