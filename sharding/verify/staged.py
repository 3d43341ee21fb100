"""Verify a result before it is published. Read it back from a Hub while other shards are still being uploaded."""

from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import closing
from dataclasses import replace
from functools import partial
from threading import Event

from sharding.checkpoint.loadable import loadable_files
from sharding.checkpoint.read import read_checkpoint
from sharding.checkpoint.readers.safetensors import read_headers
from sharding.core.errors import ShardingError
from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import XET_LEAST_BYTES
from sharding.core.meter import Meter
from sharding.core.protocols import Destination, Inputs, Source
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Plan, ShardRecord, Tensor, TensorDigest
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.formats.file_formats import format_of
from sharding.formats.names import SAFETENSORS
from sharding.recipes.stored import are_stored
from sharding.transfer.lanes import progress_of_part
from sharding.transfer.stream import Prepared, Transfer, expected_digests
from sharding.verify.digests import Reader, ThisMachine, check_structure, digest_span, spans
from sharding.verify.digests import compare as compare_digests
from sharding.verify.stated import digest_as_stored, prove_reads, read_from_hub, stated_files, stated_of
from sharding.verify.verify import Side

ReadBack = dict[Tensor, TensorDigest]  # Tensors of the result, each with the digest of its bytes.


def check_kept(
    target: Destination, prepared: Prepared, plan_id: str, origin: Inputs, reader: Reader, *, always: bool = False
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Return the shards of an earlier run that have not changed, and that `origin` still gives; yield progress.

    A commit of a Hub never changes, so only if it is `always` to be read again, or is a folder, it is: two states may
    have files of the same names, sizes and times.
    """
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
    moving: Transfer, prepared: Prepared, origin: Inputs, target: Destination, reader: Reader
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Do as `read_back_meanwhile` if this machine will later read one shard after another; else only run `moving`."""
    if not isinstance(reader, ThisMachine) or _in_order_of_source(prepared, origin):
        return (yield from moving), {}
    return (yield from read_back_meanwhile(moving, prepared.plan, target))


def read_back_meanwhile(
    moving: Transfer, plan: Plan, target: Destination
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Yield what `moving` yields; return its records, and the digests of the tensors that were read back meanwhile.

    These may be some or none: the job does not wait for them, nor for a read that fails. The others are read later.
    """
    shards = {shard.file: shard for shard in plan.shards}
    over = Event()
    reading: list[Future[ReadBack]] = []

    def go_on(_: int) -> None:
        if over.is_set():
            raise CancelledError

    def read(source: Source, span: list[Tensor]) -> ReadBack:
        go_on(0)
        try:
            digests = digest_span(source, span, go_on)
        except ShardingError:
            over.set()  # a Hub that shows no file before the commit will not show the others either
            raise
        return {tensor: digests[tensor.name] for tensor in span}

    with readers(1) as pool, closing(moving):
        try:
            while True:
                try:
                    event = next(moving)
                except StopIteration as end:
                    records: dict[str, ShardRecord] = end.value
                    break
                if isinstance(event, ShardFinished) and not event.kept and (source := target.open_finished(event.file)):
                    for span in spans(format_of(plan).places(plan, shards[event.file], event.bytes)):
                        # Shorter spans go over plain HTTP, which only knows committed files.
                        if sum(tensor.bytes for tensor in span) >= XET_LEAST_BYTES:
                            reading.append(pool.submit(read, source, span))
                yield event
        finally:
            over.set()
    done = [future for future in reading if future.done() and not future.cancelled() and not future.exception()]
    return records, {tensor: digest for future in done for tensor, digest in future.result().items()}


def _in_order_of_source(prepared: Prepared, origin: Inputs) -> list[FileEntry]:
    """Return the source's files if the result is read in their order, [] if it is read in its own order."""
    plan = prepared.plan
    is_all = prepared.sources == origin.sources and are_stored(plan.tensors) and plan.options.rank is None
    return stated_files(origin.sources[0].files, prepared.checkpoint) if is_all else []


def verify_staged(
    prepared: Prepared,
    origin: Inputs,
    records: Mapping[str, ShardRecord],
    read: ReadBack,
    target: Destination,
    meter: Meter,
    reader: Reader,
    kept: Mapping[str, ShardRecord],
) -> Generator[Progress, None, Verification]:
    """Let `reader` read the result again, and compare it with the digests in `records`, taken when it was made.

    Yields progress. `read` are the tensors that were read back already, `kept` the shards of an earlier run. If
    `origin` states hashes of its files, the bytes that were read are checked against them too: see `verify.stated`.
    """
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
    if not problems:
        headers = read_headers(staged, [FileEntry(record.file, record.bytes) for record in records.values()])
        tensors = [tensor for header in headers for tensor in header.tensors]
        if sorted(tensor.name for tensor in tensors) != sorted(tensor.name for tensor in prepared.checkpoint.tensors):
            originals = []  # the comparison below names the missing tensors
        if originals:
            reading = digest_as_stored(prepared.checkpoint, origin.sources[0], originals, staged, tensors, reader)
            digests, problems = yield from reading
        else:
            listed = {file.path: file.sha256 for file in staged.files}
            as_made = {file for file, record in records.items() if listed.get(file) == record.sha256}
            known = {one.name: read[one] for one in tensors if one in read and one.file in as_made}
            unknown = [tensor for tensor in tensors if tensor.name not in known]
            unread = sum(tensor.bytes for tensor in unknown)
            digests = yield from progress_of_part(reader.digest_tensors(staged, unknown), 0, unread + again)
            digests |= known
        problems.extend(compare_digests(expected_digests(plan.shards, records), digests))
    on_disk = any(staged.path(file) for file in records)
    evidence = Evidence("folder" if on_disk else "hub", structure=on_disk, rebuilt=len(originals))
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
