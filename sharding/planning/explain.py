"""Say in words what a plan does. Pure."""

from fnmatch import fnmatchcase

from sharding.core.errors import UsageError
from sharding.core.text import format_bytes
from sharding.core.values import Finding, Plan, Tensor


def sentence(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor, and how it is made.

    >>> from sharding.recipes.cast import Cast
    >>> from sharding.recipes.stored import Stored
    >>> sentence(Tensor("w", "BF16", (3,), Cast(Stored(0, "f", 8, 20), "F32", "BF16")))
    'BF16 [3] = cast(F32 [3], f bytes 8–20)'
    """
    return f"{tensor.dtype} {list(tensor.shape)} = {tensor.recipe.words(tensor.shape)}"


def explained(plan: Plan, pattern: str) -> dict[str, str]:
    """Return tensor name to sentence for the names that match `pattern`. Raises UsageError for none."""
    matches = {tensor.name: sentence(tensor) for tensor in plan.tensors if fnmatchcase(tensor.name, pattern)}
    for number, place in enumerate(plan.sources[1:], start=1):
        matches = {name: text.replace(f" of source {number} ", f" of {place.name} ") for name, text in matches.items()}
    if not matches:
        example = plan.shards[0].tensors[0].name
        raise UsageError(f"No tensor of the plan matches {pattern!r}.", f"A name is, for example, {example}. Try '*'.")
    return matches


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
