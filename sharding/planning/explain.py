"""Explain how the tensors of a plan are made. Pure."""

from fnmatch import fnmatchcase

from sharding.core.errors import UsageError
from sharding.core.values import Plan, Tensor


def sentence(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor, and how it is made.

    >>> from sharding.recipes.cast import Cast
    >>> from sharding.recipes.stored import Stored
    >>> sentence(Tensor("w", "BF16", (3,), Cast(Stored(0, "f", 8, 20), "F32", "BF16")))
    'BF16 [3] = cast(F32 [3], f bytes 8–20)'
    """
    return f"{tensor.dtype} {list(tensor.shape)} = {tensor.recipe.words(tensor.shape)}"


def explained(plan: Plan, pattern: str) -> dict[str, str]:
    """Return tensor name to sentence for the names that match `pattern`, such as "*.q_proj.*", in the plan's order.

    Raises UsageError if no name matches.
    """
    matches = {tensor.name: sentence(tensor) for tensor in plan.tensors if fnmatchcase(tensor.name, pattern)}
    if not matches:
        example = plan.shards[0].tensors[0].name
        raise UsageError(f"No tensor of the plan matches {pattern!r}.", f"A name is, for example, {example}. Try '*'.")
    return matches
