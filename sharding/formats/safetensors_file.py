"""Describe a shard as a safetensors file: its name, its first bytes, the places of its tensors.

This module is the only one that knows how a written file looks. `safetensors_header` makes the bytes of its header.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import HeaderError
from sharding.core.values import Component, Plan, Shard, Tensor, TensorDigest
from sharding.formats.safetensors_header import build_header, parse_header

_RANK = {dtype: rank for rank, dtype in enumerate(BY_NAME)}


def shards_of(groups: Sequence[Iterable[Tensor]], component: Component) -> list[Shard]:
    """Return a named shard for each of `groups`, with its tensors in the order of the file."""
    shards = []
    for number, group in enumerate(groups, start=1):
        suffix = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        tensors = in_file_order(group)
        shards.append(Shard(component.file(suffix), tuple(tensors), sum(tensor.bytes for tensor in tensors)))
    return shards


def in_file_order(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return `tensors` in the order of the safetensors writer: the widest dtype first, then by name."""
    return sorted(tensors, key=lambda tensor: (_RANK[tensor.dtype], tensor.name))


def shard_header(plan: Plan, shard: Shard) -> bytes:
    """Return the first bytes of `shard`: length and header. The tensors follow without a gap."""
    return build_header(shard.tensors, plan.component(shard).metadata, shard.folder)


def written_tensors(plan: Plan, shard: Shard, file_bytes: int) -> tuple[Tensor, ...]:
    """Return the tensors of `shard` with their places in its file, which has `file_bytes`."""
    return parse_header(shard_header(plan, shard), file_bytes, shard.file).tensors


def structure_of(path: Path, shard: Shard) -> tuple[dict[str, TensorDigest], dict[str, str] | None]:
    """Return the dtypes and shapes that safetensors sees in the file at `path`, by name, and its metadata.

    The digests are empty because no tensor is read. Raises HeaderError if safetensors cannot open the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            views = {shard.folder + name: file.get_slice(name) for name in file.offset_keys()}
            seen = {name: TensorDigest(view.get_dtype(), tuple(view.get_shape()), "") for name, view in views.items()}
            return seen, file.metadata()
    except (SafetensorError, OSError) as error:
        hint = "The file is damaged. Download it again, or run the job again if it is a result."
        raise HeaderError(f"safetensors cannot open {shard.file}: {error}.", hint) from error
