"""Re-shard random weights, generated as they are read, into shards that nobody keeps: the job without disk or network.

python -m bench.harness.discard --bytes 1000000000
"""

import argparse
import random
from collections.abc import Generator, Iterator
from functools import partial
from threading import Lock
from typing import TypeVar

from sharding.core.limits import BATCH_BYTES, JOIN_GAP_BYTES
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import FileEntry, Tensor
from sharding.formats.file_formats import format_of
from sharding.planning.plan import plan_shards
from sharding.recipes.stored import place_of
from sharding.transfer.stream import expected_digests
from sharding.verify.digests import Reader, compare
from tests.tensors import stored_tensor

_FILE = "model.safetensors"
_LAYER = {"attention": (2048, 2048), "down": (2048, 5632), "gate": (5632, 2048), "norm": (2048,), "up": (5632, 2048)}
_POOL_BYTES = 32 << 20
_Result = TypeVar("_Result")


class Generated:
    """One file of random bytes, the same at every read. See `sharding.core.protocols.Source`."""

    folder = None
    is_private = None
    batch_bytes = BATCH_BYTES
    join_gap_bytes = JOIN_GAP_BYTES
    ranges_at_once = 1

    def __init__(self, size: int) -> None:
        """Make `size` bytes out of a pool that is far larger than any tensor's row."""
        self.ref = Place("folder", "generated", str(size))
        self.files = (FileEntry(_FILE, size),)
        self.requests = 0
        self.bytes_read = 0
        self._pool = random.Random(0).randbytes(_POOL_BYTES)
        self._lock = Lock()

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield bytes; every turn through the pool begins one byte further, so that no two blocks are equal."""
        with self._lock:
            self.requests += 1
            self.bytes_read += end_byte - start_byte
        while start_byte < end_byte:
            turn, place = divmod(start_byte, _POOL_BYTES)
            at = (place + turn * 4099) % _POOL_BYTES
            chunk = self._pool[at : at + min(BATCH_BYTES, end_byte - start_byte, _POOL_BYTES - place)]
            start_byte += len(chunk)
            yield chunk

    def path(self, file: str) -> None:
        """Return None: it lies nowhere."""


def tensors_of(size: int) -> Iterator[Tensor]:
    """Yield the tensors of a model of about `size` bytes, as a safetensors file would have them: ordered by name."""
    shapes = {f"layers.{n}.{name}": shape for n in range(max(1, round(size / 78e6))) for name, shape in _LAYER.items()}
    start = 0
    for name in sorted(shapes):
        rows, columns = (*shapes[name], 1)[:2]
        yield stored_tensor(name, "BF16", shapes[name], _FILE, start, start := start + 2 * rows * columns)


def main() -> None:
    """Plan, transfer, read again and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000_000)
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    tensors = list(tensors_of(arguments.bytes))
    source = Generated(place_of(tensors[-1]).end_byte)
    plan = plan_shards(tensors, Options(arguments.max_shard_size))
    records = _end(Reader().digest_shards(plan.shards, partial(format_of(plan).pieces, plan), [source]))
    assert list(records) == [shard.file for shard in plan.shards]
    found, _ = _end(Reader().digest_tensors([source], tensors))
    assert not compare(expected_digests(plan.shards, records), found)
    print(len(records), plan.total_bytes)


def _end(stage: Generator[object, None, _Result]) -> _Result:
    """Run a stage to its end; return what it returns."""
    while True:
        try:
            next(stage)
        except StopIteration as end:
            result: _Result = end.value
            return result


if __name__ == "__main__":
    main()
