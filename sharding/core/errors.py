"""Every error that ends a job without a result: a sentence about the problem, and a hint about what to do."""

import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

_LONGEST = 1000  # Longest message or hint in characters. The names in it can come from anybody and have any length.

RemedyKind = Literal[
    "sign_in", "accept_terms", "make_private", "allow_public_copy", "choose_variant", "choose_dtype", "choose_order",
    "cut_between_layers", "dequantize", "leave_dequantize_out", "allow_overflow", "leave_base_out", "overwrite",
    "discard_unfinished", "leave_comparison_out", "use_classic_engine", "use_stream_engine", "leave_workers_out",
    "read_every_byte", "open_job", "plan_repo", "by_hand",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Remedy:
    """What helps, for programs and front ends with words of their own. `value` is an address whose terms to accept, a
    variant, dtype or order to choose, the id of a job to open, or a repo to plan. Other kinds have ""."""

    kind: RemedyKind
    value: str = ""


def shortened(text: str) -> str:
    """Return `text`; if it is longer than 1000 characters, only its beginning and its end.

    >>> len(shortened("a" * 1_000_000))
    1003
    """
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} … {text[-200:]}"


class ShardingError(Exception):
    """Any error that ends a job without a result. The exit status is 3 unless a subclass has another."""

    exit_status = 3

    def __init__(self, message: str, hint: str = "", remedy: Remedy | None = None) -> None:
        """Keep the problem (one sentence without options), what to do, and the same for programs."""
        # They may contain a name that UTF-8 cannot hold, and front ends must be able to show every error.
        texts = (shortened(text).encode(errors="backslashreplace").decode() for text in (message, hint))
        self.message, self.hint = texts
        self.remedy = remedy
        super().__init__(self.message)

    def document(self) -> dict[str, Any]:
        """Return the error for programs: `kind`, `message`, `hint`, and `remedy`, which is an object or None."""
        remedy = asdict(self.remedy) if self.remedy else None
        return {"kind": type(self).__name__, "message": self.message, "hint": self.hint, "remedy": remedy}


class UsageError(ShardingError):
    """The request itself is wrong, such as a size of "10 apples"."""

    exit_status = 2


class SourceError(ShardingError):
    """The checkpoint cannot be read: it is missing, truncated, corrupt or changes during the job."""


class HeaderError(SourceError):
    """A safetensors header breaks a rule of the format, so no safetensors reader accepts it."""


class DamagedError(SourceError):
    """A file arrived with other bytes than its hash on the Hub says. If that stays, it must be uploaded again."""


class ModelRefused(SourceError):
    """A config.json describes a model that takes too much memory, or far more than the tensors beside it."""


class TooManyTensors(SourceError):
    """A checkpoint has more tensors than the page shows, or than any single model has."""


class WeightsNeeded(SourceError):
    """To plan a merge, the page would have to read more weights than it reads for a visitor."""


class VariantMissing(SourceError):
    """There is no such variant of the weights. `there` are the variants that exist, "" for the plain weights."""

    def __init__(self, message: str, hint: str, there: tuple[str, ...]) -> None:
        super().__init__(message, hint, Remedy("choose_variant", there[0]) if there else None)
        self.there = there


class OverflowRefused(SourceError):
    """A cast would make finite numbers infinite."""


class DestinationError(ShardingError):
    """The result cannot be written to its destination: the place is taken, full or read-only."""


class ReplaceRefused(DestinationError):
    """The destination `place` holds a copy of another model, `there`."""

    def __init__(self, place: str, there: str, source: str) -> None:
        """Name the model whose copy is there, and the model whose copy would replace it."""
        message = f"{place} holds a copy of {there}. A copy of {source} would replace it."
        super().__init__(message, "Choose another name. Or add --overwrite to replace it.", Remedy("overwrite"))
        self.there = there


class Refused(ShardingError):
    """This machine does not take or give up a job: it is busy, the job too large or not yours, or something missing."""


class GrantExpired(ShardingError):
    """The access of a worker to a store has expired, or the store does not accept it. Its part starts again."""


class Fault(ShardingError):
    """A bug in this program. Front ends use it as the last resort for any other exception."""

    def __init__(self, error: BaseException) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
        super().__init__(
            f"This is a bug in the program: {type(error).__name__}{place}: {error}.",
            "Finished work is kept. Please report this message and your request to the people who run this program. "
            "On a Space, use its Community tab.",
        )


def is_lack_of_memory(error: Exception) -> bool:
    """Return whether `error` says that memory ran out."""
    # The words of the C++ library, torch, wrapped errors, the loader of libraries, threads, and CPython itself, which
    # sometimes has no memory left for a MemoryError.
    words = ["bad_alloc", "allocate memory", "MemoryError", "failed to map segment", "can't start new thread"]
    words.append("returned NULL without setting an exception")
    return isinstance(error, MemoryError) or any(word in f"{type(error).__name__}: {error}" for word in words)


def unforeseen(error: Exception) -> ShardingError:
    """Return an error for people about any exception: Refused if memory ran out, else Fault."""
    if is_lack_of_memory(error):
        hint = "Use a machine with more memory, or a model with fewer tensors. Finished work is kept."
        return Refused("This machine does not have enough memory.", hint)
    return Fault(error)


class Cancelled(ShardingError):
    """Somebody stopped the job, and it stopped cleanly. Finished shards are kept."""

    exit_status = 130
