"""Prove that two checkpoints hold the same tensors, by reading them again."""

import hashlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from typing_extensions import override

from sharding.core.errors import HeaderError
from sharding.core.events import Progress
from sharding.core.extras import is_installed
from sharding.core.hashing import new_tensor_hash
from sharding.core.limits import SPAN_BYTES
from sharding.core.protocols import Files, Source
from sharding.core.values import FileEntry, Mismatch, Shard, ShardRecord, Tensor, TensorDigest
from sharding.formats.safetensors_header import LENGTH_BYTES, header_end, parse_header
from sharding.recipes.stored import Stored, place_of
from sharding.transfer.lanes import Lanes, collected
from sharding.transfer.stream import ReadingPhase, digest_shards

Digests = Generator[Progress, None, dict[str, TensorDigest]]


Ranges = Mapping[str, Collection[tuple[int, int]]]
"""Parts of files, each from its first byte to the one after its last."""


@dataclass(frozen=True, slots=True)
class WholeFile:
    """The SHA-256 of a file, and the BLAKE3 of ranges in it, in hex."""

    sha256: str
    ranges: Mapping[tuple[int, int], str]


class Reader(Protocol):
    """Whoever reads for a proof: this machine, or a crew of others."""

    def digest_files(self, source: Source, sizes: Mapping[str, int]) -> Generator[Progress, None, dict[str, str]]:
        """Read whole files (name to size); yield progress; return the SHA-256 of each, in hex, by name."""
        ...

    def digest_tensors(self, source: Source, tensors: Iterable[Tensor]) -> Digests:
        """Read `tensors` (in stored order); yield progress; return their digests by name."""
        ...

    def digest_shards(
        self,
        shards: Sequence[Shard],
        header: Callable[[Shard], bytes],
        sources: Sequence[Source],
        phase: ReadingPhase = "verify",
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Make `shards` as if to write them, each behind its `header`; yield progress; return their records."""
        ...

    def digest_ranges(
        self, source: Source, files: Collection[FileEntry], ranges: Ranges
    ) -> Generator[Progress, None, dict[str, WholeFile]]:
        """Read `files` whole; yield progress; return the SHA-256 of each, and the BLAKE3 of the `ranges` of it."""
        ...


class ThisMachine(Reader):
    """Reading here. See `Reader`."""

    @override
    def digest_files(self, source: Source, sizes: Mapping[str, int]) -> Generator[Progress, None, dict[str, str]]:
        """Read two files at a time."""
        return digest_files(source, sizes)

    @override
    def digest_tensors(self, source: Source, tensors: Iterable[Tensor]) -> Digests:
        """Read files in long streams, two at a time."""
        return digest_tensors(source, tensors)

    @override
    def digest_shards(
        self,
        shards: Sequence[Shard],
        header: Callable[[Shard], bytes],
        sources: Sequence[Source],
        phase: ReadingPhase = "verify",
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Make two shards at a time."""
        return digest_shards(shards, header, sources, phase)

    @override
    def digest_ranges(
        self, source: Source, files: Collection[FileEntry], ranges: Ranges
    ) -> Generator[Progress, None, dict[str, WholeFile]]:
        """Read two files at a time, each once."""
        lanes = Lanes("verify", sum(file.bytes for file in files))
        tasks = [partial(_digest_ranges, source, file, ranges[file.path], lanes) for file in files]
        whole_files = yield from collected(lanes.run(tasks))
        return dict(zip((file.path for file in files), whole_files, strict=True))


def digest_tensors(source: Source, tensors: Iterable[Tensor]) -> Digests:
    """Read every tensor of `tensors` (in stored order); yield progress; return their digests by name.

    Files are read in long streams, two at a time. Raises SourceError where bytes cannot be had.
    """
    parts = list(spans(tensors))
    lanes = Lanes("verify", sum(tensor.bytes for span in parts for tensor in span))
    by_span = yield from collected(lanes.run([partial(digest_span, source, span, lanes.count) for span in parts]))
    return {name: digest for digests in by_span for name, digest in digests.items()}


def digest_files(source: Files, sizes: Mapping[str, int]) -> Generator[Progress, None, dict[str, str]]:
    """Read whole files (name to size); yield progress; return the SHA-256 of each, in hex, by name."""
    lanes = Lanes("check", sum(sizes.values()))
    tasks = [partial(_digest_file, source, file, size, lanes) for file, size in sizes.items()]
    return dict(zip(sizes, (yield from collected(lanes.run(tasks))), strict=True))


def expected_digests(shards: Iterable[Shard], records: Mapping[str, ShardRecord]) -> dict[str, TensorDigest]:
    """Return what the result must hold: the digests that were taken of the source's bytes as they passed."""
    return {
        tensor.name: TensorDigest(tensor.dtype, tensor.shape, records[shard.file].tensor_blake3[tensor.name])
        for shard in shards
        for tensor in shard.tensors
    }


def compare(expected: Mapping[str, TensorDigest], actual: Mapping[str, TensorDigest]) -> tuple[Mismatch, ...]:
    """Return every tensor in which two checkpoints differ, missing and extra ones among them.

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
        elif planned.digest != written.digest:
            mismatches.append(Mismatch(name, "its bytes differ"))
    return tuple(mismatches)


def check_structure(path: Path, shard: Shard, metadata: Mapping[str, str]) -> tuple[Mismatch, ...]:
    """Open one written file as `structure_reader` says; return where it does not hold what was planned."""
    from safetensors import SafetensorError

    try:
        actual, actual_metadata = (_open if is_installed("numpy") else _parse)(path, shard)
    except (SafetensorError, HeaderError, OSError) as error:
        return (Mismatch(shard.file, f"safetensors cannot open it: {error}"),)
    planned = {tensor.name: TensorDigest(tensor.dtype, tensor.shape, "") for tensor in shard.tensors}
    mismatches = compare(planned, actual)
    same_metadata = actual_metadata == dict(metadata)
    return mismatches if same_metadata else (*mismatches, Mismatch(shard.file, "its metadata differ"))


def structure_reader() -> str:
    """Return what `check_structure` opens files with: safetensors opens none where numpy is not installed."""
    return "safetensors" if is_installed("numpy") else "this tool's own reader of headers, as numpy is not installed"


_Structure = tuple[dict[str, TensorDigest], Mapping[str, str] | None]


def _open(path: Path, shard: Shard) -> _Structure:
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        slices = {shard.folder + name: file.get_slice(name) for name in file.offset_keys()}
        digests = {name: TensorDigest(view.get_dtype(), tuple(view.get_shape()), "") for name, view in slices.items()}
        return digests, file.metadata()


def _parse(path: Path, shard: Shard) -> _Structure:
    size = path.stat().st_size
    with open(path, "rb") as file:
        prefix = file.read(LENGTH_BYTES)
        header = parse_header(prefix + file.read(header_end(prefix, size, shard.file)), size, shard.file)
    return {tensor.name: TensorDigest(tensor.dtype, tensor.shape, "") for tensor in header.tensors}, header.metadata


def spans(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield `tensors` (in stored order) in groups that lie one after another in a file, to be read in one stream."""
    span: list[Tensor] = []
    start = end = Stored(0, "", 0, 0)
    for tensor in tensors:
        here = place_of(tensor)
        follows = span and (here.file, here.start_byte) == (end.file, end.end_byte)
        if span and not (follows and here.end_byte - start.start_byte <= SPAN_BYTES):
            yield span
            span = []
        start, end = start if span else here, here
        span.append(tensor)
    if span:
        yield span


def digest_span(source: Source, span: list[Tensor], count: Callable[[int], None]) -> dict[str, TensorDigest]:
    """Read tensors that lie one after another; call `count` with how many bytes are done; return digests by name."""
    first, last = place_of(span[0]), place_of(span[-1])
    chunks = source.read(first.file, first.start_byte, last.end_byte)
    digests = {}
    rest = memoryview(b"")
    for tensor in span:
        digest, missing = new_tensor_hash(), tensor.bytes
        while missing:
            rest = rest or memoryview(next(chunks))
            used = min(missing, len(rest))
            digest.update(rest[:used])
            count(used)
            missing, rest = missing - used, rest[used:]
        digests[tensor.name] = TensorDigest(tensor.dtype, tensor.shape, digest.hexdigest())
    return digests


def _digest_file(source: Files, file: str, size: int, lanes: Lanes) -> str:
    sha256 = hashlib.sha256()
    for chunk in source.read(file, 0, size):
        sha256.update(chunk)
        lanes.count(len(chunk))
    return sha256.hexdigest()


def _digest_ranges(source: Source, file: FileEntry, ranges: Iterable[tuple[int, int]], lanes: Lanes) -> WholeFile:
    sha256, position = hashlib.sha256(), 0
    waiting, hashes = sorted(ranges, reverse=True), dict[tuple[int, int], str]()
    begun: list[tuple[int, int, Any]] = []
    for chunk in source.read(file.path, 0, file.bytes):
        sha256.update(chunk)
        view, after = memoryview(chunk), position + len(chunk)
        while waiting and waiting[-1][0] < after:
            begun.append((*waiting.pop(), new_tensor_hash()))
        for start, end, digest in begun:
            digest.update(view[max(start - position, 0) : end - position])
            if end <= after:
                hashes[start, end] = digest.hexdigest()
        begun, position = [entry for entry in begun if entry[1] > after], after
        lanes.count(len(chunk))
    return WholeFile(sha256.hexdigest(), hashes)
