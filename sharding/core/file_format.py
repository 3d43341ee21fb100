"""The protocol of a format in which weight files are written."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from sharding.core.values import Component, Plan, Shard, Tensor, TensorDigest


class FileFormat(Protocol):
    """How weight files of one format are named, laid out and checked."""

    def name(self, component: Component, suffix: str = "") -> str:
        """Return the path of a weight file of `component` with the number `suffix`; "" for a single file."""

    def order(self, tensors: Iterable[Tensor]) -> list[Tensor]:
        """Return `tensors` in the order of a file, by default as they are."""
        return list(tensors)

    def pieces(self, plan: Plan, shard: Shard) -> Iterator[bytes | Tensor]:
        """Yield what the file of `shard` consists of, in order: bytes as they are, and tensors to make."""

    def structure(self, path: Path, shard: Shard) -> tuple[dict[str, TensorDigest], dict[str, str] | None]:
        """Return the dtypes and shapes that the format's library sees in the file at `path`, and its metadata.

        The digests are empty, because no tensor is read. Raises HeaderError if the library cannot open the file.
        """

    def indexes(self, plan: Plan) -> list[str]:
        """Return the paths of the indexes of a copy, by default none."""
        return []

    def beside(self, plan: Plan) -> Mapping[str, bytes]:
        """Return the content of each of these indexes."""
        return {}
