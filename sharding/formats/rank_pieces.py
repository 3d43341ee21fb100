"""Find which piece of each tensor the file of one rank holds, and where it belongs in the whole tensor. Pure.

The file is a pickle of the rank's state dict. A tensor in it is whole, a DTensor or a ShardedTensor (torch 2.13,
`distributed.tensor` and `distributed._shard`). Older versions store the mesh of a DTensor in other attributes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from sharding.core.dtypes import BY_TORCH
from sharding.formats.inert_pickle import Instance, dtype_of, entries_of, lengths_of, state_of
from sharding.formats.torch_globals import Global, Other, PickleRefused, StoredTensor
from sharding.recipes.laid import strides_of

Numbers = tuple[int, ...]
_CUT = "torch._tensor._rebuild_from_type_v2"
_MOST_RANKS = 100_000
FLAT = "_flat_param"  # The end of the names in a LOCAL_STATE_DICT.


@dataclass(frozen=True, slots=True)
class RankTensor:
    """What one rank holds of a tensor of `shape`: its pieces, each with its offsets. Without a cut it `is_whole`."""

    shape: Numbers
    dtype: str
    pieces: tuple[tuple[Numbers, StoredTensor], ...]
    is_whole: bool = False


def parse_rank(state: Any, rank: int, ranks: int) -> tuple[dict[str, RankTensor], list[str]]:
    """Return the tensors by name in what `rank` of `ranks` has saved, and the names of its other entries.

    Raises PickleRefused if another rank saved it, or if a place is not known.
    """
    tensors, others = dict[str, RankTensor](), list[str]()
    for name, value in entries_of(state).items():
        if isinstance(value, StoredTensor):
            whole = ((0,) * len(value.shape), value)
            tensors[name] = RankTensor(value.shape, value.dtype, (whole,), is_whole=True)
        elif isinstance(value, Instance) and value.kind == _CUT:
            if name.endswith(FLAT):
                raise PickleRefused("it is a LOCAL_STATE_DICT (_flat_param), without names and shapes of parameters")
            tensors[name] = _cut(name, value.arguments, rank, ranks)
        elif isinstance(value, Other) and value.is_tensor:
            raise PickleRefused(f"{name[:100]} is {value.what}, which cannot be read")
        elif isinstance(value, dict) and any(map(_is_tensor, value.values())):
            raise PickleRefused(f"{name[:100]} is a dictionary with tensors in it, and not a tensor")
        else:
            others.append(name)
    if not tensors:
        raise PickleRefused("it has no tensors by name")
    for name, tensor in tensors.items():
        if not BY_TORCH[tensor.dtype].name:
            raise PickleRefused(f"{name[:100]} has the dtype {tensor.dtype}, which safetensors does not support")
    return tensors, others


def _is_tensor(value: Any) -> bool:
    return isinstance(value, StoredTensor) or (isinstance(value, Instance) and value.kind == _CUT)


def _cut(name: str, arguments: tuple[Any, ...], rank: int, ranks: int) -> RankTensor:
    """Return a tensor of which the rank holds a piece, from the arguments of torch's `_rebuild_from_type_v2`."""
    if len(arguments) != 4 or not isinstance(arguments[1], Global):
        raise PickleRefused(f"{name[:100]} is a tensor without a class")
    _, kind, made, state = arguments
    dtype, shape = (made[1], made[2]) if isinstance(made, tuple) and len(made) > 2 else (None, None)
    dtype, whole, how = dtype_of(dtype), lengths_of(shape), kind.name.rpartition(".")[2]
    if how not in ("DTensor", "ShardedTensor") or not kind.name.startswith("torch.distributed."):
        raise PickleRefused(f"{name[:100]} is a tensor of the class {kind.name[:100]}, which cannot be read")
    pieces = list[tuple[Numbers, StoredTensor]]()
    for offsets, lengths, tensor in (_shards if how == "ShardedTensor" else _local)(name, whole, state, rank, ranks):
        if not isinstance(tensor, StoredTensor) or (tensor.dtype, tensor.shape) != (dtype, lengths):
            there = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, StoredTensor) else "no tensor"
            raise PickleRefused(f"the piece of {name[:100]} is {there}, but its place is {dtype} {list(lengths)}")
        pieces.append((offsets, tensor))
    return RankTensor(whole, dtype, tuple(pieces))


_Pieces = Iterator[tuple[Numbers, Numbers, Any]]  # The offsets and the shape of each piece, and what is there.


def _shards(name: str, shape: Numbers, state: Any, rank: int, ranks: int) -> _Pieces:
    if not isinstance(state, tuple) or len(state) != 5 or not isinstance(state[0], list):
        raise PickleRefused(f"{name[:100]} is an incomplete ShardedTensor")
    group = state_of(state[2])
    _refuse_other_rank(group.get("global_rank"), group.get("global_world_size"), rank, ranks)
    for shard in map(state_of, state[0]):
        metadata = state_of(shard.get("metadata"))
        offsets, sizes = lengths_of(metadata.get("shard_offsets")), lengths_of(metadata.get("shard_sizes"))
        yield offsets, sizes, shard.get("tensor")


def _local(name: str, shape: Numbers, state: Any, rank: int, ranks: int) -> _Pieces:
    fields = state[1] if isinstance(state, tuple) and len(state) == 2 else state
    fields = fields if isinstance(fields, dict) else {}
    spec = state_of(fields.get("_spec"))
    placements = spec.get("placements")
    counts, coordinates = _mesh(name, state_of(spec.get("mesh")), rank, ranks)
    if not isinstance(placements, tuple) or len(placements) != len(counts):
        raise PickleRefused(f"{name[:100]} does not say how it is cut")
    cuts = [_placement(name, one) for one in placements]
    offsets, lengths = box_of(shape, cuts, counts, coordinates, _order(spec))
    yield offsets, lengths, fields.get("_local_tensor")


def _mesh(name: str, mesh: Mapping[Any, Any], rank: int, ranks: int) -> tuple[list[int], Numbers]:
    """Return how many parts each dimension of a mesh has, and which one of them the rank holds."""
    layout, stored = state_of(mesh.get("_layout")), mesh.get("mesh")
    shape, stride = layout.get("shape"), layout.get("stride")
    axes = [(state_of(axis).get("shape"), state_of(axis).get("stride")) for axis in _listed(layout.get("axes"))]
    if isinstance(stored, StoredTensor):  # to torch 2.8: the ranks of this mesh alone
        axes = list(zip(stored.shape, strides_of(stored.shape), strict=True))
    elif not axes and isinstance(shape, tuple) and isinstance(stride, tuple):  # torch 2.9
        axes = list(zip(shape, stride, strict=False))
    parts = [(_several(lengths), _several(strides)) for lengths, strides in axes]
    counts, coordinates = [prod(shape) for shape, _ in parts], mesh.get("_coordinate_on_dim")
    if not counts or not isinstance(coordinates, tuple | list) or len(coordinates) != len(counts):
        raise PickleRefused(f"the mesh of {name[:100]} does not say which part rank {rank} holds")
    found = lengths_of(coordinates)
    if not all(at < count for at, count in zip(found, counts, strict=True)):
        raise PickleRefused(f"the mesh of {name[:100]} is smaller than its coordinates")
    root = state_of(mesh.get("_root_mesh")) or mesh
    if "_flatten_rank_map" in root:
        every = lengths_of(root["_flatten_rank_map"], _MOST_RANKS)
        _refuse_other_rank(mesh.get("_rank", rank), len(every), rank, ranks)
    else:
        every = lengths_of(mesh.get("_flatten_mesh_list") or (), _MOST_RANKS)
        _refuse_other_rank(rank, max(ranks, 1 + max(every, default=0)), rank, ranks)
    if every and (rank not in every or tuple(_digits(every.index(rank), *part) for part in parts) != found):
        raise PickleRefused(f"it is not the file of rank {rank}, as its mesh says")
    return counts, found


def _digits(place: int, shape: Numbers, strides: Numbers) -> int:
    """Return the coordinate of the rank at `place` along a dimension of a mesh.

    >>> [_digits(place, (2,), (2,)) for place in range(4)]
    [0, 0, 1, 1]
    """
    at = 0
    for length, stride in zip(shape, strides, strict=False):
        at = at * length + place // max(1, stride) % length
    return at


Placement = tuple[int | None, int]  # The dimension that is cut, None for a copy, and the split factor (0: none).


def _placement(name: str, value: Any) -> Placement:
    kind = value.kind.rpartition(".")[2] if isinstance(value, Instance) else ""
    dimension, factor = state_of(value).get("dim"), state_of(value).get("split_factor", 0)
    if kind == "Replicate":
        return None, 0
    if kind not in ("Shard", "_StridedShard") or type(dimension) is not int or type(factor) is not int:
        raise PickleRefused(f"{name[:100]} is placed as {kind or 'something unknown'}, so no rank holds its numbers")
    return dimension, factor if kind == "_StridedShard" else 0


def _order(spec: Mapping[Any, Any]) -> dict[int, list[int]]:
    """Return the order in which dimensions of the mesh cut each dimension of the tensor, where the spec states it."""
    entries = [entry.arguments for entry in _listed(spec.get("shard_order")) if isinstance(entry, Instance)]
    if not all(len(entry) == 2 and type(entry[0]) is int for entry in entries):
        raise PickleRefused("it has an impossible order of cuts")
    return {entry[0]: list(lengths_of(entry[1])) for entry in entries}


def box_of(
    shape: Numbers,
    placements: Sequence[Placement],
    counts: Sequence[int],
    coordinates: Sequence[int],
    stated: Mapping[int, list[int]] | None = None,
) -> tuple[Numbers, Numbers]:
    """Return offsets and shape of the piece at `coordinates` of a mesh with `counts` parts along its dimensions.

    Each cut is that of `torch.chunk`: parts of equal length, the last one shorter or empty. Dimensions of the mesh cut
    one after another, in the `stated` order or from the first on. A strided one comes after the later ones.

    >>> box_of((17, 3), [(0, 2), (0, 0)], [2, 2], [0, 1])
    ((9, 0), (4, 3))
    """
    order: dict[int, list[int]] = {}
    for axis in reversed(range(len(placements))):
        dimension, factor = placements[axis]
        if dimension is None:
            continue
        cuts = order.setdefault(dimension, [])
        if not 0 <= dimension < len(shape) or (factor and factor != prod(counts[other] for other in cuts)):
            raise PickleRefused("it has a tensor that is cut in an unknown way")
        cuts.insert(len(cuts) if factor else 0, axis)
    if stated and not any(factor for _, factor in placements):
        for dimension, cuts in order.items():
            if sorted(axes := stated.get(dimension, cuts)) != sorted(cuts):
                raise PickleRefused("it has a tensor that is cut in an unknown way")
            order[dimension] = axes
    offsets, lengths = [0] * len(shape), list(shape)
    for dimension, axes in order.items():
        for axis in axes:
            chunk = -(-lengths[dimension] // counts[axis])
            start = min(lengths[dimension], chunk * coordinates[axis])
            lengths[dimension] = min(chunk, lengths[dimension] - start)
            offsets[dimension] += start
    return tuple(offsets), tuple(lengths)


def _refuse_other_rank(stated: Any, total: Any, rank: int, ranks: int) -> None:
    if stated != rank:
        raise PickleRefused(f"rank {str(stated)[:20]} saved it, but its name says rank {rank}")
    if total != ranks:
        raise PickleRefused(f"it is one of {str(total)[:20]} files, but {ranks} are expected")


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else ()


def _several(value: Any) -> Numbers:
    return lengths_of((value,) if type(value) is int else value)
