"""Say what went wrong in one sentence a visitor understands, with a hint that says what to do.

ShardingError                 the family; `str(error)` is the sentence, `error.hint` what to do
├── UsageError                the words of the request are wrong (a size such as "10 apples"); exit status 2
├── SourceError               the checkpoint cannot be read: missing, truncated, corrupt, changed meanwhile
│   ├── HeaderError           a safetensors header that the safetensors reader would refuse as well
│   ├── DamagedError          a file arrived with other bytes than the hash of it says
│   ├── ModelRefused          transformers is not asked further what a config.json describes: it costs too much
│   ├── TooManyTensors        more tensors than whoever asks can show, or than any one model has
│   ├── VariantMissing        there is no such variant of the weights, or there are several and no plain one
│   └── OverflowRefused       a cast would make finite numbers infinite, and nobody said that it may
├── DestinationError          the result cannot be written: occupied, no room, read-only
│   └── ReplaceRefused        another model's copy stands there, and nobody said that it may go
├── Refused                   this machine does not take the job: it is busy, the job too large or somebody else's,
│                             or an extra of this package missing
├── GrantExpired              what a worker was granted has ended before its part was done: it is asked anew
├── Fault                     a fault of this program itself, which nobody foresaw
└── Cancelled                 somebody asked to stop; what is finished stays and is resumed; exit status 130

Expected outcomes are not in this tree: a tensor that differs is a `values.Mismatch`, and an oversized
tensor is a `values.Finding`.
"""

import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_LONGEST = 1000
"""Characters of a sentence: what it names may come from anybody, and be of any length."""


RemedyKind = Literal[
    "sign_in",
    "accept_terms",
    "make_private",
    "allow_public_copy",
    "choose_variant",
    "choose_dtype",
    "choose_order",
    "cut_between_layers",
    "dequantize",
    "leave_dequantize_out",
    "allow_overflow",
    "leave_base_out",
    "overwrite",
    "discard_unfinished",
    "leave_comparison_out",
    "use_classic_engine",
    "use_stream_engine",
    "leave_workers_out",
    "read_every_byte",
]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps, for programs and front ends that word it themselves.

    `value` is the address whose terms to accept, or the variant, dtype or order to choose; "" for all other kinds.
    """

    kind: RemedyKind
    value: str = ""


def shortened(text: str) -> str:
    """Return `text`, or its beginning and end where it is longer than a sentence.

    >>> len(shortened("a" * 1_000_000))
    1003
    """
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} … {text[-200:]}"


class ShardingError(Exception):
    """Anything that ends a job without a result. Exit status 3 unless a member says otherwise."""

    exit_status = 3

    def __init__(self, message: str, hint: str = "", remedy: Remedy | None = None) -> None:
        """Keep `message`, one sentence about what happened, `hint`, on what helps, and `remedy`, the same for programs.

        A message names no option of the command line. A sentence of a hint that names one says nothing else.
        """
        # A name in them may be one that UTF-8 cannot hold, and whoever shows an error must be able to.
        self.message, self.hint = (
            shortened(text).encode(errors="backslashreplace").decode() for text in (message, hint)
        )
        self.remedy = remedy
        super().__init__(self.message)

    def document(self) -> dict[str, Any]:
        """Return what programs read of it: `kind`, `message`, `hint`, and `remedy`, an object or None."""
        remedy = asdict(self.remedy) if self.remedy else None
        return {"kind": type(self).__name__, "message": self.message, "hint": self.hint, "remedy": remedy}


class UsageError(ShardingError):
    """The request itself is malformed."""

    exit_status = 2


class SourceError(ShardingError):
    """The checkpoint cannot be read as it should."""


class HeaderError(SourceError):
    """A safetensors header breaks a rule of the format."""


class DamagedError(SourceError):
    """A file did not arrive as it is said to be."""


class ModelRefused(SourceError):
    """What a config.json describes takes more than anybody gives to be asked about: the same question ends so again."""


class TooManyTensors(SourceError):
    """There are more tensors in a checkpoint than whoever asks takes."""


class VariantMissing(SourceError):
    """There is no such variant of the weights; `there` are those that there are, "" for the plain weights."""

    def __init__(self, message: str, hint: str, there: tuple[str, ...]) -> None:
        """Keep what can be asked for instead."""
        super().__init__(message, hint, Remedy("choose_variant", there[0]) if there else None)
        self.there = there


class OverflowRefused(SourceError):
    """A cast would make finite numbers infinite."""


class DestinationError(ShardingError):
    """The result cannot be written where it was asked for."""


class ReplaceRefused(DestinationError):
    """A result stands at `place` that is a copy of another model, `there`."""

    def __init__(self, place: str, there: str, source: str) -> None:
        """Say which copy would be replaced by that of which."""
        super().__init__(
            f"{place} holds a copy of {there}, which a copy of {source} would replace.",
            "Choose another name. Or add --overwrite to replace it.",
            Remedy("overwrite"),
        )
        self.there = there


class Refused(ShardingError):
    """The desk does not take a job or let go of one, or this machine lacks a library for it."""


class GrantExpired(ShardingError):
    """The access to a store that a worker was granted has ended, or is not accepted."""


class Fault(ShardingError):
    """Something that nobody foresaw: a mistake in this program. The last resort of whoever shows errors to people."""

    def __init__(self, error: BaseException) -> None:
        """Say what happened and where, for whoever mends it."""
        frames = traceback.extract_tb(error.__traceback__)
        place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        super().__init__(
            f"This is a fault of the program: {type(error).__name__}{place}: {error}.",
            "What is finished is kept. Please report these words, and what you asked for, to whoever gave you this "
            "program: on a Space, in its Community tab.",
        )


_LACKS = ("bad_alloc", "allocate memory", "MemoryError", "failed to map segment", "can't start new thread")
"""What torch, the C++ library, wrapped errors, the loader of libraries and threads say where there is no memory."""


def is_lack_of_memory(error: Exception) -> bool:
    """Return whether `error` says, in whatever words, that there is no memory left."""
    return isinstance(error, MemoryError) or any(word in f"{type(error).__name__}: {error}" for word in _LACKS)


def unforeseen(error: Exception) -> ShardingError:
    """Return what is said of `error`, which nobody has put into words: a lack of memory, or a fault of the program."""
    if is_lack_of_memory(error):
        hint = "Give it more memory, or take a model with fewer tensors. What is finished is kept."
        return Refused("This machine has not enough memory for it.", hint)
    return Fault(error)


class Cancelled(ShardingError):
    """The job was told to stop and stopped cleanly."""

    exit_status = 130
