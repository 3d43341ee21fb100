"""Every kind, and what a process that has their libraries is asked to do with one."""

import hashlib
from pathlib import Path

from tests.folders import bits
from tests.kinds import adapters, beside, diffusion, images, mixins, sentences
from tests.kinds.kind import Kind

KINDS: dict[str, Kind] = {
    **diffusion.KINDS,
    **adapters.KINDS,
    **beside.KINDS,
    **sentences.KINDS,
    **images.KINDS,
    **mixins.KINDS,
}
"""By name: what the docs call the kind, then after a comma what is particular."""


def title(name: str) -> str:
    """Return what the docs call a kind."""
    return name.split(",")[0]


def save(name: str, folder: Path) -> None:
    """Save a repo of that kind as its library does."""
    KINDS[name].save(folder)


def loaded(name: str, folder: Path) -> dict[str, str]:
    """Return what its library loads from `folder`: dtype, shape and a digest of every weight."""
    digests = {}
    for tensor, value in KINDS[name].load(folder).items():
        dtype, shape, data = bits(value)
        digests[tensor] = f"{dtype} {shape} {hashlib.sha256(data).hexdigest()}"
    return digests
