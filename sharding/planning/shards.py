"""Name the files of a copy, and say which are larger than they should be. Pure."""

from collections.abc import Iterable, Sequence

from sharding.core.protocols import FileFormat
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Component, Finding, Plan, Shard, Tensor


def shards_of(groups: Sequence[Iterable[Tensor]], component: Component, written: FileFormat) -> list[Shard]:
    """Return a named shard for each of `groups`, with its tensors in the order of the file."""
    shards = []
    for number, group in enumerate(groups, start=1):
        suffix = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        tensors = tuple(written.order(group))
        shards.append(Shard(written.name(component, suffix), tensors, sum(tensor.bytes for tensor in tensors)))
    return shards


def oversized(shards: Iterable[Shard], max_shard_bytes: int) -> Iterable[Finding]:
    """Yield a warning for each of `shards` that is larger than the limit, because a tensor is."""
    for shard in (shard for shard in shards if shard.bytes > max_shard_bytes):
        names, size = [tensor.name for tensor in shard.tensors], format_bytes(shard.bytes)
        who, only = f"The tensor {names[0]} ({size}) is", "this tensor"
        if len(names) > 1:
            who = f"The tensors {name_some(names, 1)} ({size}), one piece of memory in transformers, are"
            only = "these tensors"
        message = f"{who} larger than your limit ({format_bytes(max_shard_bytes)}), so {shard.file} holds only {only}."
        hint = f"A tensor is never cut. To keep all files within the limit, choose one above {size}."
        yield Finding("warning", "oversized-tensor", message, hint)


def gathered(plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of a plan for a person: one for all tensors that are larger than the limit."""
    several = [finding for finding in plan.findings if finding.code == "oversized-tensor"]
    if len(several) < 2:
        return plan.findings
    limit = plan.options.max_shard_bytes
    largest = max(shard.bytes for shard in plan.shards)
    message = f"{len(several):,} tensors are larger than your limit ({format_bytes(limit)}), so each gets its own "
    message += f"file. The largest has {format_bytes(largest)}."
    hint = f"A tensor is never cut. For no file above the limit, choose more than {format_bytes(largest)}."
    others = tuple(finding for finding in plan.findings if finding.code != "oversized-tensor")
    return (Finding("warning", "oversized-tensor", message, hint), *others)
