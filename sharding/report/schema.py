"""Read a report that may come from anybody into checked values. Pure.

What does not fit is refused as a whole, in one sentence: names that are no names of repos or files, numbers below
zero, other types, another schema. What fits may still lie, so whoever shows it says whose word it is.
"""

import re
from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from sharding.core.errors import SourceError
from sharding.core.limits import CURVE_MOMENTS, MAX_FILES
from sharding.core.values import Library
from sharding.formats.names import REPORT_NAME

_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_REPO_ID = re.compile(rf"{_NAME}(/{_NAME})?")

_File = Annotated[str, StringConstraints(pattern=rf"^({_NAME}/)*{_NAME}$", max_length=300)]
_Line = Annotated[str, StringConstraints(max_length=2000)]
_Word = Annotated[str, StringConstraints(max_length=200)]
_Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Amount = Annotated[float, Field(ge=0, lt=1e18, allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]


class _Checked(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class SourceFile(_Checked):
    """A weight file of the source."""

    file: _File
    bytes: _Count
    tensors: _Count


class Origin(_Checked):
    """What was re-sharded, and what its headers said."""

    kind: Literal["folder", "hub"]
    repo_id: _Word
    revision: _Word
    architecture: _Word | None
    library: Library = "transformers"
    variant: _Word = ""
    total_bytes: _Count
    total_parameters: _Count
    tensors: _Count
    dtypes: dict[_Word, _Count]
    weight_files: Annotated[tuple[SourceFile, ...], Field(max_length=MAX_FILES)]

    @model_validator(mode="after")
    def _is_named(self) -> Self:
        if self.kind == "hub" and not (_REPO_ID.fullmatch(self.repo_id) and re.fullmatch(_NAME, self.revision)):
            raise ValueError("not the name and commit of a repo")
        return self


class PlannedShard(_Checked):
    """A shard as planned: its tensors and the bytes of them."""

    file: _File
    bytes: _Count
    tensors: tuple[_Line, ...]


class TiedMade(_Checked):
    """A tensor in a file of another stage, and the weights that it is in this one."""

    tensor: _Line
    file: _File
    used_as: tuple[_Line, ...]


class StageMade(_Checked):
    """What one machine of a pipeline holds, and the files that it needs."""

    blocks: tuple[_Line, ...]
    others: tuple[_Line, ...]
    files: Annotated[tuple[_File, ...], Field(min_length=1, max_length=MAX_FILES)]
    bytes: _Count
    also_needs: Annotated[tuple[TiedMade, ...], Field(max_length=MAX_FILES)] = ()


class PlanMade(_Checked):
    """Which shard holds what."""

    max_shard_bytes: _Count
    strategy: _Word
    order: _Word
    total_bytes: _Count
    total_parameters: _Count
    shards: Annotated[tuple[PlannedShard, ...], Field(min_length=1, max_length=MAX_FILES)]
    dtype: _Word = "keep"
    stages: Annotated[tuple[StageMade, ...], Field(max_length=MAX_FILES)] = ()


class WrittenShard(_Checked):
    """A shard as written: the size and SHA-256 of its file."""

    file: _File
    bytes: _Count
    sha256: _Sha256


class Difference(_Checked):
    """A tensor that is not as it should be."""

    tensor: _Line
    problem: _Line


class Proof(_Checked):
    """The outcome of the verification, and how it was made."""

    identical: bool
    tensors: _Count
    bytes: _Count
    seconds: _Seconds
    method: _Line
    mismatches: tuple[Difference, ...]
    dtype: _Word = "keep"


class Cost(_Checked):
    """What the job took."""

    peak_anon_bytes: _Count
    seconds: _Seconds
    bytes_read: _Count
    bytes_uploaded: _Count
    bytes_deduplicated: _Count
    disk_bytes_written: _Count


class Figure(_Checked):
    """A median over several runs, with its spread."""

    median: _Amount
    low: _Amount
    high: _Amount


class Loads(_Checked):
    """What loading one of the two has cost. `curve`: seconds, then bytes of anonymous, file-mapped and all memory."""

    runs: _Count
    outcome: _Word
    files: _Count
    format: _Word
    working_seconds: Figure
    peak_anon_bytes: Figure
    peak_file_bytes: Figure
    curve: Annotated[tuple[tuple[_Amount, _Count, _Count, _Count], ...], Field(max_length=2 * CURVE_MOMENTS)]


class Judgement(_Checked):
    """What the loads show, in a sentence."""

    sentence: _Line


class Classic(_Checked):
    """What the job would have taken the classic way."""

    seconds: _Seconds | None
    peak_anon_bytes: _Count
    disk_bytes: _Count
    reason_not_run: _Line


class Weighed(_Checked):
    """The comparison of loading the original and the copy; the sides are None where nothing was loaded."""

    verdict: Judgement
    reason_not_measured: _Line
    method: _Word
    machine: _Word
    original: Loads | None
    sharded: Loads | None
    classic: Classic | None = None


class ReadReport(_Checked):
    """A report whose every part has the form it should have."""

    schema_: Literal[1] = Field(alias="schema")
    tool: _Word
    finished: datetime
    source: Origin
    plan: PlanMade
    shards: tuple[WrittenShard, ...]
    verification: Proof
    resources: Cost
    comparison: Weighed | None = None
    overflowed: dict[_Line, _Count] = {}

    @model_validator(mode="after")
    def _shards_agree(self) -> Self:
        if [shard.file for shard in self.plan.shards] != [shard.file for shard in self.shards]:
            raise ValueError("the shards written are not those planned")
        return self


def parse_report(text: bytes | str) -> ReadReport:
    """Return what a `sharding_report.json`, which may come from anybody, says.

    Raises SourceError, naming the first thing that does not fit, when it is not what this tool writes.
    """
    try:
        return ReadReport.model_validate_json(text)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part) for part in problem["loc"])[:100]
        message = f"{REPORT_NAME} is not a report of this tool: {place or 'all of it'}: {problem['msg'][:200]}."
        hint = "Nothing of it is shown, because it may have been made up. Ask the owner of the repo to shard it again."
        raise SourceError(message, hint) from error
