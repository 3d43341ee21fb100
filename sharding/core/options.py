"""What somebody may choose of a copy, checked as soon as it is chosen. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from sharding.core.errors import UsageError
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE
from sharding.core.text import nearest, parse_bytes

Strategy = str
"""`size`, `blocks`, or `pp:N` with a number of ranks."""

Order = Literal["natural", "stored", "transformers"]
TargetDtype = Literal["keep", "fp32", "fp16", "bf16"]
Engine = Literal["stream", "classic"]
WorkersOf = Literal["ray"]
"""What runs a job on many machines."""

SINGLE_FILE = "single-file"
"""In the place of a size: one file, however large."""

_LARGEST_BYTES = 2**63 - 1
_STRATEGY = re.compile(r"size|blocks|pp:(?P<ranks>[2-9]|[1-9]\d{1,3})", re.ASCII)
_STRATEGIES = ("size", "blocks", "pp:N")
_ALSO_CALLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""What torch calls our dtypes."""
_Choice = TypeVar("_Choice", bound=str)


def chosen(what: str, choice: _Choice, choices: Sequence[str]) -> _Choice:
    """Return `choice`, which is one of `choices` of a `what`. Raises UsageError, which names the nearest of them.

    >>> chosen("dtype", "bf16", ["fp16", "bf16"])
    'bf16'
    """
    if choice not in choices:
        raise _no_such(what, choice, choices)
    return choice


def _no_such(what: str, choice: str, choices: Sequence[str], more: str = "") -> UsageError:
    meant = _ALSO_CALLED.get(str(choice).lower(), "")
    meant = meant if meant in choices else nearest(str(choice), choices)
    guess = f"Did you mean {meant}? " if meant else ""
    return UsageError(f"There is no {what} {choice!r}.", f"{guess}Choose from {', '.join(choices)}.{more}")


@dataclass(frozen=True, slots=True)
class Options:
    """What a copy shall be like: the same options and the same source give the same files, byte for byte.

    `max_shard_size` is a size such as "200MB", a number of bytes, or SINGLE_FILE. `strategy` says where to cut,
    `order` in which order tensors stand, `dtype` what they are cast to ("keep": not at all). `variant` is such as
    "fp16", where a repo has several; "" takes the plain weights. A cast that makes a finite number infinite is refused,
    unless `allow_overflow`. `rank` takes only what that rank of a pipeline `pp:N` loads, from 0. `base` is the model
    that was trained, a folder or a repo: what a training run has saved has no configuration beside it. With
    `dequantize` quantized weights become ordinary ones of `dtype`, and "keep" becomes "bf16". Raises UsageError for
    what is no choice.

    >>> options = Options("200MB", strategy="pp:4")
    >>> options.max_shard_bytes, options.ranks
    (200000000, 4)
    """

    max_shard_size: str | int = DEFAULT_MAX_SHARD_SIZE
    strategy: Strategy = "size"
    order: Order = "natural"
    dtype: TargetDtype = "keep"
    variant: str = ""
    allow_overflow: bool = False
    rank: int | None = None
    base: str = ""
    dequantize: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        if self.dequantize and self.dtype == "keep":
            object.__setattr__(self, "dtype", "bf16")
        if self.strategy.startswith("stage"):
            raise UsageError(
                "The strategy stages:N is gone: nothing loads such files as stages.",
                "Choose pp:N, which transformers loads as a pipeline of N ranks, or blocks.",
            )
        if not self.is_single_file:
            parse_bytes(str(self.max_shard_size))
        elif self.strategy != "size":
            raise UsageError("A single file is not cut.", "Leave out the strategy, or give a size.")
        if not _STRATEGY.fullmatch(self.strategy):
            raise _no_such("strategy", self.strategy, _STRATEGIES, " N is 2 or more.")
        chosen("order", self.order, get_args(Order))
        chosen("dtype", self.dtype, get_args(TargetDtype))
        if self.rank is not None and not 0 <= self.rank < self.ranks:
            range_text = f"one of {self.ranks} from 0 to {self.ranks - 1}" if self.ranks else "one of a pipeline pp:N"
            raise UsageError(f"There is no rank {self.rank}.", f"A rank is {range_text}.")

    @property
    def is_single_file(self) -> bool:
        """Whether everything that is loaded together stands in one file."""
        return self.max_shard_size == SINGLE_FILE

    @property
    def max_shard_bytes(self) -> int:
        """The largest size of a shard, its header not counted; for a single file the largest that a file can have."""
        return _LARGEST_BYTES if self.is_single_file else parse_bytes(str(self.max_shard_size))

    @property
    def ranks(self) -> int:
        """Number of ranks of transformers' pipeline, its `pp_size`; 0 for a strategy without any."""
        match = _STRATEGY.fullmatch(self.strategy)
        return int(match["ranks"] or 0) if match else 0

    @property
    def asks_class(self) -> bool:
        """Whether a plan needs to know what transformers knows of the model."""
        return (self.strategy, self.dtype) != ("size", "keep") or self.order == "transformers"

    @property
    def asks_library(self) -> bool:
        """Whether transformers itself must be asked, which the table in this package cannot answer for."""
        return bool(self.ranks) or self.order == "transformers"
