"""The protocol of a reader: how weights of one kind are recognised and read."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sharding.core.protocols import Files
from sharding.core.values import FileEntry, Finding, Tensor

if TYPE_CHECKING:
    from sharding.checkpoint.weight_sets import WeightSet


@dataclass(frozen=True, slots=True)
class Weights:
    """What a reader found: the files with weights, their tensors in stored order, and findings.

    `metadata` goes into the header of every file of a copy. `tied` are names that an index may have and no file has.
    """

    files: Sequence[FileEntry]
    tensors: Sequence[Tensor]
    findings: Sequence[Finding] = ()
    metadata: Mapping[str, str] = field(default_factory=lambda: {"format": "pt"})
    tied: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """The `files` of one set of weights in `source`, of at most `most_tensors`."""

    source: Files
    weight_set: "WeightSet"
    files: Sequence[FileEntry]
    most_tensors: int


class Reader(Protocol):
    """A kind of weight files: those whose path matches `names`. With `of_run`, the ranks of a training run saved them.

    A file of a run lies at the top of its source.
    """

    names: re.Pattern[str]
    of_run: bool = False

    def finds(self, inside: Sequence[str]) -> list[str]:
        """Return its files among those `inside` a folder, in the order in which it reads them. Raises SourceError."""
        return sorted(filter(self.names.fullmatch, inside))

    def read(self, found: Found) -> Weights:
        """Return the weights in these files, without their bytes. Raises SourceError, HeaderError, TooManyTensors."""
