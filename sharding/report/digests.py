"""Turn the digests of a finished job into JSON and back. Pure."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sharding.core.errors import SourceError
from sharding.core.values import TensorDigest
from sharding.formats.names import DIGESTS_NAME
from sharding.report.report import SCHEMA, Json, Report


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
