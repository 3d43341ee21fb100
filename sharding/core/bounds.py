"""What a number, a text or a name may be where it comes from somebody else: pydantic checks these, nothing else does.

Values are annotated with them, so that whoever reads one from JSON says no more than its class. They hold for all that
this tool writes itself: names of a source's files and tensors are as others chose them.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from sharding.core.limits import MAX_FILES

Count = Annotated[int, Field(ge=0, lt=2**63)]
Amount = Count | Annotated[float, Field(ge=0, lt=2**63, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]

Word = Annotated[str, StringConstraints(max_length=300)]
Line = Annotated[str, StringConstraints(max_length=2000)]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z.+]{1,40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Blake3 = Sha256
"""As long, and as hard to forge."""

_PART = r"[^./\\<>\p{Cc}][^/\\<>\p{Cc}]*"
File = Annotated[str, StringConstraints(pattern=rf"^({_PART}/)*{_PART}$", max_length=1000)]
"""A path inside a repo that leads nowhere else."""

Files = Annotated[tuple[File, ...], Field(min_length=1, max_length=MAX_FILES)]

Layers = Annotated[tuple[tuple[Count, Count], ...], Field(min_length=2, max_length=MAX_FILES)]
"""Which of them belongs to whom: `[start, end)` for each."""
