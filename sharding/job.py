"""The whole path, in order: source, headers, plan, transfer, verification, report, publishing.

Nothing here prints. `shard` and `verify` are generators: they yield events as things happen, their result
last, and they work only while somebody asks for the next event. A source is a folder or `owner/name` on the
Hub at `endpoint`, seen with `token`; a destination likewise.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from sharding import __version__
from sharding.architecture import ask_architecture
from sharding.card import Links
from sharding.checkout import loadable_files
from sharding.comparison import compare_loads
from sharding.costs import Comparison
from sharding.devices import DevicePlan, parse_budgets, plan_devices
from sharding.engines import Prepared, prepared_classic
from sharding.errors import DestinationError, ShardingError, SourceError, UsageError
from sharding.events import Compared, Planned, Probed, Progress, Published, ShardFinished, Verified
from sharding.files import CARD_NAME, DIGESTS_NAME, INDEX_NAME, is_weights
from sharding.headers import read_checkpoint, read_headers, read_small
from sharding.hub import Hub
from sharding.limits import (
    DEFAULT_MAX_SHARD_SIZE,
    MAX_CARD_BYTES,
    MAX_CONFIG_BYTES,
    MAX_REPORT_BYTES,
    ROUNDS,
    hub_endpoint,
    parse_bytes,
    result_page,
)
from sharding.measure import DTYPES, Load, Method, free_memory_bytes
from sharding.meter import Meter
from sharding.picture import draw_memory
from sharding.places import find_destination, open_destination, open_source, open_staged
from sharding.plan import Order, Strategy, build_index, identify_plan, plan_shards, shard_header
from sharding.protocols import Destination, Source
from sharding.report import Engine, Report, parse_digests, to_bytes
from sharding.result import files_beside
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
from sharding.verify import check_structure, digest_files, digest_tensors, expected_digests
from sharding.verify import compare as compare_digests

_T = TypeVar("_T")

Event = Planned | Progress | ShardFinished | Verified | Probed | Compared | Published | Report


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
    engine: Engine = "stream",
    dtype: str = "keep",
    compare_rounds: int = 0,
    endpoint: str | None = None,
    token: str | None = None,
) -> Generator[Event, None, None]:
    """Re-shard `source` into `destination`; yield events, the `Report` last.

    The result is published only if the verification finds it identical; the report says which. Closing
    the generator, an exception or a kill keep the shards that are finished, and the same call goes on
    from them. `private` is the visibility of a new repo (None: as the source; private for a folder), and
    `confirmed` that a copy of a gated or private source may be public. `overwrite` replaces a checkpoint in
    a folder that this tool did not write, `restart` discards what an earlier run left. `engine` "classic"
    loads the whole model and saves it again, as `dtype` ("keep", "fp32", "fp16", "bf16"). `compare_rounds` is how
    often original and result are each loaded before the result is published, for the report and the card.
    Raises UsageError, SourceError, DestinationError.
    """
    if engine == "stream" and dtype != "keep":
        raise UsageError("The stream engine keeps every bit.", "Add --engine classic to cast while loading.")
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
    with Meter() as meter, closing(target), ExitStack() as stack:
        if engine == "classic":
            saved = prepared_classic(origin, parse_bytes(max_shard_size), DTYPES[dtype], hub)
            prepared = stack.enter_context(saved)
        else:
            checkpoint = read_checkpoint(origin)
            plan = plan_checkpoint(checkpoint, max_shard_size, strategy=strategy, order=order)
            prepared = Prepared(origin, checkpoint, plan)
        checkpoint, plan = prepared.checkpoint, prepared.plan
        yield Planned(checkpoint, plan)

        plan_id = identify_plan(plan, prepared.reading.ref)
        kept = yield from _measured(_check_kept(target, plan_id, hub), target, meter)
        with _discarded_if_fruitless(target):
            job = StagedJob(plan_id, origin.ref, plan.max_shard_bytes, strategy, order)
            target.prepare(job, kept.values(), _bytes_to_write(checkpoint, plan, kept))
            records = yield from _measured(transfer(plan, prepared.reading, target, kept), target, meter)
            staged = _verify_staged(plan, records, target, hub, meter)
            verification = yield from _measured(staged, target, meter)
            if engine == "classic" and dtype == "keep":
                verification = yield from _compare_with_original(verification, plan, records, origin)
            yield Verified(verification)

            cost = _resources(meter, prepared, target)
            now = datetime.now(UTC)
            report = Report(
                checkpoint, target.ref, plan, plan_id, records, verification, cost, now, __version__, engine
            )
            if verification.identical:
                if compare_rounds:
                    found = yield from _compare_staged(plan, records, origin, target, compare_rounds, hub)
                    report = replace(report, comparison=found)
                beside = _beside(report, origin, hub) | _configured(origin, DTYPES[dtype])
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
    yield Verified(
        Verification(len(digests[0]), checkpoint.total_bytes, meter.seconds, method, compare_digests(*digests))
    )


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


def how_to_load(
    method: Method = "from_pretrained", dtype: str = "keep", memory_limit: str = "", *, with_mapping: bool = True
) -> Load:
    """Return how probes load; `dtype` is "keep", "fp32", "fp16" or "bf16", `memory_limit` a size or "" for none.

    With offload half the memory is for weights. Raises UsageError for a limit that is no size.
    """
    limit = parse_bytes(memory_limit) if memory_limit else None
    room = (limit or free_memory_bytes()) // 2 if method == "offload" else None
    return Load(method, DTYPES[dtype], with_mapping, limit, room)


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
    (SVG). Raises UsageError, SourceError.
    """
    hub = Hub(endpoint or hub_endpoint(), token)
    comparison = yield from compare_loads(
        open_source(original, hub), open_source(sharded, hub), load or Load(), rounds, hub
    )
    if picture and comparison.is_measured:
        Path(picture).write_text(draw_memory(comparison), encoding="utf-8")
    yield Compared(comparison)


def devices(
    source: str, budget: str, *, dtype: str = "keep", endpoint: str | None = None, token: str | None = None
) -> DevicePlan:
    """Return which block of `source` goes on which device for `budget` ("cuda:0=16GB,cpu=12GB", or a preset).

    Reads headers and the configuration only. Raises UsageError, SourceError.
    """
    budgets = parse_budgets(budget)
    origin = open_source(source, Hub(endpoint or hub_endpoint(), token))
    config = next((file for file in origin.files if file.path == "config.json"), None)
    if config is None:
        raise SourceError(f"{source} has no config.json, which says what model it is.", "Give the repo of a model.")
    tensors = read_checkpoint(origin).tensors
    architecture = ask_architecture(read_small(origin, config, MAX_CONFIG_BYTES), DTYPES[dtype], budgets)
    return plan_devices(architecture, tensors, budgets, source, DTYPES[dtype])


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
        problems.extend(compare_digests(expected_digests(plan.shards, records), found))
    structure = "structure by safetensors, " if any(staged.path(file) for file in records) else ""
    method = f"read again: {structure}headers and the SHA-256 of every tensor compared with the source's"
    return Verification(len(found), plan.total_bytes, meter.seconds - started, method, tuple(problems))


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


def _compare_with_original(
    verification: Verification, plan: Plan, records: Mapping[str, ShardRecord], origin: Source
) -> Generator[Progress, None, Verification]:
    """Return `verification` with what loading and saving has changed; a source that is no safetensors is passed over.

    Names that stood for the same bytes as another that is kept were tied: leaving them out changes nothing.
    """
    if not any(file.path.endswith(".safetensors") for file in loadable_files(origin.files)):
        return verification
    found = expected_digests(plan.shards, records)
    original = yield from digest_tensors(origin, read_checkpoint(origin).tensors)
    kept = {digest.sha256 for digest in found.values()}
    missing = {name for name, digest in original.items() if name not in found and digest.sha256 in kept}
    wanted = {name: digest for name, digest in original.items() if name not in missing}
    method = f"{verification.method}; and every tensor with the original's"
    return replace(verification, method=method, mismatches=verification.mismatches + compare_digests(wanted, found))


def _configured(origin: Source, dtype: str | None) -> dict[str, bytes]:
    """Return the configuration of a copy that was cast: it says the dtype that is stored now."""
    config = next((file for file in origin.files if file.path == "config.json"), None)
    if dtype is None or config is None:
        return {}
    document = json.loads(read_small(origin, config, MAX_CONFIG_BYTES))
    document.pop("torch_dtype", None)
    return {config.path: to_bytes({**document, "dtype": dtype})}


def _beside(report: Report, origin: Source, hub: Hub) -> dict[str, bytes]:
    """Return the files that this tool writes beside the shards."""
    card = next((file for file in origin.files if file.path == CARD_NAME and file.bytes <= MAX_CARD_BYTES), None)
    text = read_small(origin, card, MAX_CARD_BYTES).decode(errors="replace") if card else ""
    page = hub.page(origin.ref.repo_id) if origin.ref.kind == "hub" else None
    links = Links(page, result_page(report.destination.repo_id) if report.destination.kind == "hub" else None)
    files = files_beside(report, text, links, is_private=bool(origin.is_private))
    if report.destination.kind == "hub":
        text_of_card = files[CARD_NAME].decode()
        keeps = hub.ask(report.destination.repo_id, DestinationError, lambda: hub.takes_card(text_of_card))
        files = files_beside(report, text, links, is_private=bool(origin.is_private), keeps_metadata=keeps)
    return files


def _compare_staged(
    plan: Plan, records: Mapping[str, ShardRecord], origin: Source, target: Destination, rounds: int, hub: Hub
) -> Generator[Probed | Compared, None, Comparison]:
    """Load the original and the result, which is not published yet, in turn."""
    beside = [file for file in loadable_files(origin.files) if not is_weights(file.path)]
    written = {file.path: read_small(origin, file, file.bytes) for file in beside}
    if plan.is_sharded:
        written[INDEX_NAME] = build_index(plan)
    staged = open_staged(target, list(records), hub)
    comparison = yield from compare_loads(origin, staged, Load(), rounds, hub, written)
    yield Compared(comparison)
    return comparison


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
