"""Verify a result before it is published. Read it back from a Hub while other shards are still being uploaded."""

from collections.abc import Generator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

from sharding.checkpoint.loadable import loadable_files
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import ShardingError
from sharding.core.events import Progress, ShardFinished
from sharding.core.meter import Meter
from sharding.core.protocols import Destination, Inputs, Source
from sharding.core.threads import readers
from sharding.core.values import FileEntry, Plan, Shard, ShardRecord, Tensor, TensorDigest
from sharding.core.verification import Evidence, Mismatch, Verification
from sharding.formats.file_formats import format_of, places_of
from sharding.formats.names import SAFETENSORS
from sharding.recipes.stored import are_stored
from sharding.transfer.lanes import progress_of_part, relayed
from sharding.transfer.stream import Prepared, Transfer, expected_digests, move_shards
from sharding.verify.digests import Reader, by_file, check_structure
from sharding.verify.digests import compare as compare_digests
from sharding.verify.stated import Proof, digest_as_stored, stated_files
from sharding.verify.verify import Side

Work = Generator[Progress, None, tuple[dict[str, TensorDigest], list[Mismatch]]]


@dataclass(frozen=True, slots=True)
class ReadingBack:
    """A reading that began while shards arrived. `work` returns digests, and what is not as stated."""

    source: Source
    work: Work

    def is_of(self, staged: Source) -> bool:
        """Return whether what it reads is still in `staged`."""
        arrived = {file.path: (file.sha256, file.xet_hash) for file in self.source.files}
        return arrived == {file.path: (file.sha256, file.xet_hash) for file in staged.files if file.path in arrived}


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
    moving: Transfer, prepared: Prepared, origin: Inputs, arriving: Source | None, stack: ExitStack
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadingBack | None]]:
    """Yield what `moving` yields; return its records, and a reading of what is `arriving` until `stack` ends."""
    back, is_begun = None, False
    if arriving:
        files = _in_order_of_source(prepared, origin)
        read = prepared.checkpoint, origin.sources[0], files, arriving, _placed(prepared.plan)
        work = digest_as_stored(*read, Reader(partial(move_shards, ahead=True), by_file))
        back = ReadingBack(arriving, stack.enter_context(closing(work)))

    def begin(event: Progress | ShardFinished) -> Progress | ShardFinished:
        nonlocal is_begun
        if back and not is_begun and isinstance(event, Progress):
            is_begun = bool(next(back.work))
        return event

    records = yield from relayed(moving, begin)
    return records, back


def _placed(plan: Plan) -> list[Tensor]:
    return [tensor for shard in plan.shards for tensor in places_of(plan, shard)]


def _wrong_headers(staged: Source, plan: Plan) -> list[Mismatch]:
    def is_planned(shard: Shard) -> bool:
        header = next(iter(format_of(plan).pieces(plan, shard)))
        return isinstance(header, bytes) and b"".join(staged.read(shard.file, 0, len(header))) == header

    with readers(staged.ranges_at_once) as pool:
        checked = zip(plan.shards, pool.map(is_planned, plan.shards), strict=True)
        return [
            Mismatch(shard.file, "its header is not the one that was planned") for shard, same in checked if not same
        ]


def _gone_on(back: ReadingBack, afresh: Work) -> Work:
    """Go on with `back`. If a read of it fails, read all `afresh`: a Hub may show only what is committed."""
    try:
        return (yield from back.work)
    except (ShardingError, CancelledError):
        pass
    return (yield from afresh)


def _in_order_of_source(prepared: Prepared, origin: Inputs) -> list[FileEntry]:
    """Return the source's files if the result is read in their order, [] if it is read in its own order."""
    plan, checkpoint = prepared.plan, prepared.checkpoint
    is_all = prepared.sources == origin.sources and are_stored(plan.tensors) and plan.options.rank is None
    is_all = is_all and {tensor.name for tensor in plan.tensors} == {tensor.name for tensor in checkpoint.tensors}
    return stated_files(origin.sources[0].files, checkpoint) if is_all else []


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
    staged, originals = target.open_staged(records), _in_order_of_source(prepared, origin)
    paths = [(shard, path) for shard in plan.shards if (path := staged.path(shard.file))]
    problems = [problem for shard, path in paths for problem in check_structure(path, plan, shard)]
    problems = problems or _wrong_headers(staged, plan)
    proof = Proof(origin, prepared.checkpoint, prepared.sources, originals)
    digests: dict[str, TensorDigest] = {}
    unread = 0 if problems else plan.total_bytes
    if not problems:
        afresh = digest_as_stored(prepared.checkpoint, origin.sources[0], originals, staged, _placed(plan), reader)
        reading = _gone_on(back, afresh) if back and back.is_of(staged) else afresh
        digests, problems = yield from progress_of_part(reading, 0, unread + proof.reread_bytes)
        problems.extend(compare_digests(expected_digests(plan.shards, records), digests))
    proving = proof.prove((read for record in records.values() for read in record.reads), reader)
    problems += yield from progress_of_part(proving, unread, unread + proof.reread_bytes)
    is_loaded = proof.unstated and not prepared.noted and prepared.is_stated
    evidence = Evidence(
        "folder" if paths else "hub",
        structure=bool(paths) and plan.format == "safetensors",
        rebuilt=proof.rebuilt,
        reread=proof.reread,
        weights=proof.weights,
        loaded=is_loaded,
        kept=0 if origin.ref.states_hashes else len(kept),
    )
    found = len(digests), plan.total_bytes, meter.seconds - started, evidence
    unstated = proof.unstated and not is_loaded
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
