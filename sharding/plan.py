"""Decide which shard holds which tensor. Touches no files."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, get_args

from huggingface_hub import split_state_dict_into_shards_factory

from sharding.errors import UsageError
from sharding.layout import build_header, in_file_order
from sharding.limits import format_bytes
from sharding.values import Component, Finding, Plan, RepoRef, Shard, TensorEntry, folder_of

Strategy = Literal["size"]
Order = Literal["natural", "stored"]

_LONGEST_NUMBER = 18
"""Digits of a name read as a number; no layer has a longer one, and Python refuses to read some that do."""


def plan_components(
    components: Iterable[Component],
    tensors: Iterable[TensorEntry],
    max_shard_bytes: int,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
) -> Plan:
    """Return the plan that cuts each of `components` by itself; every tensor is of the one in its file's folder."""
    parts = tuple(components)
    inside: dict[str, list[TensorEntry]] = {part.folder: [] for part in parts}
    for tensor in tensors:
        inside[folder_of(tensor.file)].append(tensor)
    plans = [plan_shards(inside[part.folder], max_shard_bytes, part, strategy=strategy, order=order) for part in parts]
    return Plan(
        shards=tuple(shard for plan in plans for shard in plan.shards),
        components=tuple(part for plan in plans for part in plan.components),
        total_bytes=sum(plan.total_bytes for plan in plans),
        total_parameters=sum(plan.total_parameters for plan in plans),
        max_shard_bytes=max_shard_bytes,
        strategy=strategy,
        order=order,
        findings=tuple(finding for plan in plans for finding in plan.findings),
    )


def plan_shards(
    tensors: Iterable[TensorEntry],
    max_shard_bytes: int,
    component: Component | None = None,
    *,
    strategy: Strategy = "size",
    order: Order = "natural",
) -> Plan:
    """Return the plan that puts each of `tensors` into exactly one shard of at most `max_shard_bytes`.

    Order `natural` (layer 2 before layer 10) gives the files that `from_pretrained` followed by
    `save_pretrained` writes (transformers 5.23, `core_model_loading.dot_natural_key`); `stored` takes the
    tensors as they come and gives those of `huggingface_hub.save_torch_state_dict`. The cut is the Hub's
    own: greedy in that order, and a tensor larger than the limit alone in a shard, with a finding.

    `component` says what the shards are called (None: `model`), and whether there may be more than one.

    >>> layers = [TensorEntry(f"layer.{n}", "U8", (6,), "f", 6 * n, 6 * n + 6) for n in (0, 10, 2)]
    >>> [[tensor.name for tensor in shard.tensors] for shard in plan_shards(layers, 12).shards]
    [['layer.0', 'layer.2'], ['layer.10']]
    """
    if strategy not in get_args(Strategy) or order not in get_args(Order):
        raise UsageError(
            f"There is no strategy {strategy!r} with order {order!r}.",
            f"Strategies: {', '.join(get_args(Strategy))}. Orders: {', '.join(get_args(Order))}.",
        )
    part = component or Component()
    queue = list(tensors)
    if order == "natural":
        queue.sort(key=lambda tensor: natural_key(tensor.name.removeprefix(part.folder)))
    by_name = {tensor.name: tensor for tensor in queue}
    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: tensor.bytes,
        filename_pattern="{suffix}",
        max_shard_size=sum(tensor.bytes for tensor in queue) if part.is_whole else max_shard_bytes,
    )
    shards = []
    for suffix, names in split.filename_to_tensors.items():
        entries = in_file_order(by_name[name] for name in names)
        shards.append(Shard(part.file(suffix), tuple(entries), sum(tensor.bytes for tensor in entries)))
    counted = sum(tensor.parameters for tensor in queue) if part.total_parameters is None else part.total_parameters
    return Plan(
        shards=tuple(shards),
        components=(replace(part, total_parameters=counted),),
        total_bytes=split.metadata["total_size"],
        total_parameters=counted,
        max_shard_bytes=max_shard_bytes,
        strategy=strategy,
        order=order,
        findings=() if part.is_whole else tuple(_oversized(shards, max_shard_bytes)),
    )


def natural_key(name: str) -> str:
    """Return the key that sorts tensor names as people count: numbers by value, and before words.

    The order is that of transformers' `dot_natural_key` for every name that it can read; a text instead of
    a list of tuples, because a hundred thousand of them are held at once.

    >>> sorted(["h.10.w", "h.2.w", "h.norm"], key=natural_key)
    ['h.2.w', 'h.10.w', 'h.norm']
    """
    return "".join(map(_key_of_part, name.split(".")))


@lru_cache(maxsize=1 << 14)  # names are made of few parts
def _key_of_part(part: str) -> str:
    word = part.rstrip("0123456789")
    digits = part[len(word) :]
    if part.isdecimal() and len(part) <= _LONGEST_NUMBER:
        return f"\1{_by_value(part)}"
    if digits and len(digits) <= _LONGEST_NUMBER:
        return f"\2{word}\0\3{_by_value(digits)}"
    return f"\2{part}\0"


def _by_value(digits: str) -> str:
    # A longer number is a larger one.
    number = str(int(digits))
    return chr(len(number)) + number


def shard_header(plan: Plan, shard: Shard) -> bytes:
    """Return the first bytes of `shard`: length and header, after which its tensors follow without a gap."""
    return build_header(shard.tensors, plan.component(shard).metadata, shard.folder)


def build_indexes(plan: Plan) -> dict[str, bytes]:
    """Return the index files of `plan` by path, byte for byte as `save_pretrained` of transformers 5.23 writes them."""
    needed = [part for part in plan.components if part.index in plan.indexes]
    return {
        part.index: _build_index(part, [shard for shard in plan.shards if shard.folder == part.folder])
        for part in needed
    }


def _build_index(part: Component, shards: Iterable[Shard]) -> bytes:
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for shard in shards:
        file = shard.file.removeprefix(part.folder)
        weight_map |= {tensor.name.removeprefix(part.folder): file for tensor in shard.tensors}
        total_bytes += shard.bytes
    metadata = {"total_parameters": part.total_parameters, "total_size": total_bytes}
    return json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True).encode() + b"\n"


def identify_plan(plan: Plan, source: RepoRef) -> str:
    """Return a digest of `plan` and the state of its source: equal means that the results are equal, byte for byte."""
    sha256 = hashlib.sha256(repr((source.kind, source.repo_id, source.revision)).encode())
    for shard in plan.shards:
        sha256.update(shard.file.encode() + shard_header(plan, shard))
    return sha256.hexdigest()


def _oversized(shards: Iterable[Shard], max_shard_bytes: int) -> Iterable[Finding]:
    for shard in shards:
        if shard.bytes > max_shard_bytes:
            yield Finding(
                "warning",
                "oversized-tensor",
                f"{shard.tensors[0].name} has {format_bytes(shard.bytes)}, more than a shard may have "
                f"({format_bytes(max_shard_bytes)}); it gets {shard.file} to itself.",
                "A tensor is never cut. Choose a larger shard size if the file must stay below it.",
            )
