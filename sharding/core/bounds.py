"""Types that pydantic checks in data from outside: the allowed numbers, texts and names."""

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
"""The hash of a tensor: as hard to forge as a SHA-256, by which the Hub knows files, and several times as fast."""

_PART = r"[^./\\<>\p{Cc}][^/\\<>\p{Cc}]*"
File = Annotated[str, StringConstraints(pattern=rf"^({_PART}/)*{_PART}$", max_length=1000)]
"""A path inside a repo that leads nowhere else."""

Folder = Annotated[str, StringConstraints(pattern=rf"^({_PART}/)*$", max_length=1000)]
"""A folder inside a repo: "" for all of the repo, or ending in "/"."""

OptionalFolder = Annotated[Folder, Field(exclude_if=lambda folder: not folder)]
"""In JSON there is no "" for all of the repo."""

Files = Annotated[tuple[File, ...], Field(min_length=1, max_length=MAX_FILES)]

Layers = Annotated[tuple[tuple[Count, Count], ...], Field(min_length=2, max_length=MAX_FILES)]
"""The layers of each rank: `[start, end)`."""
