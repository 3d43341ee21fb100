"""Prove a result before it is published: what was kept, what was written, what it was made of."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from functools import partial

from sharding.checkpoint.loadable import loadable_files
from sharding.checkpoint.read import read_checkpoint, read_headers
from sharding.core.destination import Destination
from sharding.core.events import Progress, ShardFinished
from sharding.core.meter import Meter
from sharding.core.repo import Repo
from sharding.core.text import count
from sharding.core.values import FileEntry, Mismatch, Plan, ShardRecord, TensorDigest, Verification
from sharding.formats.safetensors_file import shard_header
from sharding.recipes.stored import are_stored
from sharding.transfer.prepare import Prepared
from sharding.transfer.stream import Transfer
from sharding.verify.digests import (
    Reader,
    ThisMachine,
    check_structure,
    expected_digests,
)
from sharding.verify.digests import compare as compare_digests
from sharding.verify.read_back import ReadBack, read_back_meanwhile
from sharding.verify.sides import Side, stated_of
from sharding.verify.source_hashes import digest_as_stored, stated_files
from sharding.verify.source_reads import prove_reads

_UNSTATED = "; what was read is not compared with a hash that the Hub states"


def check_kept(
    target: Destination, prepared: Prepared, plan_id: str, origin: Repo, reader: Reader
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Return which shards of an earlier run are still as they were finished, and as `origin` gives them.

    A commit of a Hub holds what it held then. Of a folder that is known only by reading it again: two states of it may
    have files of the same names, sizes and times.
    """
    plan = prepared.plan
    tensors = {shard.file: {tensor.name for tensor in shard.tensors} for shard in plan.shards}
    # Who may write to the destination may have put down records of anything.
    records = target.done(plan_id)
    done = {
        file: record
        for file, record in records.items()
        if file in tensors
        and record.tensor_blake3.keys() == tensors[file]
        # The bytes of a plan are the same whether it allows that or not.
        and (plan.options.allow_overflow or not record.overflowed)
    }
    if not done:
        return {}
    staged = target.open_staged(done)
    known = {file.path: file.sha256 for file in staged.files}
    unknown = [FileEntry(file, record.bytes) for file, record in done.items() if known.get(file) is None]
    whole = yield from reader.digest_files([staged], unknown)
    kept = {file: record for file, record in done.items() if (known.get(file) or whole[file].sha256) == record.sha256}
    if origin.ref.kind == "folder" and kept:
        shards = [shard for shard in plan.shards if shard.file in kept]
        fresh = yield from reader.digest_shards(shards, partial(shard_header, plan), origin.sources, "check")
        kept = {file: record for file, record in kept.items() if _is_same(record, fresh[file])}
    if kept and prepared.noted:  # what those that go were made of, those that stay may be made of too
        file, first = next(iter(kept.items()))
        lost = [read for other, record in records.items() if other not in kept for read in record.reads]
        kept[file] = replace(first, reads=(*first.reads, *lost))
    return kept


def _is_same(record: ShardRecord, other: ShardRecord) -> bool:
    return replace(record, reads=()) == replace(other, reads=())


def reading_back(
    moving: Transfer, prepared: Prepared, origin: Repo, target: Destination, reader: Reader
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Do as `read_back_meanwhile` where this machine will read one shard after another at the end; else just move."""
    if not isinstance(reader, ThisMachine) or _in_order_of_source(prepared, origin):
        return (yield from moving), {}
    return (yield from read_back_meanwhile(moving, prepared.plan, target))


def _in_order_of_source(prepared: Prepared, origin: Repo) -> list[FileEntry]:
    """Return the files of the source in whose order the result is read, [] where it is in its own."""
    is_all = (
        prepared.sources == origin.sources and are_stored(prepared.plan.tensors) and prepared.plan.options.rank is None
    )
    return stated_files(origin.sources[0].files, prepared.checkpoint) if is_all else []


def verify_staged(
    prepared: Prepared,
    origin: Repo,
    records: Mapping[str, ShardRecord],
    read: ReadBack,
    target: Destination,
    meter: Meter,
    reader: Reader,
    kept: Mapping[str, ShardRecord],
) -> Generator[Progress, None, Verification]:
    """Have `reader` read the result again, before it is published; compare it with what passed on the way to it.

    `read` is what was read back already, `kept` the shards that an earlier run had finished.

    Where `origin` states the SHA-256 of its files and its bytes were moved as they are, the result is read in the
    order in which these files hold its tensors: then it has to give these very hashes, which nothing does that was
    read wrongly, now or in an earlier run. Where its bytes were made into others, its files are read whole once more:
    then they have to give these hashes, and in them what was read before.
    """
    started, plan = meter.seconds, prepared.plan
    staged = target.open_staged(records)
    problems: list[Mismatch] = []
    for shard in plan.shards:
        if path := staged.path(shard.file):
            problems.extend(check_structure(path, shard, plan.component(shard).metadata))
    digests: dict[str, TensorDigest] = {}
    originals = _in_order_of_source(prepared, origin)
    if not problems:
        headers = read_headers(staged, [FileEntry(record.file, record.bytes) for record in records.values()])
        tensors = [tensor for header in headers for tensor in header.tensors]
        if sorted(tensor.name for tensor in tensors) != sorted(tensor.name for tensor in prepared.checkpoint.tensors):
            originals = []  # the comparison below says what is missing
        if originals:
            source = prepared.checkpoint
            digests, wrong = yield from digest_as_stored(source, origin.sources[0], originals, staged, tensors, reader)
            problems.extend(wrong)
        else:
            listed = {file.path: file.sha256 for file in staged.files}
            known = {
                tensor.name: read[tensor]
                for tensor in tensors
                if tensor in read and listed[tensor.file] == records[tensor.file].sha256
            }
            unknown = [tensor for tensor in tensors if tensor.name not in known]
            digests = yield from reader.digest_tensors(staged, unknown)
            digests |= known
        problems.extend(compare_digests(expected_digests(plan.shards, records), digests))
    on_disk = any(staged.path(file) for file in records)
    structure = "structure by safetensors, " if on_disk else ""
    where = "from the folder, through the page cache" if on_disk else "from the Hub"
    dtype = plan.options.dtype
    as_cast = "" if dtype == "keep" else ", cast with tensor.to(dtype)"
    if plan.dequantized:
        as_cast = f" as it was computed of its quantized numbers ({plan.dequantized}){as_cast}"
    method = (
        f"read again {where}: {structure}headers and the BLAKE3 of every tensor compared with the source's{as_cast}"
    )
    if originals:
        have = "should have" if problems else "have"
        method += f"; put together again, {len(originals)} of its files {have} the SHA-256 that the Hub states"
    unstated = origin.ref.kind == "hub" and not originals
    if unstated and prepared.noted:
        stated, weights = stated_of(origin, prepared.checkpoint), prepared.checkpoint.weight_files
        reads = [read for record in records.values() for read in record.reads]
        reads += [read for noted in prepared.noted for read in noted.take()]
        wrong = yield from prove_reads(origin.sources, stated, reads, reader)
        problems.extend(wrong)
        unstated = len(stated) < len(weights)
        have = "should have" if wrong else "have"
        method += f"; read whole once more, {len(stated)} of the source's {len(weights)} files {have} the hash that "
        method += "the Hub states, and in them what was read before"
    elif unstated and prepared.is_stated:
        unstated = False
        method += "; what was downloaded to be loaded has the hash that the Hub states"
    elif unstated:
        method += _UNSTATED
    if kept and origin.ref.kind == "folder":
        method += f"; {count(len(kept), 'shard')} of an earlier run compared with the source's tensors before"
    seconds, mismatches = meter.seconds - started, tuple(problems)
    tensor_count, size, unreached = len(digests), plan.total_bytes, prepared.checkpoint.unreached
    return Verification(tensor_count, size, seconds, method, mismatches, dtype, plan.dequantized, unstated, unreached)


def compare_with_original(
    verification: Verification, plan: Plan, records: Mapping[str, ShardRecord], origin: Repo
) -> Generator[Progress, None, Verification]:
    """Return `verification` with what loading and saving has changed; a source that is no safetensors is passed over.

    Names that stood for the same bytes as another that is kept were tied: leaving them out changes nothing.
    """
    if not any(file.path.endswith(".safetensors") for file in loadable_files(origin)):
        return verification
    digests = expected_digests(plan.shards, records)
    side = Side(origin, read_checkpoint(origin))
    yield from side.read()
    original = side.digests
    kept = {digest.digest for digest in digests.values()}
    missing = {name for name, digest in original.items() if name not in digests and digest.digest in kept}
    wanted = {name: digest for name, digest in original.items() if name not in missing}
    method = f"{verification.method.removesuffix(_UNSTATED)}; and every tensor with the original's"
    mismatches = (*verification.mismatches, *compare_digests(wanted, digests), *side.wrong)
    return replace(verification, method=method + side.remark, mismatches=mismatches, unstated=side.unstated)
