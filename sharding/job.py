"""The whole path, in order: source, headers, plan, transfer, verification, report, publishing.

Nothing here prints. `shard` and `verify` are generators: they yield events as things happen, their result
last, and they work only while somebody asks for the next event. A source is a folder or `owner/name` on the
Hub at `endpoint`, seen with `token`; a destination likewise.
"""

from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from sharding import __version__
from sharding.checkpoint.read import read_checkpoint
from sharding.core.environment import hub_endpoint
from sharding.core.errors import DestinationError, OverflowRefused, ShardingError, UsageError
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE
from sharding.core.meter import Meter
from sharding.core.options import Order, Strategy
from sharding.core.protocols import Destination
from sharding.core.text import parse_bytes
from sharding.core.values import Checkpoint, Discarded, Plan, Resources, ShardRecord, StagedJob
from sharding.formats.dtypes import torch_name
from sharding.loading.classic import prepared_classic
from sharding.loading.compare import compare, compare_staged, how_to_load, refuse_incomparable
from sharding.loading.costs import Compared, Probed
from sharding.loading.devices import devices
from sharding.planning.architecture import hints_for
from sharding.planning.plan import identify_plan, plan_checkpoint, shard_header
from sharding.report.report import Engine, Report
from sharding.report.write import rewritten_configs, write_beside
from sharding.storage.hub_client import Hub
from sharding.storage.locate import find_destination, open_destination, open_source
from sharding.transfer.prepare import Prepared, prepared_stream
from sharding.transfer.stream import transfer
from sharding.verify.verify import check_kept, compare_with_original, verify, verify_staged

__all__ = [
    "compare",
    "devices",
    "discard",
    "find_unfinished",
    "hints_for",
    "how_to_load",
    "inspect",
    "plan",
    "plan_checkpoint",
    "shard",
    "verify",
]

_T = TypeVar("_T")

Event = Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report


def inspect(source: str, *, variant: str = "", endpoint: str | None = None, token: str | None = None) -> Checkpoint:
    """Return what the headers of `source` say: tensors, files, findings. Reads no weights.

    `variant` is such as "fp16", where a repo has several; "" takes the plain weights. Raises SourceError where it is
    no checkpoint that can be streamed.
    """
    return read_checkpoint(open_source(source, Hub(endpoint or hub_endpoint(), token)), variant)


def plan(
    source: str,
    max_shard_size: str = DEFAULT_MAX_SHARD_SIZE,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
    dtype: str = "keep",
    variant: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> tuple[Checkpoint, Plan]:
    """Return what is in `source` and which shards of at most `max_shard_size` ("200MB") it would be cut into.

    `strategy` is "size", "blocks" or "stages:N", `order` "natural", "stored" or "transformers", and `dtype` what
    tensors would be cast to ("fp32", "fp16", "bf16"). Reads no weights and writes nothing. Raises UsageError,
    SourceError, and Refused where an extra of this package is missing.
    """
    parse_bytes(max_shard_size)  # before anything is asked of a Hub
    checkpoint = inspect(source, variant=variant, endpoint=endpoint, token=token)
    hints = hints_for(checkpoint, strategy=strategy, order=order, dtype=dtype)
    plan = plan_checkpoint(checkpoint, max_shard_size, strategy=strategy, order=order, dtype=dtype, hints=hints)
    return checkpoint, plan


def shard(
    source: str,
    destination: str,
    max_shard_size: str = DEFAULT_MAX_SHARD_SIZE,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
    variant: str = "",
    private: bool | None = None,
    confirmed: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    engine: Engine = "stream",
    dtype: str = "keep",
    allow_overflow: bool = False,
    compare_rounds: int = 0,
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Event, None, None]:
    """Re-shard `source` into `destination`; yield events, the `Report` last.

    The result is published only if the verification finds it identical; the report says which. Closing
    the generator, an exception or a kill keep the shards that are finished, and the same call goes on
    from them. `variant` is as for `inspect`. `private` is the visibility of a new repo (None: as the source;
    private for a folder), and `confirmed` that a copy of a gated or private source may be public. `overwrite`
    replaces a checkpoint in a folder that this tool did not write, `restart` discards what an earlier run left.
    `engine` "classic" loads the whole model and saves it again. `strategy`, `order` and `dtype` are those of `plan`; a
    cast that makes a finite number infinite ends the job, unless `allow_overflow`. `compare_rounds` is how often
    original and result are each loaded before the result is published, for the report and the card.
    Raises UsageError, SourceError, DestinationError, and Refused where an extra of this package is missing.
    """
    if engine == "classic" and variant:
        raise UsageError("The classic engine loads the plain weights only.", "Leave out --variant or --engine.")
    parse_bytes(max_shard_size)  # before anything is asked of a Hub
    hub = Hub(endpoint or hub_endpoint(), token)
    origin = open_source(source, hub)
    hidden = origin.is_private is not False if private is None else private
    if origin.is_private and not hidden and not confirmed:
        raise DestinationError(
            f"{source} is private or gated, and a public copy would show it to everybody.",
            "If its terms allow a public copy, say so (--yes), or make the copy private (leave --public out).",
        )
    target = open_destination(destination, hub, origin, private=hidden, overwrite=overwrite, restart=restart)
    with Meter() as meter, closing(target), ExitStack() as stack:
        if engine == "classic":
            saved = prepared_classic(origin, parse_bytes(max_shard_size), dtype, hub)
            prepared = stack.enter_context(saved)
        else:
            checkpoint = read_checkpoint(origin, variant)
            hints = hints_for(checkpoint, strategy=strategy, order=order, dtype=dtype)
            plan = plan_checkpoint(checkpoint, max_shard_size, strategy=strategy, order=order, dtype=dtype, hints=hints)
            prepared = prepared_stream(origin, checkpoint, plan, hints, allow_overflow=allow_overflow)
        checkpoint, plan = prepared.checkpoint, prepared.plan
        if compare_rounds:
            refuse_incomparable(checkpoint, origin)
        yield Planned(checkpoint, plan)

        plan_id = identify_plan(plan, prepared.reading.ref, allow_overflow=allow_overflow)
        kept = yield from _measured(check_kept(target, plan, plan_id, hub), target, meter)
        with _discarded_if_fruitless(target):
            job = StagedJob(
                *(plan_id, origin.ref, plan.max_shard_bytes, strategy, order),
                dtype=dtype,
                allow_overflow=allow_overflow,
                variant=variant,
            )
            target.prepare(job, kept.values(), _bytes_to_write(checkpoint, plan, kept))
            records = yield from _measured(transfer(plan, prepared.reading, target, kept), target, meter)
            staged = verify_staged(prepared, origin, records, target, hub, meter)
            verification = yield from _measured(staged, target, meter)
            if engine == "classic" and dtype == "keep":
                verification = yield from compare_with_original(verification, plan, records, origin)
            yield Verified(verification)

            cost = _resources(meter, prepared, target)
            now = datetime.now(UTC)
            report = Report(
                *(checkpoint, target.ref, plan, plan_id, records, verification, cost, now, __version__, engine),
                overflowed=prepared.overflowed(kept),
            )
            if verification.identical:
                configs = rewritten_configs(origin, checkpoint.side_files, torch_name(dtype))
                if compare_rounds:
                    found = yield from compare_staged(plan, records, origin, target, compare_rounds, hub, configs)
                    report = replace(report, comparison=found)
                beside = write_beside(report, origin, hub) | configs
                side_files = [file for file in checkpoint.side_files if file.path not in beside]
                yield target.publish(records, side_files, origin, beside)
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
    """Leave nothing behind when a job ends without a result and with nothing to go on from."""
    try:
        yield
    except BaseException as error:
        if not target.has_finished_shards or isinstance(error, OverflowRefused):
            try:
                remark = target.discard().remark
            except DestinationError as second:  # the first error says more
                remark = f"What was begun could not be removed: {second.message}"
            if isinstance(error, ShardingError):
                error.hint = f"{error.hint} {remark}".rstrip()
        raise


def _bytes_to_write(checkpoint: Checkpoint, plan: Plan, kept: Mapping[str, ShardRecord]) -> int:
    shards = [shard for shard in plan.shards if shard.file not in kept]
    side_bytes = sum(file.bytes for file in checkpoint.side_files)
    return sum(len(shard_header(plan, shard)) + shard.bytes for shard in shards) + side_bytes


def _resources(meter: Meter, prepared: Prepared, target: Destination) -> Resources:
    return Resources(
        peak_anon_bytes=max(meter.peak_anon_bytes, prepared.cost.peak_anon_bytes if prepared.cost else 0),
        seconds=meter.seconds,
        bytes_read=prepared.reading.bytes_read,
        read_requests=prepared.reading.requests,
        bytes_uploaded=target.bytes_uploaded,
        bytes_deduplicated=target.bytes_deduplicated,
        disk_bytes_written=target.disk_bytes_written + prepared.disk_bytes_written,
    )
