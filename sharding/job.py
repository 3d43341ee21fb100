"""The whole path, in order: source, headers, plan, transfer, verification, report, publishing.

Nothing here prints. `shard` and `verify` are generators: they yield events as things happen, their result
last, and they work only while somebody asks for the next event. A source is a folder or `owner/name` on the
Hub at `endpoint`, seen with `token`; a destination likewise.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sharding import __version__
from sharding.errors import DestinationError, ShardingError, SourceError
from sharding.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.files import DIGESTS_NAME, INDEX_NAME, REPORT_NAME
from sharding.headers import read_checkpoint, read_headers, read_small
from sharding.hub import Hub
from sharding.limits import DEFAULT_MAX_SHARD_SIZE, MAX_REPORT_BYTES, hub_endpoint, parse_bytes
from sharding.meter import Meter
from sharding.places import find_destination, open_destination, open_source, open_staged
from sharding.plan import Order, Strategy, build_index, identify_plan, plan_shards, shard_header
from sharding.protocols import Destination, Source
from sharding.report import Report, digests_json, parse_digests, report_json, to_bytes
from sharding.transfer import transfer
from sharding.values import (
    Checkpoint,
    Discarded,
    FileEntry,
    Mismatch,
    Plan,
    Resources,
    ShardRecord,
    StagedJob,
    TensorDigest,
    Verification,
)
from sharding.verify import check_structure, compare, digest_files, digest_tensors, expected_digests

_T = TypeVar("_T")

Event = Planned | Progress | ShardFinished | Verified | Published | Report


def inspect(source: str, *, endpoint: str | None = None, token: str | None = None) -> Checkpoint:
    """Return what the headers of `source` say: tensors, files, findings. Reads no weights.

    Raises SourceError where it is no checkpoint that can be streamed.
    """
    return read_checkpoint(open_source(source, Hub(endpoint or hub_endpoint(), token)))


def plan(
    source: str,
    max_shard_size: str = DEFAULT_MAX_SHARD_SIZE,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
    endpoint: str | None = None,
    token: str | None = None,
) -> tuple[Checkpoint, Plan]:
    """Return what is in `source` and which shards of at most `max_shard_size` ("200MB") it would be cut into.

    Reads no weights and writes nothing. Raises UsageError, SourceError.
    """
    parse_bytes(max_shard_size)  # before anything is asked of a Hub
    checkpoint = inspect(source, endpoint=endpoint, token=token)
    return checkpoint, plan_checkpoint(checkpoint, max_shard_size, strategy=strategy, order=order)


def plan_checkpoint(
    checkpoint: Checkpoint, max_shard_size: str, *, strategy: Strategy = "size", order: Order = "natural"
) -> Plan:
    """Return which shards of at most `max_shard_size` a checkpoint would be cut into. Pure. Raises UsageError."""
    return plan_shards(
        checkpoint.tensors,
        parse_bytes(max_shard_size),
        strategy=strategy,
        order=order,
        metadata=checkpoint.metadata,
        total_parameters=checkpoint.total_parameters,
    )


def shard(
    source: str,
    destination: str,
    max_shard_size: str = DEFAULT_MAX_SHARD_SIZE,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
    private: bool | None = None,
    confirmed: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Event, None, None]:
    """Re-shard `source` into `destination`; yield events, the `Report` last.

    The result is published only if the verification finds it identical; the report says which. Closing
    the generator, an exception or a kill keep the shards that are finished, and the same call goes on
    from them. `private` is the visibility of a new repo (None: as the source; private for a folder), and
    `confirmed` that a copy of a gated or private source may be public. `overwrite` replaces a checkpoint in
    a folder that this tool did not write, `restart` discards what an earlier run left.
    Raises UsageError, SourceError, DestinationError.
    """
    parse_bytes(max_shard_size)  # before anything is asked of a Hub
    hub = Hub(endpoint or hub_endpoint(), token)
    origin = open_source(source, hub)
    hidden = origin.is_private is not False if private is None else private
    if origin.is_private and not hidden and not confirmed:
        raise DestinationError(
            f"{source} is private or gated, and a public copy would show it to everybody.",
            "Add --yes if its terms allow that, or leave --public out.",
        )
    target = open_destination(destination, hub, origin, private=hidden, overwrite=overwrite, restart=restart)
    with Meter() as meter, closing(target):
        checkpoint = read_checkpoint(origin)
        plan = plan_checkpoint(checkpoint, max_shard_size, strategy=strategy, order=order)
        yield Planned(checkpoint, plan)

        plan_id = identify_plan(plan, origin.ref)
        kept = yield from _measured(_check_kept(target, plan_id, hub), target, meter)
        with _discarded_if_fruitless(target):
            job = StagedJob(plan_id, origin.ref, plan.max_shard_bytes, strategy, order)
            target.prepare(job, kept.values(), _bytes_to_write(checkpoint, plan, kept))
            records = yield from _measured(transfer(plan, origin, target, kept), target, meter)
            staged = _verify_staged(plan, records, target, hub, meter)
            verification = yield from _measured(staged, target, meter)
            yield Verified(verification)

            cost = _resources(meter, origin, target)
            now = datetime.now(UTC)
            report = Report(checkpoint, target.ref, plan, plan_id, records, verification, cost, now, __version__)
            if verification.identical:
                yield target.publish(records, checkpoint.side_files, origin, _written(report))
            else:
                target.discard()
    yield report


def find_unfinished(destination: str, *, endpoint: str | None = None, token: str | None = None) -> StagedJob | None:
    """Return the job whose shards are staged at `destination`: `shard` with the same arguments goes on with it.

    Raises DestinationError.
    """
    with closing(find_destination(destination, Hub(endpoint or hub_endpoint(), token))) as target:
        return target.unfinished()


def discard(destination: str, *, endpoint: str | None = None, token: str | None = None) -> Discarded:
    """Remove what an unfinished job has staged at `destination`, and the repo where that job made it.

    Raises DestinationError.
    """
    with closing(find_destination(destination, Hub(endpoint or hub_endpoint(), token))) as target:
        return target.discard()


def verify(
    one: str, other: str, *, quick: bool = False, endpoint: str | None = None, token: str | None = None
) -> Generator[Progress | Verified, None, None]:
    """Compare two checkpoints tensor by tensor; yield progress, `Verified` last.

    Every byte of both is read. `quick` reads none: it compares the digests that this tool has stored with
    both, and trusts them. Raises SourceError.
    """
    meter = Meter()
    hub = Hub(endpoint or hub_endpoint(), token)
    digests = []
    for name in (one, other):
        source = open_source(name, hub)
        checkpoint = read_checkpoint(source)
        if quick:
            digests.append(_stored_digests(source, checkpoint))
        else:
            digests.append((yield from digest_tensors(source, checkpoint.tensors)))
    method = "stored digests compared, no weights read" if quick else "every tensor of both read, its SHA-256 compared"
    yield Verified(Verification(len(digests[0]), checkpoint.total_bytes, meter.seconds, method, compare(*digests)))


def _measured(
    stage: Generator[Progress | ShardFinished, None, _T] | Generator[Progress, None, _T],
    target: Destination,
    meter: Meter,
) -> Generator[Progress | ShardFinished, None, _T]:
    """Yield the events of a stage, progress with what the job costs by now; return what the stage returns."""
    with closing(stage):
        while True:
            try:
                event = next(stage)
            except StopIteration as end:
                result: _T = end.value
                return result
            if isinstance(event, Progress):
                event = replace(
                    event,
                    anon_bytes=meter.anon_bytes,
                    bytes_uploaded=target.bytes_uploaded,
                    bytes_deduplicated=target.bytes_deduplicated,
                )
            yield event


@contextmanager
def _discarded_if_fruitless(target: Destination) -> Iterator[None]:
    """Leave nothing behind when a job ends without a result and without a shard to go on from."""
    try:
        yield
    except BaseException as error:
        if not target.has_finished_shards:
            with suppress(DestinationError):  # the first error says more
                remark = target.discard().remark
                if isinstance(error, ShardingError):
                    error.hint = f"{error.hint} {remark}".rstrip()
        raise


def _check_kept(target: Destination, plan_id: str, hub: Hub) -> Generator[Progress, None, dict[str, ShardRecord]]:
    """Return which shards of an earlier run are still as they were finished."""
    done = target.done(plan_id)
    if not done:
        return {}
    staged = open_staged(target, list(done), hub)
    known = {file.path: file.sha256 for file in staged.files}
    unknown = {file: record.bytes for file, record in done.items() if known.get(file) is None}
    found = yield from digest_files(staged, unknown)
    return {file: record for file, record in done.items() if (known.get(file) or found[file]) == record.sha256}


def _bytes_to_write(checkpoint: Checkpoint, plan: Plan, kept: Mapping[str, ShardRecord]) -> int:
    shards = [shard for shard in plan.shards if shard.file not in kept]
    side_bytes = sum(file.bytes for file in checkpoint.side_files)
    return sum(len(shard_header(plan, shard)) + shard.bytes for shard in shards) + side_bytes


def _verify_staged(
    plan: Plan, records: Mapping[str, ShardRecord], target: Destination, hub: Hub, meter: Meter
) -> Generator[Progress, None, Verification]:
    """Read the result again, before it is published, and compare it with what passed on the way to it."""
    started = meter.seconds
    staged = open_staged(target, list(records), hub)
    problems: list[Mismatch] = []
    for shard in plan.shards:
        if path := staged.path(shard.file):
            problems.extend(check_structure(path, shard, plan.metadata))
    found: dict[str, TensorDigest] = {}
    if not problems:
        headers = read_headers(staged, [FileEntry(record.file, record.bytes) for record in records.values()])
        found = yield from digest_tensors(staged, [tensor for header in headers for tensor in header.tensors])
        problems.extend(compare(expected_digests(plan.shards, records), found))
    structure = "structure by safetensors, " if any(staged.path(file) for file in records) else ""
    method = f"read again: {structure}headers and the SHA-256 of every tensor compared with the source's"
    return Verification(len(found), plan.total_bytes, meter.seconds - started, method, tuple(problems))


def _resources(meter: Meter, origin: Source, target: Destination) -> Resources:
    return Resources(
        peak_anon_bytes=meter.peak_anon_bytes,
        seconds=meter.seconds,
        bytes_read=origin.bytes_read,
        read_requests=origin.requests,
        bytes_uploaded=target.bytes_uploaded,
        bytes_deduplicated=target.bytes_deduplicated,
        disk_bytes_written=target.disk_bytes_written,
    )


def _written(report: Report) -> dict[str, bytes]:
    """Return the files that this tool writes beside the shards: digests, report, and the index where one is due."""
    files = {DIGESTS_NAME: to_bytes(digests_json(report)), REPORT_NAME: to_bytes(report_json(report))}
    return {**files, INDEX_NAME: build_index(report.plan)} if report.plan.is_sharded else files


def _stored_digests(source: Source, checkpoint: Checkpoint) -> dict[str, TensorDigest]:
    files = {file.path: file for file in source.files}
    if DIGESTS_NAME not in files:
        raise SourceError(
            f"{source.ref.repo_id} has no {DIGESTS_NAME}.", "Verify without --quick, which reads the weights."
        )
    digests = parse_digests(read_small(source, files[DIGESTS_NAME], MAX_REPORT_BYTES))
    headers = {tensor.name: (tensor.dtype, tensor.shape) for tensor in checkpoint.tensors}
    if headers != {name: (digest.dtype, digest.shape) for name, digest in digests.items()}:
        raise SourceError(
            f"{DIGESTS_NAME} of {source.ref.repo_id} does not describe the weights beside it.",
            "Verify without --quick.",
        )
    return digests
