"""Turn the digests of a finished job into JSON and back: the SHA-256 of every shard file and tensor, in hex. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from sharding.core.bounds import Count, Sha256
from sharding.core.errors import SourceError
from sharding.core.values import Plan, ShardRecord, TensorDigest
from sharding.formats.names import DIGESTS_NAME
from sharding.report.schema import Json, adapter, first_problem, to_json


@dataclass(frozen=True, slots=True)
class _FileDigest:
    bytes: Count
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class _Digests:
    """What `sharding_digests.json` says."""

    schema: Literal[1]
    plan_id: str
    shards: Mapping[str, _FileDigest]
    tensors: dict[str, TensorDigest]


def digests_json(plan: Plan, plan_id: str, records: Mapping[str, ShardRecord]) -> Json:
    """Return the digests of the shards of `plan`, in its order."""
    shards, tensors = {}, {}
    for shard in plan.shards:
        record = records[shard.file]
        shards[shard.file] = _FileDigest(record.bytes, record.sha256)
        for tensor in shard.tensors:
            digest = record.tensor_sha256[tensor.name]
            tensors[tensor.name] = TensorDigest(tensor.dtype, tensor.shape, digest)
    return to_json(_Digests(1, plan_id, shards, tensors))


def parse_digests(text: bytes) -> dict[str, TensorDigest]:
    """Return the tensor digests of a `sharding_digests.json`, which may come from anybody.

    Raises SourceError when it is not what this tool writes.
    """
    try:
        digests: _Digests = adapter(_Digests).validate_json(text, strict=True)
    except ValidationError as error:
        message = f"{DIGESTS_NAME} is not valid: {first_problem(error)}."
        raise SourceError(message, "Verify without --quick, which reads the weights.") from error
    return digests.tensors
