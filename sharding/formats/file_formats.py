"""The formats in which weight files are written. Pure."""

from collections.abc import Mapping

from sharding.core.protocols import FileFormat
from sharding.core.values import Plan, Shard
from sharding.formats.gguf import Gguf
from sharding.formats.safetensors_file import Safetensors

FORMATS: Mapping[str, FileFormat] = {"safetensors": Safetensors(), "gguf": Gguf()}


def format_of(plan: Plan) -> FileFormat:
    """Return the format of the files of a plan."""
    return FORMATS[plan.format]


def file_bytes(plan: Plan, shard: Shard) -> int:
    """Return the size of the file of `shard`, with its header."""
    pieces = format_of(plan).pieces(plan, shard)
    return sum(len(piece) if isinstance(piece, bytes) else piece.bytes for piece in pieces)
