"""Read shards back from a Hub while others are still being uploaded, because a line has two directions."""

from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from contextlib import closing
from functools import partial
from threading import Event

from sharding.core.errors import ShardingError
from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import XET_LEAST_BYTES
from sharding.core.protocols import Destination, Source
from sharding.core.threads import readers
from sharding.core.values import Plan, ShardRecord, Tensor, TensorDigest
from sharding.formats.safetensors_file import written_tensors
from sharding.recipes.stored import place_of
from sharding.transfer.stream import Transfer
from sharding.verify.digests import digest_span, spans

ReadBack = dict[Tensor, TensorDigest]
"""Tensors of the result, each with the digest of its bytes."""


def read_back_meanwhile(
    moving: Transfer, plan: Plan, target: Destination
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Yield what `moving` yields; return its records, and the digests of the tensors that were read back meanwhile.

    These may be all, some or none of the tensors: the job does not wait for them. If a read fails, its tensors are
    missing here and are read later.
    """
    shards = {shard.file: shard for shard in plan.shards}
    over = Event()
    reading: list[Future[ReadBack]] = []

    def go_on(_: int) -> None:
        if over.is_set():
            raise CancelledError

    def read(source: Source, span: list[Tensor]) -> ReadBack:
        go_on(0)
        try:
            digests = digest_span(source, span, go_on)
        except ShardingError:
            over.set()  # a Hub that shows no file before the commit will not show the others either
            raise
        return {tensor: digests[tensor.name] for tensor in span}

    with readers(1) as pool, closing(moving):
        try:
            while True:
                try:
                    event = next(moving)
                except StopIteration as end:
                    records: dict[str, ShardRecord] = end.value
                    break
                if isinstance(event, ShardFinished) and not event.kept and (source := target.open_finished(event.file)):
                    parts = filter(_is_worth, spans(written_tensors(plan, shards[event.file], event.bytes)))
                    reading += [pool.submit(partial(read, source, span)) for span in parts]
                yield event
        finally:
            over.set()
    done = [future for future in reading if future.done() and not future.cancelled() and not future.exception()]
    return records, {tensor: digest for future in done for tensor, digest in future.result().items()}


def _is_worth(span: list[Tensor]) -> bool:
    # Shorter spans go over plain HTTP, which only knows committed files.
    return place_of(span[-1]).end_byte - place_of(span[0]).start_byte >= XET_LEAST_BYTES
