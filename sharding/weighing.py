"""Weigh a checkpoint: what loading it costs, and on which devices it fits."""

from collections.abc import Generator, Mapping
from pathlib import Path

from sharding.architecture import ask_architecture
from sharding.checkout import loadable_files
from sharding.comparison import compare_loads
from sharding.costs import Comparison
from sharding.devices import DevicePlan, parse_budgets, plan_devices
from sharding.errors import SourceError, UsageError
from sharding.events import Compared, Probed
from sharding.files import is_weights, name_some
from sharding.headers import read_checkpoint, read_small
from sharding.hub import Hub
from sharding.limits import MAX_CONFIG_BYTES, ROUNDS, hub_endpoint, parse_bytes
from sharding.measure import DTYPES, Load, Method, free_memory_bytes
from sharding.picture import draw_memory
from sharding.places import open_source, open_staged
from sharding.plan import build_indexes
from sharding.protocols import Destination, Source
from sharding.values import Checkpoint, Plan, ShardRecord


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
    name = origin.ref.repo_id if origin.ref.kind == "hub" else source
    return plan_devices(architecture, tensors, budgets, name, DTYPES[dtype])


def refuse_incomparable(checkpoint: Checkpoint, origin: Source) -> None:
    """Raise UsageError where the probes, which load with transformers, cannot load `checkpoint`, that of `origin`."""
    if not checkpoint.is_plain_model:
        what = f"the variant {checkpoint.variant}" if checkpoint.variant else f"for {checkpoint.library}"
        raise UsageError(f"{checkpoint.source.repo_id} is {what}, which --compare cannot load.", "Leave --compare out.")
    try:
        loadable_files(origin)
    except SourceError as error:
        names = name_some([file.path for file in checkpoint.weight_files])
        message = f"{names}: transformers does not look for weights there, so --compare cannot load the original."
        raise UsageError(message, "Leave --compare out; the copy has the names that it looks for.") from error


def compare_staged(
    plan: Plan,
    records: Mapping[str, ShardRecord],
    origin: Source,
    target: Destination,
    rounds: int,
    hub: Hub,
    configs: Mapping[str, bytes],
) -> Generator[Probed | Compared, None, Comparison]:
    """Load the original and the result, which is not published yet and has its own `configs`, in turn."""
    beside = [file for file in loadable_files(origin) if not is_weights(file.path)]
    written = {file.path: read_small(origin, file, file.bytes) for file in beside} | build_indexes(plan)
    written |= {path: text for path, text in configs.items() if path in written}
    staged = open_staged(target, list(records), hub)
    load = Load(dtype=DTYPES[plan.dtype])
    comparison = yield from compare_loads(origin, staged, load, rounds, hub, written, plan.max_shard_bytes)
    yield Compared(comparison)
    return comparison
