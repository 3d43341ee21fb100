"""The whole path, in order: source, headers, plan, transfer, verification, report, publishing.

Nothing here prints. `shard` and `verify` are generators: they yield events as things happen, their result
last, and they work only while somebody asks for the next event. A source is a folder or `owner/name` on the
Hub at `endpoint`, seen with `token`; a destination likewise.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from typing import TypeVar

from sharding.checkpoint.read import read_checkpoint
from sharding.checkpoint.trained import compare_with_base
from sharding.core.destination import Destination
from sharding.core.dtypes import torch_name
from sharding.core.environment import hub_endpoint
from sharding.core.errors import (
    DestinationError,
    OverflowRefused,
    Refused,
    Remedy,
    ShardingError,
    SourceError,
    UsageError,
)
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.extras import require
from sharding.core.limits import ARCHITECTURE_SECONDS, DEFAULT_MAX_SHARD_SIZE, MAX_TENSORS, ROUNDS
from sharding.core.meter import Meter
from sharding.core.options import Engine, Options, Request, WorkersOf
from sharding.core.repo import Repo
from sharding.core.values import Checkpoint, Discarded, Plan, Resources, ShardRecord, StagedJob
from sharding.drawing.picture import save_picture
from sharding.fleet.crew import Crew
from sharding.fleet.parts import Spent
from sharding.fleet.ray_workers import ray_workers
from sharding.formats.safetensors_file import shard_header
from sharding.loading.chart import draw_memory
from sharding.loading.classic import prepared_classic
from sharding.loading.compare import compare_loads, compare_staged, how_to_load, refuse_incomparable
from sharding.loading.costs import Compared, Probed, middle_run
from sharding.loading.measure import Load
from sharding.model_class.architecture import ask_architecture
from sharding.planning.dequantize import offering, ordinary
from sharding.planning.devices import DevicePlan, parse_budgets, plan_devices
from sharding.planning.plan import identify_plan
from sharding.planning.planned import planned
from sharding.report.report import files_written, make_report
from sharding.report.schema import Report
from sharding.report.source_card import read_card
from sharding.report.write import write_beside
from sharding.storage.hub.client import Hub
from sharding.storage.locate import find_destination, open_destination, open_source
from sharding.storage.names import is_folder
from sharding.transfer.prepare import Prepared, overflowed_in
from sharding.transfer.stream import transfer
from sharding.verify.digests import ThisMachine
from sharding.verify.sides import noting, sources_to_read
from sharding.verify.staged import check_kept, compare_with_original, reading_back, verify_staged
from sharding.verify.verify import verify

__all__ = [
    "Options",
    "Request",
    "check",
    "check_request",
    "compare",
    "devices",
    "discard",
    "find_unfinished",
    "how_to_load",
    "inspect",
    "plan",
    "run",
    "shard",
    "verify",
]

_T = TypeVar("_T")

Event = Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report


def inspect(
    source: str,
    *,
    variant: str = "",
    base: str = "",
    most_tensors: int = MAX_TENSORS,
    endpoint: str | None = None,
    token: str | None = None,
) -> Checkpoint:
    """Return what the headers of `source` say: tensors, files, findings. Reads no weights.

    `variant` is such as "fp16", where a repo has several; "" takes the plain weights. `base` is the model that was
    trained, where `source` is what the ranks of a training run have saved: the files beside the weights are taken from
    it, and its headers compared. Raises SourceError where it is no checkpoint that can be streamed, TooManyTensors for
    more than `most_tensors`, and UsageError for a base that `source` needs none of.
    """
    origin = open_source(source, Hub(endpoint or hub_endpoint(), token), base)
    return offering(_read(origin, variant, most_tensors))


def plan(
    source: str,
    options: Options | str = DEFAULT_MAX_SHARD_SIZE,
    *,
    endpoint: str | None = None,
    token: str | None = None,
) -> tuple[Checkpoint, Plan]:
    """Return what is in `source` and which shards it would be cut into with `options`, or a mere size ("200MB").

    Reads no weights and writes nothing. Raises UsageError, SourceError, and Refused where an extra of this package is
    missing.
    """
    options = _as_options(options)
    _require(options.extras())
    checkpoint = inspect(source, variant=options.variant, base=options.base, endpoint=endpoint, token=token)
    return checkpoint, planned(checkpoint, options)


def shard(
    source: str,
    destination: str,
    options: Options | str = DEFAULT_MAX_SHARD_SIZE,
    *,
    private: bool | None = None,
    confirmed: bool = False,
    overwrite: bool = False,
    restart: bool = False,
    engine: Engine = "stream",
    compare_rounds: int = 0,
    workers: WorkersOf | None = None,
    expect: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Event, None, None]:
    """Re-shard `source` into `destination` with `options`, or a mere size ("200MB"); yield events, the `Report` last.

    The result is published only if the verification finds it identical; the report says which. Closing
    the generator, an exception or a kill keep the shards that are finished, and the same call goes on
    from them. `private` is the visibility of a new repo (None: as the source; private for a folder), and `confirmed`
    that a copy of a gated or private source may be public. `overwrite` replaces another model's copy, or a checkpoint
    in a folder that this tool did not write, `restart` discards what an earlier run left. `engine` "classic" loads the
    whole model and saves it again. `compare_rounds` is how often original and result are each loaded before the result
    is published, for the report and the card. `workers` "ray" has other machines move and read the bytes, those of the
    cluster at RAY_ADDRESS; they are given no login. `expect` is the `plan_id` that the plan must have. Raises
    UsageError, SourceError, DestinationError, and Refused where an extra is missing or the plan is another one.
    """
    request = Request(
        source,
        destination,
        _as_options(options),
        private=private,
        confirmed=confirmed,
        overwrite=overwrite,
        restart=restart,
        engine=engine,
        compare_rounds=compare_rounds,
        workers=workers,
        expect=expect,
    )
    yield from run(request, endpoint=endpoint, token=token)


def run(request: Request, *, endpoint: str | None = None, token: str | None = None) -> Generator[Event, None, None]:
    """Do what was asked for: see `shard`."""
    request.refuse_contradictions()
    _require(request.extras())
    options, classic, compare_rounds = request.options, request.engine == "classic", request.compare_rounds
    if options.rank is not None and not is_folder(request.destination):
        raise UsageError("What one rank loads is no repo of a model.", "Name a folder, such as ./part.")
    hub = Hub(endpoint or hub_endpoint(), token)
    origin, target = _open(request, hub)
    with Meter() as meter, closing(target), ExitStack() as stack:
        crew = Crew(stack.enter_context(ray_workers())) if request.workers else None
        reader = crew or ThisMachine()
        if classic:
            prepared = stack.enter_context(prepared_classic(origin, options))
        else:
            noted = noting(origin.sources)
            checkpoint = _read(origin.through(noted), options.variant)
            plan = planned(checkpoint, options)
            prepared = Prepared(sources_to_read(origin, noted, checkpoint, plan), checkpoint, plan)
        card = read_card(origin)
        checkpoint = replace(prepared.checkpoint, findings=(*prepared.checkpoint.findings, *card.findings))
        plan = prepared.plan
        if compare_rounds:
            refuse_incomparable(checkpoint, origin)
        yield Planned(replace(checkpoint, findings=(*checkpoint.findings, *target.findings)), plan)

        plan_id = identify_plan(plan)
        if request.expect and plan_id != request.expect:
            raise Refused(
                f"The plan is {plan_id}, and you expect {request.expect}.",
                "The source has changed since, or the options are others: look at the plan again.",
            )
        kept = yield from _measured(check_kept(target, prepared, plan_id, origin, reader), target, meter)
        with _discarded_if_fruitless(target):
            job = StagedJob(plan_id, origin.ref, options)
            ours = files_written(plan, has_picture=bool(compare_rounds))
            theirs = [file.path for file in checkpoint.side_files if file.path not in ours]
            target.prepare(job, kept.values(), _bytes_to_write(checkpoint, plan, kept), ours, theirs)
            moving = (crew.transfer if crew else transfer)(prepared, target, kept)
            moved = reading_back(moving, prepared, origin, target, reader)
            records, read = yield from _measured(moved, target, meter)
            proving = verify_staged(prepared, origin, records, read, target, meter, reader, kept)
            verification = yield from _measured(proving, target, meter)
            if classic and options.dtype == "keep":
                verification = yield from compare_with_original(verification, plan, records, origin)
            yield Verified(verification)

            resources = _resources(meter, prepared, target, crew)
            comparison = None
            if compare_rounds and verification.identical:
                comparison = yield from compare_staged(plan, records, origin, target, compare_rounds, plan.written)
            report = make_report(
                checkpoint=checkpoint,
                plan=plan,
                plan_id=plan_id,
                records=records,
                verification=verification,
                resources=resources,
                destination=target.ref,
                engine=request.engine,
                overflowed=overflowed_in(records),
                comparison=comparison,
                fleet=crew.cost if crew else None,
            )
            if verification.identical:
                beside = write_beside(report, checkpoint, plan, records, origin, card, hub)
                side_files = [file for file in checkpoint.side_files if file.path not in beside]
                yield target.publish(records, side_files, origin, beside)
            else:
                target.discard()
    yield report


def devices(
    source: str,
    budget: str,
    *,
    dtype: str = "keep",
    endpoint: str | None = None,
    token: str | None = None,
    limit_seconds: float = ARCHITECTURE_SECONDS,
) -> DevicePlan:
    """Return which block of `source` goes on which device for `budget` ("cuda:0=16GB,cpu=12GB", or a preset).

    Reads headers and the configuration only. Raises UsageError, SourceError, Refused, and ModelRefused where
    transformers takes longer than `limit_seconds` to answer.
    """
    budgets = parse_budgets(budget)
    require("A plan of devices")
    origin = open_source(source, Hub(endpoint or hub_endpoint(), token))
    checkpoint = read_checkpoint(origin)
    if "" not in checkpoint.configs:
        raise SourceError(f"{source} has no config.json, which says what model it is.", "Give the repo of a model.")
    architecture = ask_architecture(checkpoint, torch_name(dtype), budgets, limit_seconds)
    name = origin.ref.repo_id if origin.ref.kind == "hub" else source
    return plan_devices(architecture, checkpoint.tensors, budgets, name, torch_name(dtype))


def compare(
    original: str,
    sharded: str,
    *,
    load: Load | None = None,
    rounds: int = ROUNDS,
    picture: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Probed | Compared, None, None]:
    """Load two checkpoints in turn, each time in a fresh process; yield every probe, `Compared` last.

    A repo of a Hub is downloaded first, into a temporary folder. `picture` is where memory over time is drawn
    (SVG). Raises UsageError, SourceError, Refused, and DestinationError where the picture cannot be written.
    """
    require("A comparison of loads")
    hub = Hub(endpoint or hub_endpoint(), token)
    sides = open_source(original, hub), open_source(sharded, hub)
    comparison = yield from compare_loads(*sides, load or Load(), rounds)
    if picture and comparison.is_measured:
        curves = (middle_run(costs).curve for costs in (comparison.original, comparison.sharded))
        save_picture(picture, draw_memory(*curves))
    yield Compared(comparison)


def check(
    source: str,
    destination: str,
    *,
    private: bool | None = None,
    confirmed: bool = False,
    overwrite: bool = False,
    base: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> None:
    """Raise what `shard` with the same arguments would raise before it reads a header. Changes nothing."""
    options = Options(base=base)
    request = Request(source, destination, options, private=private, confirmed=confirmed, overwrite=overwrite)
    check_request(request, endpoint=endpoint, token=token)


def check_request(request: Request, *, endpoint: str | None = None, token: str | None = None) -> None:
    """Raise what `run` would raise before it reads a header. Changes nothing."""
    _, target = _open(replace(request, restart=False), Hub(endpoint or hub_endpoint(), token))
    target.close()


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


def _open(request: Request, hub: Hub) -> tuple[Repo, Destination]:
    """Return both sides of a job that may be done. Raises UsageError, SourceError, DestinationError."""
    base, private = request.options.base, request.private
    origin = open_source(request.source, hub, base)
    if origin.is_private and private is False and not request.confirmed:
        hidden = base if origin.base and origin.base.is_private else request.source
        raise DestinationError(
            f"{hidden} is private or gated (or its Hub does not say), and a public copy would show it to everybody.",
            "Make the copy private, or say that its terms allow a public one. For the first leave out --public, for "
            "the second add --yes.",
            Remedy("make_private"),
        )
    if private is None:  # as the source; what is not shown anywhere yet is not shown by this job
        is_hidden = None if request.confirmed or origin.is_private is None else True
        private = False if origin.is_private is False else is_hidden
    target = open_destination(
        request.destination,
        hub,
        origin,
        private=private,
        overwrite=request.overwrite,
        restart=request.restart,
        is_shared=bool(request.workers),
    )
    try:
        target.check(origin.ref)
    except BaseException:
        target.close()
        raise
    return origin, target


def _read(origin: Repo, variant: str, most_tensors: int = MAX_TENSORS) -> Checkpoint:
    """Return what `origin` says of itself, compared with the model that was trained where that is known."""
    checkpoint = read_checkpoint(origin, variant, most_tensors)
    if origin.base is None:
        return checkpoint
    trained = read_checkpoint(origin.base, most_tensors=most_tensors)
    return compare_with_base(checkpoint, trained, ordinary(trained))


def _require(extras: Iterable[tuple[str, str]]) -> None:
    for what, extra in extras:
        require(what, extra)


def _as_options(options: Options | str) -> Options:
    return Options(options) if isinstance(options, str) else options


def _measured(
    phase: Generator[Progress | ShardFinished, None, _T] | Generator[Progress, None, _T],
    target: Destination,
    meter: Meter,
) -> Generator[Progress | ShardFinished, None, _T]:
    """Yield the events of a phase, progress with what the job costs by now; return what the phase returns."""
    with closing(phase):
        while True:
            try:
                event = next(phase)
            except StopIteration as end:
                result: _T = end.value
                return result
            if isinstance(event, Progress):
                event = replace(
                    event,
                    anon_bytes=meter.anon_bytes,
                    bytes_uploaded=event.bytes_uploaded + target.bytes_uploaded,
                    bytes_deduplicated=event.bytes_deduplicated + target.bytes_deduplicated,
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
            except Exception as second:  # whatever it is, the first error says more
                reason = second.message if isinstance(second, ShardingError) else repr(second)
                remark = f"What was begun in {target.ref.repo_id} could not be removed: {reason}"
            if isinstance(error, ShardingError):
                error.hint = f"{error.hint} {remark}".strip()
        raise


def _bytes_to_write(checkpoint: Checkpoint, plan: Plan, kept: Mapping[str, ShardRecord]) -> int:
    shards = [shard for shard in plan.shards if shard.file not in kept]
    side_bytes = sum(file.bytes for file in checkpoint.side_files)
    return sum(len(shard_header(plan, shard)) + shard.bytes for shard in shards) + side_bytes


def _resources(meter: Meter, prepared: Prepared, target: Destination, crew: Crew | None) -> Resources:
    others = crew.spent if crew else Spent()
    return Resources(
        peak_anon_bytes=max(meter.peak_anon_bytes, prepared.peak_anon_bytes, others.peak_anon_bytes),
        seconds=meter.seconds,
        bytes_read=sum(source.bytes_read for source in prepared.sources) + others.bytes_read,
        read_requests=sum(source.requests for source in prepared.sources) + others.read_requests,
        bytes_uploaded=target.bytes_uploaded + others.bytes_uploaded,
        bytes_deduplicated=target.bytes_deduplicated + others.bytes_deduplicated,
        disk_bytes_written=target.disk_bytes_written + prepared.disk_bytes_written,
    )
