"""A reader: how weights of one kind are recognised and read."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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


@dataclass(frozen=True, slots=True)
class Reader:
    """A kind of weight files: those whose path matches `names`. With `of_run`, the ranks of a training run saved them.

    A file of a run lies at the top of its source. `read` returns the weights in such files, without their bytes. It
    raises SourceError, HeaderError and TooManyTensors. `check` raises SourceError for files that it cannot read.
    """

    names: re.Pattern[str]
    read: Callable[[Found], Weights]
    of_run: bool = False
    order: Callable[[str], Any] | None = None
    check: Callable[[Sequence[str]], None] = lambda inside: None

    def finds(self, inside: Sequence[str]) -> list[str]:
        """Return its files among those `inside` a folder, in the order in which it reads them. Raises SourceError."""
        files = sorted(filter(self.names.fullmatch, inside), key=self.order)
        if files:
            self.check(inside)
        return files
