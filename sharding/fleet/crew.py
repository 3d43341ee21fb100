"""Lead the workers: parts out, records in, what is lost sent out again. Reads and writes nothing of a model itself."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from typing_extensions import override

from sharding.core.destination import Destination
from sharding.core.errors import (
    DamagedError,
    DestinationError,
    GrantExpired,
    HeaderError,
    OverflowRefused,
    Refused,
    ShardingError,
    SourceError,
    UsageError,
)
from sharding.core.events import AtWork, Phase, Progress
from sharding.core.limits import ATTEMPTS, PROGRESS_SECONDS, TOLD_SECONDS, WORKERS_SECONDS
from sharding.core.protocols import Source
from sharding.core.values import FleetCost, NodeCost, Shard, ShardRecord
from sharding.fleet.cutting import Task, tasks_to_make, tasks_to_read
from sharding.fleet.parts import PartDone, PartEvent, PartFailed, Spent, UnderWay, part_json
from sharding.transfer.lanes import Done, collected
from sharding.transfer.prepare import Prepared
from sharding.transfer.progress import Pace
from sharding.transfer.stream import ReadingPhase, Transfer, in_plan_order
from sharding.verify.digests import Reader


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

    def wait(self, parts: list[Any], seconds: float) -> Iterator[tuple[Any, PartEvent | None]]:
        """Wait so long for `parts`, if any, to say something; yield what each says, None where its worker has died.

        Raises Refused where a worker cannot do parts of this job.
        """
        ...


@dataclass(slots=True)
class _Attempt:
    """Part `number`, sent out, and the last news of it."""

    number: int
    state: UnderWay | None = None


class _Queue:
    """The parts of one phase: which wait, which are under way, how far they are."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.waiting = deque(range(len(tasks)))
        self.begun = [0] * len(tasks)
        self.under_way: dict[Any, _Attempt] = {}
        self.idle_since: float | None = None
        self._finished = self._counted = 0

    @property
    def is_open(self) -> bool:
        return bool(self.waiting or self.under_way)

    @property
    def at_work(self) -> tuple[AtWork, ...]:
        states = ((self.tasks[attempt.number].file, attempt.state) for attempt in self.under_way.values())
        return tuple(
            AtWork(state.worker.node, state.worker.pid, file, state.bytes_done, state.seconds, state.anon_bytes)
            for file, state in states
            if state
        )

    def end(self, part: Any, *, is_done: bool) -> int:
        """Take a part off that is under way, done or to be begun again; return its number."""
        number = self.under_way.pop(part).number
        if is_done:
            self._finished += self.tasks[number].bytes
        else:
            self.waiting.appendleft(number)
        return number

    def more_bytes(self) -> int:
        """Return how many bytes are done beyond the last answer; what was lost is not counted twice."""
        done = self._finished + sum(attempt.state.bytes_done for attempt in self.under_way.values() if attempt.state)
        before, self._counted = self._counted, max(done, self._counted)
        return self._counted - before


class Crew(Reader):
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
            for event in self._run("transfer", tasks_to_make(todo, prepared, target)):
                if isinstance(event, Progress):
                    yield event
                    continue
                target.note(event.result.record)
                yield Done(event.number, event.result.record)

        return in_plan_order(prepared.plan, kept, moving)

    @override
    def digest_shards(
        self,
        shards: Sequence[Shard],
        header: Callable[[Shard], bytes],
        sources: Sequence[Source],
        phase: ReadingPhase = "verify",
    ) -> Generator[Progress, None, dict[str, ShardRecord]]:
        """Have `shards` made behind their headers, as `transfer.digest_shards` does it."""
        done = yield from collected(self._run(phase, tasks_to_read(phase, shards, header, sources)))
        return {part.record.file: part.record for part in done}

    def _run(self, phase: Phase, tasks: Sequence[Task]) -> Iterator[Progress | Done[PartDone]]:
        """Yield progress, and what becomes of each of `tasks`. The first error ends all of them."""
        pace = Pace(phase, sum(task.bytes for task in tasks), time.monotonic(), TOLD_SECONDS)
        queue = _Queue(tasks)
        try:
            while queue.is_open:
                has_room = self._send(queue)
                for part, event in self._workers.wait(list(queue.under_way), 0 if has_room else PROGRESS_SECONDS):
                    if done := self._heard(queue, part, event):
                        self._add(done.result, tasks[done.number], of_source=phase == "transfer")
                        yield done
                if progress := pace.add(queue.more_bytes(), time.monotonic()):
                    sent, there = self.spent.bytes_uploaded, self.spent.bytes_deduplicated
                    yield replace(progress, workers=queue.at_work, bytes_uploaded=sent, bytes_deduplicated=there)
        finally:
            for part in queue.under_way:
                self._workers.stop(part)

    def _send(self, queue: _Queue) -> bool:
        """Send out the next part where there is a processor for it; return whether there was.

        One at a time, as access to a Hub is asked for before: meanwhile others have something to say.
        """
        count, now = self._workers.count, time.monotonic()
        if queue.waiting and len(queue.under_way) < count:
            number = queue.waiting.popleft()
            queue.begun[number] += 1
            queue.under_way[self._workers.start(part_json(queue.tasks[number].make()))] = _Attempt(number)
            queue.idle_since = None
            return True
        if not queue.under_way:
            queue.idle_since = queue.idle_since or now
            if now > queue.idle_since + WORKERS_SECONDS:
                raise Refused(f"The cluster has had no processor for {WORKERS_SECONDS:.0f} s.", "Add nodes to it.")
        return False

    def _heard(self, queue: _Queue, part: Any, event: PartEvent | None) -> Done[PartDone] | None:
        """Return what is done; have begun again what is not. Raises the error of a part for which that is no use."""
        if isinstance(event, UnderWay):
            queue.under_way[part].state = event
            return None
        number = queue.end(part, is_done=isinstance(event, PartDone))
        if isinstance(event, PartDone):
            return Done(number, event)
        _refuse_hopeless(queue.tasks[number].file, event, queue.begun[number])
        self._repeated.append(queue.tasks[number].file)
        return None

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


def _refuse_hopeless(file: str, failure: PartFailed | None, begun: int) -> None:
    """Raise what ended a part, the worker dying without a failure, unless another try is worth it."""
    if failure is None and begun >= ATTEMPTS:
        raise Refused(
            f"The worker of {file} has died, {begun} times over.",
            "Look into what Ray says of its node, most of all of its memory. What is finished is kept.",
        )
    if failure and (not failure.again or begun >= ATTEMPTS):
        kind = _KINDS.get(failure.kind, ShardingError)
        hint = f"{failure.hint} That was on node {failure.worker.node}.".lstrip()
        raise kind(failure.message, hint, failure.remedy)


_KINDS = {
    kind.__name__: kind
    for kind in (
        *(UsageError, SourceError, HeaderError, DamagedError, OverflowRefused),
        *(DestinationError, Refused, GrantExpired),
    )
}
"""Errors of parts that are raised here as they were there."""
