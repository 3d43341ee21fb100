"""The formats in which weight files are written. Pure."""

from collections.abc import Mapping

from sharding.core.file_format import FileFormat
from sharding.core.values import Plan
from sharding.formats.gguf import Gguf
from sharding.formats.safetensors_file import Safetensors

FORMATS: Mapping[str, FileFormat] = {"safetensors": Safetensors(), "gguf": Gguf()}


def format_of(plan: Plan) -> FileFormat:
    """Return the format of the files of a plan."""
    return FORMATS[plan.format]
