"""Write the digests of a finished job as JSON, and read them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ValidationError

from sharding.core.bounds import Blake3, Count, Sha256
from sharding.core.errors import Remedy, SourceError
from sharding.core.values import Plan, ShardRecord, TensorDigest
from sharding.formats.names import DIGESTS_NAME
from sharding.planning.explain import sentence
from sharding.recipes.stored import are_stored
from sharding.report.schema import Json, adapter, first_problem, to_json


@dataclass(frozen=True, slots=True)
class _FileDigest:
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: str
    shape: tuple[Count, ...]
    blake3: Blake3


@dataclass(frozen=True, slots=True)
class _Digests:
    """The content of `sharding_digests.json`: SHA-256 of shard files and BLAKE3 of tensors, in hex.

    `made` says how each tensor was made that was not copied from one file.
    """

    schema: Literal[1]
    plan_id: str
    shards: Mapping[str, _FileDigest]
    tensors: dict[str, _Tensor]
    made: Mapping[str, str] = field(default_factory=dict)


def digests_json(plan: Plan, plan_id: str, records: Mapping[str, ShardRecord]) -> Json:
    """Return the digests of the shards of `plan` for JSON, in the order of the plan."""
    shards, tensors = {}, {}
    for shard in plan.shards:
        record = records[shard.file]
        shards[shard.file] = _FileDigest(record.bytes, record.sha256)
        for tensor in shard.tensors:
            tensors[tensor.name] = _Tensor(tensor.dtype, tensor.shape, record.tensor_blake3[tensor.name])
    sentences = {tensor.name: sentence(tensor) for tensor in plan.tensors if not are_stored([tensor])}
    document = to_json(_Digests(1, plan_id, shards, tensors, sentences))
    if not sentences:
        del document["made"]
    return document


def parse_digests(text: bytes, name: str) -> Mapping[str, TensorDigest]:
    """Return the tensor digests of the `sharding_digests.json` of `name`, which anybody may have written.

    Raises SourceError if it is not what this tool writes.
    """
    try:
        digests: _Digests = adapter(_Digests).validate_json(text, strict=True)
    except ValidationError as error:
        message = f"{DIGESTS_NAME} of {name} is not valid: {first_problem(error)}."
        hint = "Leave out --quick to read and compare the weights."
        raise SourceError(message, hint, Remedy("read_every_byte")) from error
    return {name: TensorDigest(one.dtype, one.shape, one.blake3) for name, one in digests.tensors.items()}
