"""Re-shard a checkpoint from start to finish: read headers, plan, transfer, verify, report, publish.

A source is a folder, or `owner/name[@revision][/folder]` on the Hub at `endpoint` (HF_ENDPOINT, if it is None). A
destination is a folder, or `owner/name`. `token` is your login there. With None you are an anonymous visitor. Sizes are
in bytes, and times in seconds.

`shard`, `run`, `compare` and `verify` are generators. They yield events while they work, and their result last. They
work only while you ask for the next event. Nothing here prints. `sharding.cli.show` shows a job with a bar.
"""

import os
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Literal
from weakref import WeakValueDictionary

from sharding.checkpoint.documents import read_base
from sharding.checkpoint.gguf import EVERY
from sharding.checkpoint.read import read_checkpoint, read_inputs
from sharding.checkpoint.trained import compare_with_base
from sharding.core.dtypes import torch_name
from sharding.core.environment import hub_endpoint
from sharding.core.errors import OverflowRefused, Refused, ShardingError, SourceError
from sharding.core.events import Planned, Progress, Published, ShardFinished, Verified
from sharding.core.extras import require
from sharding.core.limits import ARCHITECTURE_SECONDS, DEFAULT_MAX_SHARD_SIZE, MAX_TENSORS, ROUNDS
from sharding.core.meter import Meter
from sharding.core.options import Options as Options
from sharding.core.options import Request as Request
from sharding.core.origin import Place, Role
from sharding.core.protocols import Destination, Discarded, Inputs
from sharding.core.values import Content, Plan, StagedJob
from sharding.drawing.map_svg import save_picture
from sharding.fleet.crew import Crew
from sharding.fleet.ray_workers import ray_workers
from sharding.formats.file_formats import file_bytes
from sharding.loading.classic import prepared_classic
from sharding.loading.compare import compare_loads, compare_staged, refuse_incomparable
from sharding.loading.compare import how_to_load as how_to_load
from sharding.loading.costs import Compared, Probed, middle_run
from sharding.loading.measure import Load
from sharding.model_class.architecture import ask_architecture
from sharding.planning.alike.alike import named_like
from sharding.planning.alike.told import unlike_base
from sharding.planning.dequantize import offering, ordinary
from sharding.planning.devices import DevicePlan, parse_budgets, plan_devices
from sharding.planning.plan import as_read, counted, identify_plan, planned
from sharding.report.comparison import draw_memory
from sharding.report.files import read_card, write_beside
from sharding.report.report import files_written, make_report, resources_of
from sharding.report.schema import Report
from sharding.storage.hub.client import Hub
from sharding.storage.locate import find_destination, open_inputs, open_job
from sharding.storage.names import parse_address
from sharding.transfer.lanes import measured
from sharding.transfer.stream import Prepared, transfer
from sharding.verify.digests import Reader
from sharding.verify.sampled import sampled_ahead, sampling, verify_stated
from sharding.verify.staged import check_kept, compare_with_original, reading_back, verify_staged
from sharding.verify.stated import noting, sources_to_read
from sharding.verify.verify import verify as verify

Event = Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report


def inspect(source: str, *, endpoint: str | None = None, token: str | None = None, **chosen: Any) -> Content:
    """Return the tensors, files and findings of `source`. Reads headers only, and weights if a merge depends on it.

    `chosen` are options of `Options` by name: `variant`, and those that name another input, whose headers count.
    Raises SourceError if `source` is no checkpoint that can be streamed, TooManyTensors, and UsageError.
    """
    options, hub = Options(**chosen), _hub(endpoint, token)
    origin = open_inputs({"model": source, **options.inputs}, hub)
    checkpoint = offering(_read(origin, replace(options, variant=options.variant or EVERY)))
    return _beside_original(checkpoint, origin, source, hub) if origin.ref.is_pinned else checkpoint


def inspect_inputs(
    inputs: Mapping[Role, str],
    variant: str = "",
    most_tensors: int = MAX_TENSORS,
    most_bytes: int | None = None,
    *,
    format: Literal["gguf"] | None = None,
    endpoint: str | None = None,
    token: str | None = None,
) -> Content:
    """Do what `inspect` does with `inputs` by their roles, but read at most so much. Raises also WeightsNeeded."""
    origin = open_inputs(inputs, _hub(endpoint, token))
    return offering(_read(origin, Options(variant=variant, format=format), most_tensors, most_bytes))


def plan(
    source: str,
    options: Options | str = DEFAULT_MAX_SHARD_SIZE,
    *,
    endpoint: str | None = None,
    token: str | None = None,
) -> tuple[Content, Plan]:
    """Return the content of a source and the plan of its copy. Reads no weights and writes nothing.

    `options` say what the copy is like, or just the size of its files ("200MB"). Raises UsageError, SourceError, and
    Refused if an extra is missing.
    """
    options = Options(options) if isinstance(options, str) else options
    request = Request(source, "", options)
    _refuse(request)
    origin = open_inputs(request.inputs, _hub(endpoint, token))
    checkpoint = offering(_read(origin, options))
    plan = planned(checkpoint, options)
    return as_read(checkpoint, plan), plan


def shard(
    source: str,
    destination: str,
    options: Options | str = DEFAULT_MAX_SHARD_SIZE,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    **chosen: Any,
) -> Generator[Event, None, None]:
    """Re-shard a checkpoint.

    `options` say what the copy is like, or just the size of its files ("200MB"). `chosen` are the other options of a
    job, by the names of the fields of `Request`: `private=True` for example.

    Yields events, and the `Report` last. The result is published only if the verification finds it identical. If the
    job ends early (you close the generator, an exception, a kill), the same call goes on from the finished shards.

    Raises UsageError, SourceError, DestinationError, and Refused if an extra is missing or the plan is not `expect`.
    """
    options = Options(options) if isinstance(options, str) else options
    return run(Request(source, destination, options, **chosen), endpoint=endpoint, token=token)


def run(request: Request, *, endpoint: str | None = None, token: str | None = None) -> Generator[Event, None, None]:
    """Do a job as `shard` does, with its source, its destination and all its options in one `request`."""
    job = _run(request, endpoint, token)
    _close_earlier(request.destination)
    if hasattr(sys, "ps1"):  # somebody types at a prompt, or in a notebook
        _AT_PROMPT[os.path.normpath(request.destination)] = job
    return job


_AT_PROMPT: WeakValueDictionary[str, Generator[Event, None, None]] = WeakValueDictionary()
"""The jobs of an interactive session, by their destinations. After an interrupt, a variable of the cell keeps its
generator, which would hold the destination for ever."""


def _close_earlier(destination: str) -> None:
    if earlier := _AT_PROMPT.get(os.path.normpath(destination)):
        with suppress(ValueError):  # another thread is at work on it
            earlier.close()


def _run(request: Request, endpoint: str | None, token: str | None) -> Generator[Event, None, None]:
    _refuse(request)
    hub = _hub(endpoint, token)
    origin, target = open_job(request, hub)
    with Meter() as meter, closing(target), ExitStack() as stack:
        steps = _steps(request, origin, target, meter, hub, stack)
        report = yield from measured(steps, target, meter, hub)
    yield report


def _steps(
    request: Request, origin: Inputs, target: Destination, meter: Meter, hub: Hub, stack: ExitStack
) -> Generator[Event, None, Report]:
    """Do a job between `origin` and `target`. What goes on in other threads or processes ends with `stack`."""
    options, is_stated = request.options, request.proof == "stated"
    crew = Crew(stack.enter_context(ray_workers())) if request.workers else None
    reader = crew or Reader()
    if request.engine == "classic":
        prepared = stack.enter_context(prepared_classic(origin, options))
    else:
        noted = noting(origin.sources)
        checkpoint = _read(origin.through(noted), options)
        plan = planned(checkpoint, options)
        checkpoint = as_read(checkpoint, plan)
        prepared = Prepared(sources_to_read(origin, noted, checkpoint, plan), checkpoint, plan)
    card = read_card(origin)
    checkpoint, plan = prepared.checkpoint, prepared.plan
    checkpoint = replace(
        checkpoint,
        findings=(*checkpoint.findings, *card.findings),
        side_files=tuple(file for file in checkpoint.side_files if file.path not in plan.unfit),
    )
    alone = refuse_incomparable(checkpoint, origin) if request.compare_rounds else ""
    yield Planned(replace(checkpoint, findings=(*checkpoint.findings, *target.findings)), plan)

    plan_id = identify_plan(plan)
    if request.expect and plan_id != request.expect:
        message = f"The plan has the id {plan_id}, but you expect {request.expect}."
        raise Refused(message, "The source or the options have changed. Look at the plan again.")
    if is_stated:
        prepared = replace(prepared, plan=sampling(plan))
    kept = yield from check_kept(target, prepared, plan_id, origin, reader, always=is_stated)
    with _discarded_if_fruitless(target):
        ours = files_written(plan, has_picture=bool(request.compare_rounds))
        theirs = [file.path for file in checkpoint.side_files if file.path not in ours]
        new_bytes = sum(file.bytes for file in checkpoint.side_files)
        new_bytes += sum(file_bytes(plan, shard) for shard in plan.shards if shard.file not in kept)
        target.prepare(StagedJob(plan_id, origin.ref, options), kept.values(), new_bytes, ours, theirs)
        moving = transfer(prepared, target, kept, reader.move)
        arriving = None if crew else target.open_arriving(kept)
        if is_stated:
            ahead = sampled_ahead(prepared.plan, arriving, stack)
            records = yield from moving
            plan = counted(prepared.plan, records)
            verification = verify_stated(replace(prepared, plan=plan), records, ahead, target, meter, len(kept))
        else:
            records, back = yield from reading_back(moving, prepared, origin, arriving, stack)
            plan = counted(plan, records)
            verification = yield from verify_staged(
                replace(prepared, plan=plan), origin, records, back, target, meter, reader, kept
            )
        if request.engine == "classic" and options.dtype == "keep":
            verification = yield from compare_with_original(verification, plan, records, origin)
        yield Verified(verification)

        resources = resources_of(prepared, target, meter, crew.spent if crew else None)
        comparison = None
        if request.compare_rounds and verification.may_be_published:
            comparison = yield from compare_staged(plan, records, origin, target, request.compare_rounds, alone)
        told = prepared.original or checkpoint
        report = make_report(
            replace(told, side_files=checkpoint.side_files, findings=checkpoint.findings),
            *(plan, plan_id, records, verification, resources),
            destination=target.ref,
            engine=request.engine,
            comparison=comparison,
            fleet=crew.cost if crew else None,
        )
        if verification.may_be_published:
            beside = write_beside(report, checkpoint, plan, records, origin, card, hub)
            side_files = [file for file in checkpoint.side_files if file.path not in beside]
            yield target.publish(records, side_files, origin, beside)
        else:
            target.discard()
    return report


def _beside_original(checkpoint: Content, origin: Inputs, source: str, hub: Hub) -> Content:
    """Return `checkpoint`, with a finding if it does not load where the base that it names does."""
    with suppress(ShardingError):  # the base may be a secret, gone, or no model
        if named := read_base(origin):
            base = read_checkpoint(open_inputs({"model": named}, hub))
            findings = (*checkpoint.findings, *unlike_base(checkpoint, base, (source, named)))
            return replace(checkpoint, findings=findings)
    return checkpoint


def devices(
    source: str,
    budget: str,
    *,
    dtype: str = "keep",
    endpoint: str | None = None,
    token: str | None = None,
    limit_seconds: float = ARCHITECTURE_SECONDS,
) -> DevicePlan:
    """Return which block of a model goes on which device. Reads only headers and the configuration.

    `budget` is the memory of each device, such as "cuda:0=16GB,cpu=12GB", or the name of a preset, and `dtype` that of
    the weights in memory. Raises UsageError, SourceError, and Refused, also if transformers takes too long.
    """
    budgets = parse_budgets(budget)
    require("A plan of devices")
    origin = open_inputs({"model": source}, _hub(endpoint, token))
    checkpoint = read_checkpoint(origin)
    if "" not in checkpoint.configs:
        raise SourceError(f"{source} has no config.json, so its model is unknown.", "Give the repo of a model.")
    architecture = ask_architecture(checkpoint, torch_name(dtype), budgets, limit_seconds)
    place = Place("folder", source)
    if origin.ref.is_pinned:
        place = replace(parse_address(source, endpoint or hub_endpoint()), repo_id=origin.ref.repo_id)
    return plan_devices(architecture, checkpoint.tensors, budgets, place, torch_name(dtype))


def compare(
    original: str,
    sharded: str,
    *,
    load: Load | None = None,
    rounds: int = ROUNDS,
    picture: str = "",
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Probed | Progress | Compared, None, None]:
    """Load two checkpoints in turn, each `rounds` times in fresh processes, and compare their time and memory.

    Repos are first downloaded into a temporary folder. `picture` is the path of an SVG file to draw, "" for none.
    Yields progress, every probe, and `Compared` last. Raises UsageError, SourceError, Refused, and DestinationError.
    """
    require("A comparison of loads")
    hub = _hub(endpoint, token)
    sides = open_inputs({"model": original}, hub), open_inputs({"model": sharded}, hub)
    comparison = yield from compare_loads(*sides, load or Load(), rounds)
    if picture and comparison.is_measured:
        curves = (middle_run(costs).curve for costs in (comparison.original, comparison.sharded))
        save_picture(picture, draw_memory(*curves))
    yield Compared(comparison)


def check(request: Request, *, endpoint: str | None = None, token: str | None = None) -> None:
    """Check a request: raise what `run` would raise before it reads a header. Changes nothing."""
    _, target = open_job(replace(request, restart=False), _hub(endpoint, token))
    target.close()


def find_unfinished(destination: str, *, endpoint: str | None = None, token: str | None = None) -> StagedJob | None:
    """Return the unfinished job at `destination`, None if there is none. Raises DestinationError."""
    with closing(find_destination(destination, _hub(endpoint, token))) as target:
        return target.unfinished()


def discard(destination: str, *, endpoint: str | None = None, token: str | None = None) -> Discarded:
    """Remove what an unfinished job left at `destination`, with the repo if it made that. Raises DestinationError."""
    _close_earlier(destination)
    with closing(find_destination(destination, _hub(endpoint, token))) as target:
        return target.discard()


def _read(origin: Inputs, options: Options, most_tensors: int = MAX_TENSORS, most_bytes: int | None = None) -> Content:
    checkpoint = read_inputs(origin, options.variant, most_tensors, most_bytes, options.format)
    base = origin.of("base")
    if base is None or checkpoint.format == "gguf":
        return checkpoint
    trained = read_checkpoint(base, most_tensors=most_tensors)
    after = ordinary(trained)
    return compare_with_base(named_like(checkpoint, trained), trained, after.tensors if after else None)


def _refuse(request: Request) -> None:
    """Raise UsageError for options that contradict each other, and Refused if they need an extra that is missing."""
    request.refuse_contradictions()
    for what, extra in request.extras():
        require(what, extra)


def _hub(endpoint: str | None, token: str | None) -> Hub:
    return Hub(endpoint or hub_endpoint(), token)


@contextmanager
def _discarded_if_fruitless(target: Destination) -> Iterator[None]:
    """Leave nothing behind if a job fails before its first shard is finished, or because of an overflow."""
    try:
        yield
    except BaseException as error:
        if not target.has_finished_shards or isinstance(error, OverflowRefused):
            try:
                remark = target.discard().remark
            except Exception as second:  # any kind of error, because the first one says more
                reason = second.message if isinstance(second, ShardingError) else repr(second)
                remark = f"The unfinished copy in {target.ref.repo_id} could not be removed: {reason}"
            if isinstance(error, ShardingError):
                error.hint = f"{error.hint} {remark}".strip()
        raise
