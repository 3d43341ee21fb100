"""Verify a result before it is published. Read it back from a Hub while other shards are still being uploaded."""

from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from sharding.checkpoint.loadable import loadable_files
from sharding.checkpoint.read import read_checkpoint
from sharding.checkpoint.readers.safetensors import read_headers
from sharding.core.errors import ShardingError
from sharding.core.events import Progress, ShardFinished
from sharding.core.meter import Meter
from sharding.core.protocols import Destination, Inputs, Source
from sharding.core.values import FileEntry, Plan, ShardRecord, Tensor, TensorDigest
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.formats.file_formats import format_of, places_of
from sharding.formats.names import SAFETENSORS
from sharding.recipes.stored import are_stored
from sharding.transfer.lanes import progress_of_part, relayed
from sharding.transfer.stream import Prepared, Transfer, expected_digests
from sharding.verify.digests import Reader, ReaderAhead, ThisMachine, check_structure
from sharding.verify.digests import compare as compare_digests
from sharding.verify.stated import digest_as_stored, prove_reads, read_from_hub, stated_files, stated_of
from sharding.verify.verify import Side

Work = Generator[Progress, None, tuple[dict[str, TensorDigest], list[Mismatch]]]


@dataclass(frozen=True, slots=True)
class ReadingBack:
    """A reading of `tensors` that began while shards arrived. `work` returns digests, and what is not as stated."""

    source: Source
    tensors: list[Tensor]
    work: Work

    def is_of(self, staged: Source, tensors: list[Tensor]) -> bool:
        """Return whether it reads what the files in `staged` hold: these `tensors`, at these places."""
        arrived = {file.path: (file.sha256, file.xet_hash) for file in self.source.files}
        listed = {file.path: (file.sha256, file.xet_hash) for file in staged.files if file.path in arrived}
        return self.tensors == tensors and arrived == listed


def check_kept(
    target: Destination, prepared: Prepared, plan_id: str, origin: Inputs, reader: Reader, *, always: bool = False
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Return the shards of an earlier run that have not changed, and that `origin` still gives; yield progress. A
    commit never changes, so it is read again only if `always`. Two states of a folder may look the same."""
    plan, records = prepared.plan, target.done(plan_id)
    # Check the records: everybody who can write to the destination can also write records.
    done = {
        shard.file: record
        for shard in plan.shards
        if (record := records.get(shard.file))
        and record.tensor_blake3.keys() == {tensor.name for tensor in shard.tensors}
        # A plan has the same bytes whether it allows overflow or not.
        and (plan.options.allow_overflow or not record.overflowed)
    }
    if not done:
        return {}
    staged = target.open_staged(done)
    known = {file.path: file.sha256 for file in staged.files}
    unknown = [FileEntry(file, record.bytes) for file, record in done.items() if known.get(file) is None]
    whole = yield from reader.digest_files([staged], unknown)
    kept = {file: record for file, record in done.items() if (known.get(file) or whole[file].sha256) == record.sha256}
    if kept and (always or not origin.ref.states_hashes):
        shards = [shard for shard in plan.shards if shard.file in kept]
        fresh = yield from reader.digest_shards(shards, partial(format_of(plan).pieces, plan), origin.sources, "check")
        same = (file for file, one in kept.items() if replace(one, reads=()) == replace(fresh[file], reads=()))
        kept = {file: replace(kept[file], samples=fresh[file].samples) for file in same}
    if kept and prepared.noted:  # keep the reads of the other records: shards that stay may depend on them too
        file, first = next(iter(kept.items()))
        lost = [read for other, record in records.items() if other not in kept for read in record.reads]
        kept[file] = replace(first, reads=(*first.reads, *lost))
    return kept


def reading_back(
    moving: Transfer,
    prepared: Prepared,
    origin: Inputs,
    kept: Iterable[str],
    target: Destination,
    reader: Reader,
    stack: ExitStack,
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadingBack | None]]:
    """Yield what `moving` yields; return its records, and a reading that goes on until `stack` ends, if one can."""
    plan, back, is_begun = prepared.plan, None, False
    arriving = target.open_arriving(kept) if isinstance(reader, ThisMachine) else None
    if arriving:
        tensors = [tensor for shard in plan.shards for tensor in places_of(plan, shard)]
        read = prepared.checkpoint, origin.sources[0], _in_order_of_source(prepared, origin)
        work = digest_as_stored(*read, arriving, tensors, ReaderAhead())
        back = ReadingBack(arriving, tensors, stack.enter_context(closing(work)))

    def begin(event: Progress | ShardFinished) -> Progress | ShardFinished:
        nonlocal is_begun
        if back and not is_begun and isinstance(event, Progress):
            is_begun = bool(next(back.work))
        return event

    records = yield from relayed(moving, begin)
    return records, back


def _tensors_in(staged: Source, plan: Plan, records: Mapping[str, ShardRecord]) -> tuple[list[Tensor], list[Mismatch]]:
    """Return the tensors that the headers of the result name, and what is wrong with headers."""
    if plan.format == "safetensors":
        headers = read_headers(staged, [FileEntry(record.file, record.bytes) for record in records.values()])
        return [tensor for header in headers for tensor in header.tensors], []
    tensors, wrong = list[Tensor](), list[Mismatch]()
    for shard in plan.shards:
        header = next(iter(format_of(plan).pieces(plan, shard)))
        if isinstance(header, bytes) and b"".join(staged.read(shard.file, 0, len(header))) != header:
            wrong.append(Mismatch(shard.file, "its header is not the one that was planned"))
        tensors += places_of(plan, shard)
    return tensors, wrong


def _gone_on(back: ReadingBack, afresh: Work) -> Work:
    """Go on with `back`. If a read of it fails, read all `afresh`: a Hub may show only what is committed."""
    try:
        return (yield from back.work)
    except (ShardingError, CancelledError):
        pass
    return (yield from afresh)


def _in_order_of_source(prepared: Prepared, origin: Inputs) -> list[FileEntry]:
    """Return the source's files if the result is read in their order, [] if it is read in its own order."""
    plan = prepared.plan
    is_all = prepared.sources == origin.sources and are_stored(plan.tensors) and plan.options.rank is None
    return stated_files(origin.sources[0].files, prepared.checkpoint) if is_all else []


def verify_staged(
    prepared: Prepared,
    origin: Inputs,
    records: Mapping[str, ShardRecord],
    back: ReadingBack | None,
    target: Destination,
    meter: Meter,
    reader: Reader,
    kept: Mapping[str, ShardRecord],
) -> Generator[Progress, None, Verification]:
    """Let `reader` read the result again, and compare it with the digests in `records`. `back` has begun to read it,
    `kept` are of an earlier run. Reads of `origin` are checked too if it states hashes: see `verify.stated`."""
    started, plan = meter.seconds, prepared.plan
    staged = target.open_staged(records)
    problems: list[Mismatch] = []
    for shard in plan.shards:
        if path := staged.path(shard.file):
            problems.extend(check_structure(path, plan, shard))
    digests: dict[str, TensorDigest] = {}
    originals = _in_order_of_source(prepared, origin)
    stated = stated_of(origin, prepared.checkpoint) if prepared.noted else []
    again, unread = sum(file.bytes for file in stated), 0
    tensors = list[Tensor]()
    if not problems:
        tensors, problems = _tensors_in(staged, plan, records)
    if not problems:
        if sorted(tensor.name for tensor in tensors) != sorted(tensor.name for tensor in prepared.checkpoint.tensors):
            originals = []  # the comparison below names the missing tensors
        unread = sum(tensor.bytes for tensor in tensors)
        afresh = digest_as_stored(prepared.checkpoint, origin.sources[0], originals, staged, tensors, reader)
        reading = _gone_on(back, afresh) if back and back.is_of(staged, tensors) else afresh
        digests, problems = yield from progress_of_part(reading, 0, unread + again)
        problems.extend(compare_digests(expected_digests(plan.shards, records), digests))
    on_disk = any(staged.path(file) for file in records)
    evidence = Evidence(
        "folder" if on_disk else "hub", structure=on_disk and plan.format == "safetensors", rebuilt=len(originals)
    )
    weights = read_from_hub(origin, prepared.checkpoint)
    unstated = bool(weights) and not originals
    if not originals and prepared.noted:
        weights = weights or stated
        reads = [read for record in records.values() for read in record.reads]
        reads += [read for noted in prepared.noted for read in noted.take()]
        proving = prove_reads(origin.sources, stated, reads, reader)
        wrong = yield from progress_of_part(proving, unread, unread + again)
        problems += wrong
        unstated, evidence = len(stated) < len(weights), replace(evidence, reread=len(stated), weights=len(weights))
    elif unstated and prepared.is_stated:
        unstated, evidence = False, replace(evidence, loaded=True)
    if not origin.ref.states_hashes:
        evidence = replace(evidence, kept=len(kept))
    found = len(digests), plan.total_bytes, meter.seconds - started, evidence
    return Verification(*found, tuple(problems), plan.made, unstated, prepared.checkpoint.unreached)


def compare_with_original(
    verification: Verification, plan: Plan, records: Mapping[str, ShardRecord], origin: Inputs
) -> Generator[Progress, None, Verification]:
    """Return `verification` with the differences between the original, if it is safetensors, and the copy."""
    if not any(file.path.endswith(SAFETENSORS) for file in loadable_files(origin)):
        return verification
    digests, side = expected_digests(plan.shards, records), Side(origin, read_checkpoint(origin))
    yield from side.read()
    kept = {digest.blake3 for digest in digests.values()}
    wanted = {name: one for name, one in side.digests.items() if name in digests or one.blake3 not in kept}
    before, reread, weights = verification.evidence, side.reread, side.weights
    evidence = replace(before, original=True, rebuilt=side.rebuilt, reread=reread, weights=weights)
    mismatches = (*verification.mismatches, *compare_digests(wanted, digests), *side.wrong)
    return replace(verification, evidence=evidence, mismatches=mismatches, unstated=side.unstated)
