"""Check a staged result by the hashes that its Hub states, and by a sample of its bytes. The rest is not read again."""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from secrets import randbelow

from sharding.core.events import Progress
from sharding.core.limits import MAX_SAMPLED_BYTES, RANGES_AT_ONCE
from sharding.core.meter import Meter
from sharding.core.protocols import Destination, Source
from sharding.core.threads import readers
from sharding.core.values import BytesRead, FileEntry, Plan, Shard, ShardRecord, Tensor
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.formats.file_formats import format_of
from sharding.recipes.stored import Stored
from sharding.transfer.stream import Prepared, only_tensors
from sharding.verify.digests import ThisMachine, shard_of

_ONE_IN = 100  # At most one byte in so many is read.
_RANGES = 8  # Of each file: the first and the last bytes of its weights, and six drawn at random.


def sampling(plan: Plan) -> Plan:
    """Return `plan` with the ranges of each file that are hashed while it is sent, to read them again later.

    They are in proportion to the file. Nobody can know them before: all but two are drawn, each from its own stretch.
    """
    budget = min(plan.total_bytes // _ONE_IN, MAX_SAMPLED_BYTES)

    def drawn(shard: Shard) -> Iterator[tuple[int, int]]:
        start, stretch = len(_header(plan, shard)), shard.bytes // _RANGES
        if size := budget * shard.bytes // max(plan.total_bytes, 1) // _RANGES:
            yield start, start + size
            for number in range(1, _RANGES - 1):
                at = start + number * stretch + randbelow(stretch - size + 1)
                yield at, at + size
            yield start + shard.bytes - size, start + shard.bytes

    return replace(plan, shards=tuple(replace(shard, sampled=tuple(drawn(shard))) for shard in plan.shards))


def verify_stated(
    prepared: Prepared,
    records: Mapping[str, ShardRecord],
    target: Destination,
    meter: Meter,
    kept: Mapping[str, ShardRecord],
) -> Generator[Progress, None, Verification]:
    """Compare what was sent, by its `records`, with what the Hub of `target` states, and with a sample of its bytes.

    Yields progress. Headers and indexes are read whole. What was read of the source is not checked.
    """
    started, plan = meter.seconds, prepared.plan
    indexes = format_of(plan).beside(plan)
    target.stage(indexes)
    staged = target.open_staged(records)
    staged.join_gap_bytes = 0  # what lies between two ranges is not read
    listed = {file.path: file for file in staged.files}
    problems = [
        problem for record in records.values() if (problem := _other_than_sent(listed.get(record.file), record))
    ]
    if not problems:
        headers = {shard.file: _header(plan, shard) for shard in plan.shards}
        sent = {**headers, **indexes}
        with readers(RANGES_AT_ONCE) as pool:
            read = pool.map(lambda file: b"".join(staged.read(file, 0, len(sent[file]))), sent)
            wrong = [file for file, content in zip(sent, read, strict=True) if content != sent[file]]
        problems += [
            Mismatch(file, f"its {'header' if file in headers else 'content'} is not as sent") for file in wrong
        ]
        problems += yield from _read_samples(staged, records)
    sampled = sum(one.end_byte - one.start_byte for record in records.values() for one in record.samples)
    has_xet = all(record.xet_hash for record in records.values())
    evidence = Evidence("stated", sampled=sampled, xet=has_xet, kept=len(kept))
    found = len(plan.tensors), plan.total_bytes, meter.seconds - started, evidence
    return Verification(*found, tuple(problems), plan.made, unreached=prepared.checkpoint.unreached)


def _header(plan: Plan, shard: Shard) -> bytes:
    """Return the bytes of a file before its tensors."""
    first = next(iter(format_of(plan).pieces(plan, shard)))
    return first if isinstance(first, bytes) else b""


def _other_than_sent(stated: FileEntry | None, record: ShardRecord) -> Mismatch | None:
    """Return where a file of the staged commit is not the one that was sent, None if it is."""
    if stated is None:
        return Mismatch(record.file, "it is missing")
    if stated.bytes != record.bytes:
        return Mismatch(record.file, "the Hub states another size than that of the file that was sent")
    if stated.sha256 != record.sha256:
        return Mismatch(record.file, "the Hub does not state the SHA-256 of the file that was sent")
    if record.xet_hash and stated.xet_hash != record.xet_hash:
        return Mismatch(record.file, "the Hub does not state the Xet hash of the file that was sent")
    return None


def _read_samples(staged: Source, records: Mapping[str, ShardRecord]) -> Generator[Progress, None, list[Mismatch]]:
    """Read the samples again; yield progress; return which of them are not what was sent. Raises SourceError."""

    def tensor(one: BytesRead) -> Tensor:
        size, place = one.end_byte - one.start_byte, Stored(0, one.file, one.start_byte, one.end_byte)
        return Tensor(f"{one.start_byte}-{one.end_byte}", "U8", (size,), place)

    ranges = {record.file: {tensor(one): one.blake3 for one in record.samples} for record in records.values()}
    shards = [shard_of(file, list(sampled)) for file, sampled in ranges.items() if sampled]
    read = yield from ThisMachine().digest_shards(shards, only_tensors, [staged], "sample")
    return [
        Mismatch(file, f"its bytes {one.name} are not as sent")
        for file, sampled in ranges.items()
        for one, blake3 in sampled.items()
        if read[file].tensor_blake3[one.name] != blake3
    ]
