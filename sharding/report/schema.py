"""Define the values that become JSON: reports, sources and plans. Pure.

The same classes write and read them. A document may come from anybody, so reading checks names, numbers, types and the
schema. A document that fits may still lie, so a page that shows it must say whose word it is.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Self, cast

from pydantic import Field, PlainSerializer, TypeAdapter, ValidationError, WrapSerializer, model_validator
from pydantic import SerializerFunctionWrapHandler as Dump

from sharding.core.bounds import Count, File, Line, OptionalFolder, Seconds, Sha256, Word
from sharding.core.errors import SourceError, UsageError
from sharding.core.hints import PipelineCut
from sharding.core.limits import MAX_FILES
from sharding.core.made import Made
from sharding.core.options import Engine, Options
from sharding.core.origin import Place, Role, Store
from sharding.core.values import Finding, Library, Stage
from sharding.core.verification import Verification
from sharding.formats.names import REPORT_NAME
from sharding.report.comparison import ComparisonSummary

Json = dict[str, Any]  # An object ready for json.dumps.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_REPO_ID = re.compile(rf"{_NAME}(/{_NAME})?")
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class NodeCost:
    """What a job used on one machine of a fleet: in all, and the memory of the largest of its processes."""

    node: Line
    parts: Count
    bytes: Count
    seconds: Seconds
    peak_anon_bytes: Count


@dataclass(frozen=True, slots=True)
class FleetCost:
    """What a job used on many machines: the engine with its version, each node, and the files that started again."""

    engine: Word
    nodes: tuple[NodeCost, ...]
    repeated: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job used: memory of its largest process, time, bytes moved (without those read for the proof)."""

    peak_anon_bytes: Count
    seconds: Seconds
    bytes_read: Count
    read_requests: Count
    bytes_uploaded: Count
    bytes_deduplicated: Count
    disk_bytes_written: Count

    def __add__(self, other: "Resources") -> "Resources":
        """Return what two parts of a job used together, with the larger of their peaks."""
        sums = {field.name: getattr(self, field.name) + getattr(other, field.name) for field in fields(self)}
        return Resources(**sums | {"peak_anon_bytes": max(self.peak_anon_bytes, other.peak_anon_bytes)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSummary:
    """Weights that are loaded together. `metadata` is in the header of each of their files."""

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
    """The source of a job, and the facts in its headers. `dtypes` is dtype to bytes. `beside` are the other inputs. The
    first four fields are those of its `Place`. `in_pieces` counts the tensors that are stored in pieces."""

    store: Store
    repo_id: Word
    revision: Word
    inside: OptionalFolder = ""
    architecture: Line | None
    library: Library = "transformers"
    variant: Word = ""
    other_variants: tuple[Word, ...] = ()
    in_pieces: Count = 0
    beside: tuple[Place, ...] = ()
    total_bytes: Count
    total_parameters: Count
    tensors: Count
    dtypes: Mapping[Word, Count]
    components: tuple[ComponentSummary, ...] = ()
    weight_files: Annotated[tuple[WeightFile, ...], Field(max_length=MAX_FILES)]

    @property
    def place(self) -> Place:
        """The repo or folder, and the state of it."""
        return Place(self.store, self.repo_id, self.revision, self.inside)

    @property
    def inputs(self) -> tuple[Place, ...]:
        """All inputs of the job."""
        return (self.place, *self.beside)

    def of(self, role: Role) -> Place | None:
        """Return the input in `role`, None if the job had none."""
        return next((place for place in self.inputs if place.role == role), None)

    @property
    def weights_name(self) -> str:
        """The name of the weight files of the first component, without number and ending."""
        return self.components[0].base if self.components else "model"

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        for place in self.inputs:
            if place.is_pinned and not (_REPO_ID.fullmatch(place.repo_id) and _COMMIT.fullmatch(place.revision)):
                raise ValueError("not the name and commit of a repo")
            if not place.is_pinned and (place.inside or place.repo_id in ("", ".", "..") or "/" in place.repo_id):
                raise ValueError("not the name of a folder on a disk")
        if len({place.role for place in self.inputs}) < len(self.inputs):
            raise ValueError("two inputs in one role")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection(SourceSummary):
    """All that `inspect` returns about a source."""

    side_files: tuple[SideFile, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedShard:
    """A planned shard: the names of its tensors, and their bytes together."""

    file: File
    bytes: Count
    tensors: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSummary:
    """Which shard holds what, or what a `rank` of a `pipeline` loads. `made` is what was done to the numbers, `asked`
    the options for that. Plans with the same `plan_id` give the same shards, byte for byte."""

    max_shard_bytes: Count
    strategy: Word
    order: Word
    asked: Mapping[Word, str | bool] = field(default_factory=dict)
    made: Made = ()
    total_bytes: Count
    total_parameters: Count
    shards: Annotated[tuple[PlannedShard, ...], Field(min_length=1, max_length=MAX_FILES)]
    stages: Annotated[tuple[Stage, ...], Field(max_length=MAX_FILES)] = ()
    pipeline: PipelineCut | None = None
    rank: Count | None = None
    findings: tuple[Finding, ...] = ()
    plan_id: Word = ""

    @model_validator(mode="after")
    def _asks_for_choices(self) -> Self:
        with suppress(UsageError, TypeError):
            if Options(**cast(Any, self.asked)).deciding == self.asked:
                return self
        raise ValueError("not options that decide numbers")

    @property
    def has_ranks_of_its_pipeline(self) -> bool:
        """Whether layers of ranks follow one another, and each has a stage. Without a pipeline, there is no rank."""
        if self.pipeline is None:
            return self.rank is None
        layers = self.pipeline.layers
        starts = [0, *(end for _, end in layers)]
        in_order = all(start == at < end for at, (start, end) in zip(starts, layers, strict=False))
        return in_order and (len(self.stages) == len(layers) if self.rank is None else self.rank < len(layers))

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name, as in an index."""
        return {name: shard.file for shard in self.shards for name in shard.tensors}


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenShard:
    """A written shard: the size and SHA-256 of its file."""

    file: File
    bytes: Count
    sha256: Sha256


_RARE = ("made", "unstated", "unreached", "unchecked", "within", "undecided")  # In JSON only if true or not empty.


def _with_answer(verification: Verification, dump: Dump) -> Json:
    left_out = {"differences"} if verification.differences is None else set()
    left_out |= {key for key in _RARE if not getattr(verification, key)}
    said = {"identical": verification.identical, "outcome": verification.outcome.kind, "method": verification.method}
    document = {**said, **dump(verification)}
    return {key: value for key, value in document.items() if key not in left_out}


Proof = Annotated[Verification, WrapSerializer(_with_answer)]  # In JSON it first says how it ended.


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did and what it cost. `overflowed` counts the numbers that a cast has made infinite, by tensor."""

    schema: Literal[1]  # it changes when a key changes its meaning
    tool: Word
    finished: Annotated[datetime, PlainSerializer(lambda time: time.isoformat(timespec="seconds"))]
    engine: Engine = "stream"
    source: SourceSummary
    destination: Place
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
        """Whether checking it needs a folder on a disk. What computes numbers depends on the configurations too."""
        decisive = (place for place in self.source.inputs if place.gives_numbers or self.plan.made)
        return not all(place.is_pinned for place in decisive)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        plan, proof, pairs = self.plan, self.verification, [*zip(self.shards, self.plan.shards, strict=False)]
        planned, written = ([shard.file for shard in shards] for shards in (plan.shards, self.shards))
        names = sorted(name for shard in plan.shards for name in shard.tensors)  # a set would cost five times as much
        size, known = (len(names), plan.total_bytes), set(planned)
        is_whole_as_stored = self.engine == "stream" and not plan.made and plan.rank is None
        checks = {
            "the written shards are not the planned ones": planned == written,
            "a tensor is planned twice": all(name != following for name, following in pairwise(names)),
            "its shards do not add up to the plan's bytes": sum(shard.bytes for shard in plan.shards) == size[1],
            "a shard has fewer bytes than its tensors": all(shard.bytes > tensors.bytes for shard, tensors in pairs),
            "a shard is not among the files": set(written) <= set(self.files),
            "a stage has a file that is no shard": all(known.issuperset(stage.files) for stage in plan.stages),
            "a job leaves nothing undecided": not proof.undecided,
            "the verification is of another plan": not proof.may_be_published or (proof.tensors, proof.bytes) == size,
            "plan and verification disagree about what was done": proof.made == plan.made,
            "it takes numbers of what is no input": all(one.by in (None, *self.source.beside) for one in plan.made),
            "the copy has another size than its source": not is_whole_as_stored
            or (self.source.tensors, self.source.total_bytes) == size,
            "its ranks do not make a pipeline": plan.has_ranks_of_its_pipeline,
            "a repo cannot be the part of one rank": plan.rank is None or not self.destination.is_pinned,
        }
        if wrong := next((problem for problem, holds in checks.items() if not holds), None):
            raise ValueError(f"it contradicts itself: {wrong}")
        return self


def to_json(value: Any, kind: Any = None) -> Json:
    """Return a dataclass of a `kind`, if not just its class, as an object for JSON. Plans get their weight map too."""
    known: Any = kind or type(value)
    document: Json = adapter(known).dump_python(value, mode="json", by_alias=True)
    plan = value if isinstance(value, PlanSummary) else getattr(value, "plan", None)
    if plan is not None:
        summary = document if plan is value else document["plan"]
        for key in ("asked", "made"):
            if not summary[key]:
                del summary[key]
        last = {key: summary.pop(key) for key in ("stages", "pipeline", "rank", "findings", "plan_id")}
        summary |= {"weight_map": plan.weight_map, **last}
    return document


def parse_report(text: bytes | str, repo_id: str = "") -> Report:
    """Return the report in the `sharding_report.json` of `repo_id`, which is untrusted. Raises SourceError."""
    try:
        return cast(Report, adapter(Report).validate_json(text, strict=True))
    except ValidationError as error:
        name = f"{REPORT_NAME} of {repo_id}" if repo_id else REPORT_NAME
        message = f"{name} is not a report of this tool: {first_problem(error)}."
        hint = "Somebody may have written it by hand. Ask the owner of the repo to shard the model again."
        raise SourceError(message, hint) from error


def first_problem(error: ValidationError) -> str:
    """Return the first place where a document is wrong, and what is wrong there."""
    problem = error.errors(include_input=False, include_url=False)[0]
    place = ".".join(str(key) for key in problem["loc"])[:100]
    return f"{place or 'all of it'}: {problem['msg'][:200]}"


@cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the adapter that checks and dumps values of `kind`. It is cached: making one takes some milliseconds."""
    return TypeAdapter(kind)
