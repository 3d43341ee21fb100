"""Lead the workers: parts out, records in, what is lost sent out again. Reads and writes nothing of a model itself."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

from sharding.core.errors import (
    DestinationError,
    GrantExpired,
    HeaderError,
    OverflowRefused,
    Refused,
    ShardingError,
    SourceError,
    UsageError,
)
from sharding.core.events import AtWork, Progress
from sharding.core.limits import ATTEMPTS, PROGRESS_SECONDS, WORKERS_SECONDS
from sharding.core.protocols import Destination, Source
from sharding.core.values import FleetCost, NodeCost, Shard, ShardRecord, TensorDigest, TensorEntry
from sharding.fleet.cutting import Task, tasks_to_read, tasks_to_write
from sharding.fleet.parts import PartDone, PartFailed, Said, Spent, UnderWay, part_json
from sharding.planning.plan import shard_header
from sharding.transfer.cast_source import CastSource
from sharding.transfer.lanes import Done, collected
from sharding.transfer.prepare import Prepared
from sharding.transfer.progress import Pace
from sharding.transfer.stream import Transfer, told_in_order
from sharding.verify.digests import Digests


class Workers(Protocol):
    """What runs parts on other machines."""

    name: str
    """What it is called, with its version."""

    @property
    def count(self) -> int:
        """How many parts can be under way now."""
        ...

    def start(self, part: str) -> Any:
        """Send out a part, as JSON; return what it is known by."""
        ...

    def stop(self, part: Any) -> None:
        """End a part, if it is still under way."""
        ...

    def wait(self, parts: list[Any], seconds: float) -> Iterator[tuple[Any, Said | None]]:
        """Wait so long for one of `parts` to say something; yield what each says, None for one whose worker has died.

        Raises Refused where a worker cannot do parts of this job.
        """
        ...


@dataclass(slots=True)
class _Attempt:
    """A part that was sent out."""

    number: int
    told: UnderWay | None = None


def _at_work(file: str, told: UnderWay) -> AtWork:
    return AtWork(told.worker.node, told.worker.pid, file, told.bytes_done, told.seconds, told.anon_bytes)


class Crew:
    """The workers of one job. What it yields and returns is what one machine would: see `transfer` and `verify`."""

    def __init__(self, workers: Workers) -> None:
        """Lead `workers`."""
        self._workers = workers
        self._nodes: dict[str, NodeCost] = {}
        self._repeated: list[str] = []
        self.spent = Spent()

    @property
    def cost(self) -> FleetCost:
        """What the job has taken of each node by now."""
        nodes = sorted(self._nodes.values(), key=lambda cost: cost.node)
        return FleetCost(self._workers.name, tuple(nodes), tuple(self._repeated))

    def transfer(self, prepared: Prepared, target: Destination, kept: Mapping[str, ShardRecord]) -> Transfer:
        """Have every shard that is not in `kept` written, as `transfer` does it."""

        def moving(todo: list[Shard]) -> Iterator[Progress | Done[ShardRecord]]:
            header = partial(shard_header, prepared.plan)
            tasks = tasks_to_write(todo, header, prepared.making, prepared.reading, target)
            for event in self._run("transfer", tasks):
                if isinstance(event, Progress):
                    yield event
                    continue
                target.note(event.result.record)
                if isinstance(prepared.reading, CastSource):
                    prepared.reading.overflowed.update(event.result.overflowed)
                yield Done(event.number, event.result.record)

        return told_in_order(prepared.plan, kept, moving)

    def digest_shards(
        self, shards: Sequence[Shard], header: Callable[[Shard], bytes], source: Source
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Have `shards` read behind their headers, as `transfer.digest_shards` does it."""
        done = yield from collected(self._run("verify", tasks_to_read("verify", shards, header, source)))
        return {one.record.file: one.record for one in done}

    def digest_tensors(self, source: Source, tensors: Iterable[TensorEntry]) -> Digests:
        """Have `tensors` read file by file, as `verify.digest_tensors` does it."""
        tensors = list(tensors)
        files: dict[str, list[TensorEntry]] = {}
        for tensor in tensors:
            files.setdefault(tensor.file, []).append(tensor)
        shards = [Shard(file, tuple(held), sum(one.bytes for one in held)) for file, held in files.items()]
        records = yield from self.digest_shards(shards, lambda _: b"", source)
        return {
            tensor.name: TensorDigest(tensor.dtype, tensor.shape, records[tensor.file].tensor_blake3[tensor.name])
            for tensor in tensors
        }

    def digest_files(self, source: Source, sizes: Mapping[str, int]) -> Generator[Progress, None, dict[str, str]]:
        """Have whole files read, as `verify.digest_files` does it."""
        shards = [Shard(file, (TensorEntry("", "U8", (size,), file, 0, size),), size) for file, size in sizes.items()]
        done = yield from collected(self._run("check", tasks_to_read("check", shards, lambda _: b"", source)))
        return {one.record.file: one.record.sha256 for one in done}

    def _run(
        self, stage: Literal["check", "transfer", "verify"], tasks: Sequence[Task]
    ) -> Iterator[Progress | Done[PartDone]]:
        """Yield progress, and what becomes of each of `tasks`. The first error ends all of them."""
        pace = Pace(stage, sum(task.bytes for task in tasks), time.monotonic())
        waiting = deque(range(len(tasks)))
        begun = [0] * len(tasks)
        under_way: dict[Any, _Attempt] = {}
        finished = told = 0
        seen = time.monotonic()
        try:
            while waiting or under_way:
                now = time.monotonic()
                while waiting and len(under_way) < self._workers.count:
                    number = waiting.popleft()
                    begun[number] += 1
                    under_way[self._workers.start(part_json(tasks[number].make()))] = _Attempt(number)
                if under_way:
                    seen = now
                elif now > seen + WORKERS_SECONDS:
                    raise Refused(f"The cluster has had no processor for {WORKERS_SECONDS:.0f} s.", "Add nodes to it.")
                else:
                    time.sleep(PROGRESS_SECONDS)
                for part, said in self._workers.wait(list(under_way), PROGRESS_SECONDS) if under_way else ():
                    attempt = under_way[part]
                    task = tasks[attempt.number]
                    if isinstance(said, UnderWay):
                        attempt.told = said
                        continue
                    del under_way[part]
                    if isinstance(said, PartDone):
                        finished += task.bytes
                        self._add(said, task, of_source=stage == "transfer")
                        yield Done(attempt.number, said)
                        continue
                    _refuse_hopeless(task.file, said, begun[attempt.number])
                    self._repeated.append(task.file)
                    waiting.appendleft(attempt.number)
                at_work = [(attempt, attempt.told) for attempt in under_way.values() if attempt.told]
                done = max(told, finished + sum(one.bytes_done for _, one in at_work))
                if progress := pace.add(done - told, time.monotonic()):
                    workers = (_at_work(tasks[attempt.number].file, at) for attempt, at in at_work)
                    uploaded, deduplicated = self.spent.bytes_uploaded, self.spent.bytes_deduplicated
                    yield replace(
                        progress, workers=tuple(workers), bytes_uploaded=uploaded, bytes_deduplicated=deduplicated
                    )
                told = done
        finally:
            for part in under_way:
                self._workers.stop(part)

    def _add(self, done: PartDone, task: Task, of_source: bool) -> None:
        self.spent += done.spent if of_source else replace(done.spent, bytes_read=0, read_requests=0)
        node = done.worker.node
        before = self._nodes.get(node, NodeCost(node, 0, 0, 0.0, 0))
        self._nodes[node] = NodeCost(
            node,
            before.parts + 1,
            before.bytes + task.bytes,
            before.seconds + done.spent.seconds,
            max(before.peak_anon_bytes, done.spent.peak_anon_bytes),
        )


def _refuse_hopeless(file: str, said: PartFailed | None, begun: int) -> None:
    """Raise what ended a part, the worker dying where nothing was said, unless another try is worth it."""
    if said is None and begun >= ATTEMPTS:
        raise Refused(
            f"The worker of {file} has died, {begun} times over.",
            "Look into what Ray says of its node, most of all of its memory. What is finished is kept.",
        )
    if said and (not said.again or begun >= ATTEMPTS):
        kind = _KINDS.get(said.kind, ShardingError)
        raise kind(said.message, f"{said.hint} That was on node {said.worker.node}.".lstrip())


_KINDS = {
    kind.__name__: kind
    for kind in (UsageError, SourceError, HeaderError, OverflowRefused, DestinationError, Refused, GrantExpired)
}
"""Errors of parts that are raised here as they were there."""
