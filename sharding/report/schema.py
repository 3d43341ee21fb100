"""The values that become JSON: the report of a job, and what commands and events say of sources and plans. Pure.

They are written as they are and read by the same classes. What comes from anybody is refused as a whole, in one
sentence, where it does not fit: names that are no names of repos or files, numbers below zero, other types, another
schema. What fits may still lie, so whoever shows it says whose word it is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    PlainSerializer,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    WrapSerializer,
    model_validator,
)

from sharding.core.bounds import Count, File, Line, Sha256, Word
from sharding.core.errors import SourceError
from sharding.core.hints import PipelineCut
from sharding.core.limits import MAX_FILES
from sharding.core.options import Engine, TargetDtype
from sharding.core.values import Finding, FleetCost, Library, RepoRef, Resources, Stage, Verification
from sharding.formats.names import REPORT_NAME
from sharding.report.comparison import ComparisonSummary

Json = dict[str, Any]
"""An object ready for json.dumps."""

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_REPO_ID = re.compile(rf"{_NAME}(/{_NAME})?")
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSummary:
    """Weights that are loaded together; `metadata` stands in the header of every file."""

    folder: Line
    base: Line
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """A weight file of the source."""

    file: File
    bytes: Count
    tensors: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """A file beside the weights."""

    file: str
    bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSummary:
    """What is re-sharded, and what its headers say; `dtypes` are the bytes of each.

    `in_pieces` counts the tensors that lie in several files; `base` is the model that was trained.
    """

    kind: Literal["folder", "hub"]
    repo_id: Word
    revision: Word
    architecture: Line | None
    library: Library = "transformers"
    variant: Word = ""
    other_variants: tuple[Word, ...] = ()
    in_pieces: Count = 0
    base: RepoRef | None = None
    total_bytes: Count
    total_parameters: Count
    tensors: Count
    dtypes: Mapping[Word, Count]
    components: tuple[ComponentSummary, ...] = ()
    weight_files: Annotated[tuple[WeightFile, ...], Field(max_length=MAX_FILES)]

    @property
    def weights_name(self) -> str:
        """What the weights of the first component are called, without number and ending."""
        return self.components[0].base if self.components else "model"

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        for kind, name, commit in [(self.kind, self.repo_id, self.revision)] + [
            (base.kind, base.repo_id, base.revision) for base in [self.base] if base
        ]:
            if kind == "hub" and not (_REPO_ID.fullmatch(name) and _COMMIT.fullmatch(commit)):
                raise ValueError("not the name and commit of a repo")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(SourceSummary):
    """All that `inspect` says of a source."""

    side_files: tuple[SideFile, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """A shard as planned: the names of its tensors and the bytes of them."""

    file: File
    bytes: Count
    tensors: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """Which shard holds what; with a `rank` only what that one of a `pipeline` of transformers loads.

    `dequantized` says how the weights were quantized that are computed and not moved, "" where none are. Plans of the
    same `plan_id` give the same shards, byte for byte; "" in older reports.
    """

    max_shard_bytes: Count
    strategy: Word
    order: Word
    dtype: TargetDtype = "keep"
    dequantized: Line = ""
    total_bytes: Count
    total_parameters: Count
    shards: Annotated[tuple[PlannedShard, ...], Field(min_length=1, max_length=MAX_FILES)]
    stages: Annotated[tuple[Stage, ...], Field(max_length=MAX_FILES)] = ()
    pipeline: PipelineCut | None = None
    rank: Count | None = None
    findings: tuple[Finding, ...] = ()
    plan_id: Word = ""

    @property
    def has_ranks_of_its_pipeline(self) -> bool:
        """Whether the layers of its ranks follow one another, and each has a stage, or there is no pipeline."""
        if self.pipeline is None:
            return self.rank is None
        layers = self.pipeline.layers
        starts = [0, *(end for _, end in layers)]
        in_order = all(start == at < end for at, (start, end) in zip(starts, layers, strict=False))
        return in_order and (len(self.stages) == len(layers) if self.rank is None else self.rank < len(layers))

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name, as an index has it."""
        files: dict[str, str] = {}
        for shard in self.shards:
            files |= dict.fromkeys(shard.tensors, shard.file)
        return files


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShard:
    """A shard as written: the size and SHA-256 of its file."""

    file: File
    bytes: Count
    sha256: Sha256


_RARE = ("unstated", "unreached", "unchecked")


def _with_answer(verification: Verification, dump: SerializerFunctionWrapHandler) -> Json:
    document = {"identical": verification.identical, **dump(verification)}
    return {key: value for key, value in document.items() if value or key not in _RARE}


Proof = Annotated[Verification, WrapSerializer(_with_answer)]
"""A verification, which in JSON says first of all whether the copy is `identical`; read, its mismatches say so.

`unstated` is there only where it is true, `unreached` and `unchecked` where there are any.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did and what it cost: its last event, and `sharding_report.json` in the result.

    `overflowed` says how many numbers a cast has made infinite, as was allowed, by tensor; `fleet` is of the job alone
    that was done on many machines.
    """

    schema: Literal[1]  # it changes when a key changes its meaning
    tool: Word
    finished: Annotated[datetime, PlainSerializer(lambda time: time.isoformat(timespec="seconds"))]
    engine: Engine = "stream"
    source: SourceSummary
    destination: RepoRef
    plan: PlanSummary
    plan_id: Word
    shards: tuple[WrittenShard, ...]
    files: tuple[str, ...]
    verification: Proof
    overflowed: Mapping[Line, Count] = field(default_factory=dict)
    resources: Resources
    fleet: FleetCost | None = None
    comparison: ComparisonSummary | None = None

    @property
    def needs_folder(self) -> bool:
        """Whether it can be checked only where a folder is: its source, or the base that tells how it was cast."""
        base = self.source.base
        of_base = base is not None and base.kind == "folder" and self.plan.dtype != "keep"
        return self.source.kind == "folder" or of_base

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        planned, proof = self.plan.shards, self.verification
        names = sorted(name for shard in planned for name in shard.tensors)  # a set would cost five times as much
        checks = {
            "the shards written are not those planned": [shard.file for shard in planned]
            == [shard.file for shard in self.shards],
            "a tensor is planned twice": all(name != following for name, following in pairwise(names)),
            "the shards have not the bytes of the plan": sum(shard.bytes for shard in planned) == self.plan.total_bytes,
            "a shard has fewer bytes than its tensors": all(
                shard.bytes > plan.bytes for shard, plan in zip(self.shards, planned, strict=False)
            ),
            "a shard is none of the files": {shard.file for shard in self.shards} <= set(self.files),
            "a stage has files that are no shards": {file for stage in self.plan.stages for file in stage.files}
            <= {shard.file for shard in planned},
            "what was verified is not what was planned": not proof.identical
            or (proof.tensors, proof.bytes, proof.dtype) == (len(names), self.plan.total_bytes, self.plan.dtype),
            "what was dequantized is not what was planned": proof.dequantized == self.plan.dequantized,
            "nothing is dequantized without a dtype": not self.plan.dequantized or self.plan.dtype != "keep",
            "the copy has another size than its source": self.engine != "stream"
            or self.plan.dtype != "keep"
            or self.plan.rank is not None
            or (self.source.tensors, self.source.total_bytes) == (len(names), self.plan.total_bytes),
            "its ranks are not those of a pipeline": self.plan.has_ranks_of_its_pipeline,
            "a part of a pipeline is no whole repo": self.plan.rank is None or self.destination.kind == "folder",
        }
        if wrong := next((problem for problem, holds in checks.items() if not holds), None):
            raise ValueError(f"it contradicts itself: {wrong}")
        return self


def to_json(value: Any, kind: Any = None) -> Json:
    """Return a dataclass as an object for JSON, its keys in the order of its fields.

    `kind` is what it is where that is more than its class. A plan, or the one of `value`, has its weight map too.
    """
    known: Any = kind or type(value)
    document: Json = adapter(known).dump_python(value, mode="json", by_alias=True)
    plan = value if isinstance(value, PlanSummary) else getattr(value, "plan", None)
    if plan is not None:
        summary = document if plan is value else document["plan"]
        last = {key: summary.pop(key) for key in ("stages", "pipeline", "rank", "findings", "plan_id")}
        summary |= {"weight_map": plan.weight_map, **last}
    return document


def parse_report(text: bytes | str) -> Report:
    """Return what a `sharding_report.json`, which may come from anybody, says.

    Raises SourceError, naming the first thing that does not fit, when it is not what this tool writes.
    """
    try:
        report: Report = adapter(Report).validate_json(text, strict=True)
    except ValidationError as error:
        message = f"{REPORT_NAME} is not a report of this tool: {first_problem(error)}."
        hint = "Nothing of it is shown, because it may have been made up. Ask the owner of the repo to shard it again."
        raise SourceError(message, hint) from error
    return report


def first_problem(error: ValidationError) -> str:
    """Return where a document first is not what it should be, and what is wrong there."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(key) for key in problem["loc"])[:100]
    return f"{place or 'all of it'}: {problem['msg'][:200]}"


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return what checks and dumps values of `kind`; made when it is first needed, which takes some milliseconds."""
    return TypeAdapter(kind)
