"""Prove that two checkpoints are the same: by their bytes, read again, or by stored digests."""

from collections.abc import Generator, Mapping
from dataclasses import replace
from typing import cast

from sharding.checkpoint.read import read_checkpoint, read_headers, read_small
from sharding.core.environment import hub_endpoint
from sharding.core.errors import Refused, SourceError, UsageError
from sharding.core.events import Progress, ShardFinished, Verified
from sharding.core.limits import MAX_REPORT_BYTES
from sharding.core.meter import Meter
from sharding.core.options import Options, TargetDtype
from sharding.core.protocols import Destination, Source
from sharding.core.values import Checkpoint, FileEntry, Mismatch, Plan, ShardRecord, TensorDigest, Verification
from sharding.formats.names import DIGESTS_NAME
from sharding.loading.local_copy import loadable_files
from sharding.planning.architecture import hints_for
from sharding.planning.cast import refuse_cast
from sharding.planning.dequantize import dequantized
from sharding.report.digests import Stored, parse_digests
from sharding.storage.hub_client import Hub
from sharding.transfer.prepare import Prepared, making_of
from sharding.transfer.stream import Transfer
from sharding.transfer.strided_source import gathering
from sharding.transfer.trained_source import open_trained
from sharding.verify.digests import (
    Digests,
    Reader,
    ThisMachine,
    check_structure,
    digest_tensors,
    expected_digests,
    structure_reader,
)
from sharding.verify.digests import compare as compare_digests
from sharding.verify.read_back import ReadBack, read_back_meanwhile
from sharding.verify.source_hashes import digest_as_stored, stated_files


def verify(
    original: str,
    copy: str,
    *,
    quick: bool = False,
    dtype: TargetDtype = "keep",
    variant: str = "",
    base: str = "",
    dequantize: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Progress | Verified, None, None]:
    """Compare two checkpoints tensor by tensor; yield progress, `Verified` last.

    Every byte of both is read. `quick` reads none: it compares the digests that this tool has stored with
    both, and trusts them. `variant` is the one to compare of the first, whose tensors are cast to `dtype` before, and
    computed of their quantized numbers with `dequantize`; `base` is the model that was trained, where it is what a
    training run has saved. Raises UsageError, SourceError, Refused.
    """
    options = Options(dtype=dtype, variant=variant, allow_overflow=True, dequantize=dequantize)
    dtype, how = options.dtype, ""
    if quick and dtype != "keep":
        raise UsageError("Stored digests say nothing of a cast.", "Verify without --quick, which reads the weights.")
    meter = Meter()
    hub = Hub(endpoint or hub_endpoint(), token)
    sources = [open_trained(original, hub, base), open_trained(copy, hub)]
    checkpoints = [read_checkpoint(source, asked) for source, asked in zip(sources, (variant, ""), strict=True)]
    total = sum(checkpoint.total_bytes for checkpoint in checkpoints)
    digests: list[Mapping[str, TensorDigest]] = []
    hashes: set[str] = set()
    for source, checkpoint in zip(sources, checkpoints, strict=True):
        if quick:
            stored = _stored_digests(source, checkpoint)
            digests.append(stored.tensors)
            hashes.add(stored.hash)
            continue
        view, tensors = gathering(source, checkpoint.gathered), checkpoint.tensors
        if dtype != "keep" and not digests:
            after = dequantized(checkpoint, options)
            refuse_cast(after)
            hints = hints_for(after, options)
            making = making_of(after, options, hints)
            view, tensors = making.read_from(source), making.after
            how = after.dequantized
            total += sum(tensor.bytes for tensor in tensors) - checkpoint.total_bytes
        before = total - checkpoint.total_bytes if digests else 0
        digests.append((yield from _told_of_both(digest_tensors(view, tensors), before, total)))
    if len(hashes) > 1:
        message = f"The stored digests of one are {' and of the other '.join(sorted(hashes))}: they cannot be compared."
        raise Refused(message, "Verify without --quick, which reads the weights.")
    method = "stored digests compared, no weights read" if quick else "every tensor of both read, its BLAKE3 compared"
    if dtype != "keep":
        computed = f"computed of its quantized numbers ({how}) and " if how else ""
        method = f"every tensor of both read, the original's {computed}cast with tensor.to(dtype), its BLAKE3 compared"
    found, size = len(digests[0]), checkpoints[1].total_bytes
    mismatches = compare_digests(*digests)
    yield Verified(Verification(found, size, meter.seconds, method, mismatches, dtype, how))


def _told_of_both(work: Digests, before: int, total: int) -> Digests:
    """Do `work`, its progress told as that of `total` bytes in both checkpoints, of which `before` are done."""
    while True:
        try:
            told = next(work)
        except StopIteration as end:
            return cast("dict[str, TensorDigest]", end.value)
        done = before + told.bytes_done
        left = (total - done) / told.bytes_per_second if told.bytes_per_second else None
        yield replace(told, bytes_done=done, bytes_total=total, seconds_left=left)


def check_kept(
    target: Destination, plan: Plan, plan_id: str, reader: Reader
) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Return which shards of an earlier run of `plan` are still as they were finished."""
    tensors = {shard.file: {tensor.name for tensor in shard.tensors} for shard in plan.shards}
    # Who may write to the destination may have put down records of anything.
    found = target.done(plan_id)
    done = {
        file: record
        for file, record in found.items()
        if file in tensors and record.tensor_blake3.keys() == tensors[file]
    }
    if not done:
        return {}
    staged = target.open_staged(done)
    known = {file.path: file.sha256 for file in staged.files}
    unknown = {file: record.bytes for file, record in done.items() if known.get(file) is None}
    sha256 = yield from reader.digest_files(staged, unknown)
    return {file: record for file, record in done.items() if (known.get(file) or sha256[file]) == record.sha256}


def reading_back(
    moving: Transfer, prepared: Prepared, origin: Source, target: Destination, reader: Reader
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Do as `read_back_meanwhile` where this machine will read one shard after another at the end; else just move."""
    if not isinstance(reader, ThisMachine) or _in_order_of_source(prepared, origin):
        return (yield from moving), {}
    return (yield from read_back_meanwhile(moving, prepared.plan, target))


def _in_order_of_source(prepared: Prepared, origin: Source) -> list[FileEntry]:
    """Return the files of the source in whose order the result is read, [] where it is in its own."""
    is_all = prepared.reading is origin and prepared.plan.options.rank is None
    return stated_files(origin.files, prepared.checkpoint) if is_all else []


def verify_staged(
    prepared: Prepared,
    origin: Source,
    records: Mapping[str, ShardRecord],
    read: ReadBack,
    target: Destination,
    meter: Meter,
    reader: Reader,
) -> Generator[Progress, None, Verification]:
    """Have `reader` read the result again, before it is published; compare it with what passed on the way to it.

    `read` is what was read back already.

    Where `origin` states the SHA-256 of its files and its bytes were moved as they are, the result is read in the
    order in which these files hold its tensors: then it has to give these very hashes, which nothing does that was
    read wrongly, now or in an earlier run.
    """
    started, plan = meter.seconds, prepared.plan
    staged = target.open_staged(records)
    problems: list[Mismatch] = []
    for shard in plan.shards:
        if path := staged.path(shard.file):
            problems.extend(check_structure(path, shard, plan.component(shard).metadata))
    found: dict[str, TensorDigest] = {}
    originals = _in_order_of_source(prepared, origin)
    if not problems:
        headers = read_headers(staged, [FileEntry(record.file, record.bytes) for record in records.values()])
        tensors = [tensor for header in headers for tensor in header.tensors]
        if sorted(tensor.name for tensor in tensors) != sorted(tensor.name for tensor in prepared.checkpoint.tensors):
            originals = []  # the comparison below says what is missing
        if originals:
            found, wrong = yield from digest_as_stored(prepared, originals, staged, tensors, reader)
            problems.extend(wrong)
        else:
            listed = {file.path: file.sha256 for file in staged.files}
            known = {
                tensor.name: read[tensor]
                for tensor in tensors
                if tensor in read and listed[tensor.file] == records[tensor.file].sha256
            }
            found = yield from reader.digest_tensors(staged, [one for one in tensors if one.name not in known])
            found |= known
        problems.extend(compare_digests(expected_digests(plan.shards, records), found))
    on_disk = any(staged.path(file) for file in records)
    structure = f"structure by {structure_reader()}, " if on_disk else ""
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
    elif any(file.sha256 for file in origin.files):
        method += "; what was read is not compared with the SHA-256 that the Hub states"
    seconds, mismatches = meter.seconds - started, tuple(problems)
    return Verification(len(found), plan.total_bytes, seconds, method, mismatches, dtype, plan.dequantized)


def compare_with_original(
    verification: Verification, plan: Plan, records: Mapping[str, ShardRecord], origin: Source
) -> Generator[Progress, None, Verification]:
    """Return `verification` with what loading and saving has changed; a source that is no safetensors is passed over.

    Names that stood for the same bytes as another that is kept were tied: leaving them out changes nothing.
    """
    if not any(file.path.endswith(".safetensors") for file in loadable_files(origin)):
        return verification
    found = expected_digests(plan.shards, records)
    original = yield from digest_tensors(origin, read_checkpoint(origin).tensors)
    kept = {digest.digest for digest in found.values()}
    missing = {name for name, digest in original.items() if name not in found and digest.digest in kept}
    wanted = {name: digest for name, digest in original.items() if name not in missing}
    method = f"{verification.method}; and every tensor with the original's"
    return replace(verification, method=method, mismatches=verification.mismatches + compare_digests(wanted, found))


def _stored_digests(source: Source, checkpoint: Checkpoint) -> Stored:
    files = {file.path: file for file in source.files}
    if DIGESTS_NAME not in files:
        raise SourceError(
            f"{source.ref.repo_id} has no {DIGESTS_NAME}.", "Verify without --quick, which reads the weights."
        )
    stored = parse_digests(read_small(source, files[DIGESTS_NAME], MAX_REPORT_BYTES))
    headers = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.tensors}
    if headers != {name: (digest.dtype, digest.shape) for name, digest in stored.tensors.items()}:
        raise SourceError(
            f"{DIGESTS_NAME} of {source.ref.repo_id} does not describe the weights beside it.",
            "Verify without --quick.",
        )
    return stored
