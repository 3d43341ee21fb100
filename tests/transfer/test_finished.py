"""What is said of a finished shard is what its record says, in the run that wrote it and in a later one that keeps it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.core.events import Progress, ShardFinished
from sharding.core.options import Options
from sharding.core.values import Shard, ShardRecord
from sharding.transfer.lanes import Done
from sharding.transfer.stream import NOWHERE, transfer
from tests.folders import all_of


def prepared_of(shards: list[Shard]) -> Any:
    plan = SimpleNamespace(shards=tuple(shards), format="safetensors", options=Options())
    return SimpleNamespace(plan=plan, sources=())


@pytest.mark.parametrize("kept", [(), (1,), (0, 4)])
def test_finished_shards_are_told_once_in_the_order_of_the_plan_as_soon_as_that_can_be(kept: tuple[int, ...]) -> None:
    shards = [Shard(f"out{n}", (), n) for n in range(6)]
    records = [ShardRecord(shard.file, n, f"{n}" * 64, {}) for n, shard in enumerate(shards)]
    still = Progress("transfer", 1, 9, "", 1.0, 8.0)
    order = [n for n in (3, 2, 0, 5, 4, 1) if n not in kept]

    def move(_: str, todo: list[Shard], *others: Any) -> Iterator[Progress | Done[ShardRecord]]:
        assert todo == [shard for n, shard in enumerate(shards) if n not in kept]
        for n in order:
            yield Done(0, records[n])
            yield still

    before = {shards[n].file: records[n] for n in reversed(kept)}
    events, found = all_of(transfer(prepared_of(shards), NOWHERE, before, move))  # type: ignore[arg-type]
    told = [event for event in events if event is not still]
    told_when = {event.file: events[: events.index(event)].count(still) for event in told}
    assert events.count(still) == len(order)
    assert list(found.items()) == [(record.file, record) for record in records]
    assert {event for event in told if event.kept} == {
        ShardFinished(f"out{n}", n, f"{n}" * 64, n + 1, 6, kept=True) for n in kept
    }
    rest = [n for n in range(6) if n not in kept]
    assert [event for event in told if not event.kept] == [
        ShardFinished(f"out{n}", n, f"{n}" * 64, n + 1, 6) for n in rest
    ]
    for n in rest:  # once all before it are finished
        assert told_when[f"out{n}"] == max(order.index(other) for other in rest if other <= n)
