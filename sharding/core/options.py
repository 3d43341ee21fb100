"""What somebody may choose of a job."""

import re
from typing import Literal, get_args

from sharding.core.errors import UsageError

Dtype = Literal["keep", "fp32", "fp16", "bf16"]

Order = Literal["natural", "stored", "transformers"]

Strategy = str
"""`size`, `blocks`, or `stages:N` with a number of stages."""

_STAGES = re.compile(r"stages:([1-9]\d{0,3})", re.ASCII)


def parse_strategy(strategy: str, order: str) -> int:
    """Return the number of stages, 0 for a strategy without any. Raises UsageError for what is no choice."""
    match = _STAGES.fullmatch(strategy)
    if strategy not in ("size", "blocks") and not match or order not in get_args(Order):
        raise UsageError(
            f"There is no strategy {strategy!r} with order {order!r}.",
            f"Strategies: size, blocks, stages:N. Orders: {', '.join(get_args(Order))}.",
        )
    return int(match[1]) if match else 0
