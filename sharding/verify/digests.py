"""Check that two checkpoints hold the same tensors by reading and hashing them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from sharding.core.errors import HeaderError
from sharding.core.events import Phase, Progress
from sharding.core.limits import SPAN_BYTES
from sharding.core.protocols import Source
from sharding.core.recipe import Extent
from sharding.core.values import BytesRead, FileEntry, Plan, Shard, ShardRecord, Tensor, TensorDigest
from sharding.core.verification import Mismatch
from sharding.formats.file_formats import format_of
from sharding.recipes.stored import Stored
from sharding.transfer.lanes import collected
from sharding.transfer.stream import (
    NOWHERE,
    UNHASHED,
    Move,
    PiecesOf,
    Target,
    expected_digests,
    move_shards,
    only_tensors,
)


def shard_of(file: str, tensors: Sequence[Tensor]) -> Shard:
    """Return a shard of these tensors."""
    return Shard(file, tuple(tensors), sum(tensor.bytes for tensor in tensors))


def in_groups(tensors: Iterable[Tensor]) -> Iterator[Shard]:
    """Yield `tensors` in groups of some MiB, each called by its number."""
    group, size, number = list[Tensor](), 0, 0
    for tensor in tensors:
        group.append(tensor)
        size += tensor.bytes
        if size >= SPAN_BYTES:
            yield shard_of(str(number), group)
            group, size, number = [], 0, number + 1
    if group:
        yield shard_of(str(number), group)


def by_file(tensors: Iterable[Tensor]) -> Iterator[Shard]:
    """Yield the `tensors` of each file of a source."""
    files: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        files.setdefault(tensor.file, []).append(tensor)
    yield from (shard_of(file, held) for file, held in files.items())


def first_read(tensor: Tensor) -> Extent:
    """Return where a tensor begins in its source. Sorting by it gives the order of the source."""
    return next(tensor.recipe.reads(), Extent(0, tensor.file, 0, 0))


class Reader:
    """What makes and reads shards: this machine, or whatever else can `move` them. It reads tensors in `groups`."""

    def __init__(
        self, move: Move = move_shards, groups: Callable[[Iterable[Tensor]], Iterable[Shard]] = in_groups
    ) -> None:
        self.move, self._groups = move, groups

    def digest_shards(
        self,
        shards: Sequence[Shard],
        pieces: PiecesOf,
        sources: Sequence[Source],
        phase: Phase = "verify",
        sink: Target = NOWHERE,
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Make `shards` as if to write their `pieces`; yield progress; return their records. Raises SourceError."""
        records = yield from collected(self.move(phase, shards, pieces, sources, sink, True))
        return {record.file: record for record in records}

    def digest_tensors(
        self, sources: Sequence[Source], tensors: Iterable[Tensor]
    ) -> Generator[Progress, None, tuple[dict[str, TensorDigest], list[BytesRead]]]:
        """Make `tensors`; yield progress; return their digests by name, and the reads noted. Raises SourceError."""
        groups = list(self._groups(tensors))
        records = yield from self.digest_shards(groups, only_tensors, sources, sink=UNHASHED)
        return expected_digests(groups, records), [read for record in records.values() for read in record.reads]

    def digest_files(
        self,
        sources: Sequence[Source],
        files: Iterable[FileEntry],
        ranges: Mapping[str, Iterable[tuple[int, int]]] | None = None,
        phase: Phase = "check",
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Read `files`; yield progress; return the record of each by path, with the `[start, end)` `ranges` of it as
        samples. Raises SourceError."""
        shards = []
        for file in files:
            whole = Tensor(file.path, "U8", (file.bytes,), Stored(file.source, file.at, 0, file.bytes))
            shards.append(Shard(file.path, (whole,), file.bytes, tuple((ranges or {}).get(file.path, ()))))
        return (yield from self.digest_shards(shards, only_tensors, sources, phase))


def compare(expected: Mapping[str, TensorDigest], actual: Mapping[str, TensorDigest]) -> tuple[Mismatch, ...]:
    """Return every tensor in which two checkpoints differ, including missing and extra ones.

    >>> compare({"w": TensorDigest("F32", (1,), "aa")}, {"w": TensorDigest("F32", (1,), "bb")})
    (Mismatch(tensor='w', problem='its bytes differ'),)
    """
    mismatches = []
    for name in (*expected, *(name for name in actual if name not in expected)):
        planned, written = expected.get(name), actual.get(name)
        if planned is None or written is None:
            mismatches.append(Mismatch(name, "it is missing" if written is None else "it is not in the original"))
        elif (planned.dtype, planned.shape) != (written.dtype, written.shape):
            was, now = f"{planned.dtype} {list(planned.shape)}", f"{written.dtype} {list(written.shape)}"
            mismatches.append(Mismatch(name, f"it is {now} and should be {was}"))
        elif planned.blake3 != written.blake3:
            mismatches.append(Mismatch(name, "its bytes differ"))
    return tuple(mismatches)


def check_structure(path: Path, plan: Plan, shard: Shard) -> tuple[Mismatch, ...]:
    """Open one written file with the library of its format; return where it differs from the plan."""
    metadata = plan.component(shard).metadata
    try:
        actual, actual_metadata = format_of(plan).structure(path, shard)
    except HeaderError as error:
        return (Mismatch(shard.file, error.message),)
    mismatches = compare({one.name: TensorDigest(one.dtype, one.shape, "") for one in shard.tensors}, actual)
    differ = [] if actual_metadata == dict(metadata) else [Mismatch(shard.file, "its metadata differ")]
    return (*mismatches, *differ)
