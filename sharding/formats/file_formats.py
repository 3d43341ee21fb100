"""The formats in which weight files are written. Pure."""

from collections.abc import Mapping

from sharding.core.protocols import FileFormat
from sharding.core.values import Plan, Shard, Tensor
from sharding.formats.gguf import Gguf
from sharding.formats.safetensors_file import Safetensors
from sharding.recipes.stored import Stored

FORMATS: Mapping[str, FileFormat] = {"safetensors": Safetensors(), "gguf": Gguf()}


def format_of(plan: Plan) -> FileFormat:
    """Return the format of the files of a plan."""
    return FORMATS[plan.format]


def places_of(plan: Plan, shard: Shard) -> list[Tensor]:
    """Return the tensors of `shard` with their places in its file."""
    tensors, at = list[Tensor](), 0
    for piece in format_of(plan).pieces(plan, shard):
        if isinstance(piece, Tensor):
            tensors.append(piece._replace(recipe=Stored(0, shard.file, at, at + piece.bytes)))
        at += len(piece) if isinstance(piece, bytes) else piece.bytes
    return tensors


def file_bytes(plan: Plan, shard: Shard) -> int:
    """Return the size of the file of `shard`, with its header."""
    pieces = format_of(plan).pieces(plan, shard)
    return sum(len(piece) if isinstance(piece, bytes) else piece.bytes for piece in pieces)
