"""Read shards back from a Hub while others are still on their way to it: a line has two directions."""

from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from contextlib import closing
from functools import partial
from threading import Event

from sharding.core.destination import Destination
from sharding.core.errors import ShardingError
from sharding.core.events import Progress, ShardFinished
from sharding.core.limits import XET_LEAST_BYTES
from sharding.core.protocols import Source
from sharding.core.threads import readers
from sharding.core.values import Plan, ShardRecord, Tensor, TensorDigest
from sharding.formats.safetensors_file import written_tensors
from sharding.recipes.stored import place_of
from sharding.transfer.stream import Transfer
from sharding.verify.digests import digest_span, spans

ReadBack = dict[Tensor, TensorDigest]
"""Digests of tensors of the result, each where it was read."""


def read_back_meanwhile(
    moving: Transfer, plan: Plan, target: Destination
) -> Generator[Progress | ShardFinished, None, tuple[dict[str, ShardRecord], ReadBack]]:
    """Yield what `moving` yields; return the records that it returns, and what was read back of the result meanwhile.

    That is all, some or nothing of it: nobody waits for it, and what fails is left to whoever reads the rest.
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
            over.set()  # a Hub that shows nothing before it is committed shows none of the others either
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
    # Shorter ones go over plain HTTP, which knows committed files only.
    return place_of(span[-1]).end_byte - place_of(span[0]).start_byte >= XET_LEAST_BYTES
