"""Check a staged result by the hashes that its Hub states, and by a sample of its bytes. The rest is not read again."""

from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from dataclasses import replace
from secrets import randbelow

from blake3 import blake3

from sharding.core.errors import ShardingError
from sharding.core.limits import MAX_SAMPLED_BYTES
from sharding.core.meter import Meter
from sharding.core.protocols import Destination, Source
from sharding.core.threads import readers
from sharding.core.values import BytesRead, Plan, Shard, ShardRecord
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.formats.file_formats import format_of
from sharding.transfer.stream import Prepared

_ONE_IN = 100  # At most one byte of weights in so many is read.
Ahead = Mapping[tuple[str, int, int], Future[str]]
"""The BLAKE3 of ranges of files that are being read, by file, first and last byte."""
_RANGES = 8  # Of each file: the first and the last bytes of its weights, and six drawn at random.


def sampling(plan: Plan) -> Plan:
    """Return `plan` with the ranges of each file that are hashed while it is sent, to read them again later. The first
    is its header. Each file has its share of the others, and nobody knows before where most of them are."""
    budget = min(plan.total_bytes // _ONE_IN, MAX_SAMPLED_BYTES)

    def drawn(shard: Shard) -> Iterator[tuple[int, int]]:
        pieces = format_of(plan).pieces(plan, shard)
        start, *others = (len(piece) if isinstance(piece, bytes) else piece.bytes for piece in pieces)
        end, stretch = start + sum(others), sum(others) // _RANGES  # with what a format puts between tensors
        yield 0, start
        if size := budget * shard.bytes // max(plan.total_bytes, 1) // _RANGES:
            ats = [start + number * stretch + randbelow(stretch - size + 1) for number in range(1, _RANGES - 1)]
            yield from ((at, at + size) for at in (start, *ats, end - size))

    return replace(plan, shards=tuple(replace(shard, sampled=tuple(drawn(shard))) for shard in plan.shards))


def sampled_ahead(plan: Plan, arriving: Source | None, stack: ExitStack) -> Ahead:
    """Begin to read the samples of `plan` from what is `arriving`, if anything. The end of `stack` ends it."""
    if not arriving:
        return {}
    pool = stack.enter_context(readers(_RANGES))
    ranges = ((shard.file, start, end) for shard in plan.shards for start, end in shard.sampled)
    return {one: pool.submit(_digest, arriving, *one) for one in ranges}


def _digest(source: Source, file: str, start_byte: int, end_byte: int) -> str:
    digest = blake3()
    for chunk in source.read(file, start_byte, end_byte):
        digest.update(chunk)
    return digest.hexdigest()


def verify_stated(
    prepared: Prepared,
    records: Mapping[str, ShardRecord],
    ahead: Ahead,
    target: Destination,
    meter: Meter,
    kept: int,
) -> Verification:
    """Compare `records` of what was sent with what the Hub of `target` states, and with a sample that it sends."""
    started, plan = meter.seconds, prepared.plan
    sent = [*records.values(), *(_staged(target, *index) for index in format_of(plan).beside(plan).items())]
    staged = target.open_staged(record.file for record in sent)
    listed = {(file.path, file.bytes, file.sha256): file for file in staged.files}
    stated = [listed.get((record.file, record.bytes, record.sha256)) for record in sent]
    problems = [
        Mismatch(record.file, "the Hub does not state the size and hashes of what was sent")
        for record, file in zip(sent, stated, strict=True)
        if file is None or record.xet_hash not in (None, file.xet_hash)
    ]
    samples = [one for record in sent for one in record.samples] if not problems else []

    def is_same(one: BytesRead) -> bool:
        place = one.file, one.start_byte, one.end_byte
        if place in ahead:
            with suppress(ShardingError, CancelledError):  # a Hub may show only what is committed
                return ahead[place].result() == one.blake3
        return _digest(staged, *place) == one.blake3

    with readers(_RANGES) as pool:
        for one, same in zip(samples, pool.map(is_same, samples), strict=True):
            if not same:
                problems.append(Mismatch(one.file, f"its bytes {one.start_byte} to {one.end_byte} are not as sent"))
    sampled = sum(one.end_byte - one.start_byte for one in samples if one.start_byte)  # weights alone
    has_xet = not kept and all(record.xet_hash for record in sent)  # in a record of an earlier run, it is only a claim
    evidence = Evidence("stated", sampled=sampled, xet=has_xet, kept=kept)
    found = len(plan.tensors), plan.total_bytes, meter.seconds - started, evidence
    return Verification(*found, tuple(problems), plan.made, unreached=prepared.checkpoint.unreached)


def _staged(target: Destination, path: str, text: bytes) -> ShardRecord:
    """Keep an index with the finished shards, and return its record, with all of it as its sample."""
    writer = target.open_shard(path)
    writer.write(text)
    samples = (BytesRead(path, 0, len(text), blake3(text).hexdigest()),)
    record = ShardRecord(path, len(text), writer.finish(), {}, xet_hash=writer.xet_hash, samples=samples)
    target.note(record)
    return record
