"""Lead the workers: send out parts, collect records, send lost parts again. Reads and writes no model data itself."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from sharding.core import errors
from sharding.core.errors import Refused, ShardingError
from sharding.core.events import AtWork, Phase
from sharding.core.limits import PROGRESS_FILES, PROGRESS_SECONDS, TOLD_SECONDS
from sharding.core.protocols import Source
from sharding.core.values import Shard
from sharding.fleet.parts import Part, PartDone, PartEvent, part_json, part_of
from sharding.fleet.ray_workers import RayWorkers
from sharding.report.schema import FleetCost, NodeCost, Resources
from sharding.transfer.lanes import Done, Pace
from sharding.transfer.stream import Moving, PiecesOf, Target
from sharding.verify.digests import Reader, by_file

ATTEMPTS = 3  # Attempts at a part whose worker dies or whose access expires. What fails three times is no accident.
WORKERS_SECONDS = 60.0  # Longest wait for a cluster without any processor, while no part runs.


class _Queue:
    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = shards
        self.waiting = deque(range(len(shards)))
        self.begun = [0] * len(shards)
        self.under_way: dict[Any, int] = {}
        self.states: dict[int, AtWork] = {}
        self.idle_since: float | None = None
        self.new_bytes = 0
        self.new_files = dict[str, int]()
        self._counted = [0] * len(shards)

    @property
    def at_work(self) -> tuple[AtWork, ...]:
        return tuple(self.states[number] for number in self.under_way.values() if number in self.states)

    def count(self, number: int, bytes_done: int) -> None:
        """Count what is done of a shard. Work that was lost and is done again is not counted twice."""
        if (more := bytes_done - self._counted[number]) > 0:
            self._counted[number] = bytes_done
            self.new_bytes += more
            file = self.shards[number].file
            self.new_files[file] = self.new_files.get(file, 0) + more


class Crew(Reader):
    """The workers of one job. It yields and returns the same as one machine."""

    def __init__(self, workers: RayWorkers) -> None:
        super().__init__(self._move, by_file)
        self._workers = workers
        self._nodes: dict[str, NodeCost] = {}
        self._repeated: list[str] = []
        self.spent = Resources(0, 0.0, 0, 0, 0, 0, 0)

    @property
    def cost(self) -> FleetCost:
        """What the job has used on each node so far."""
        nodes = sorted(self._nodes.values(), key=lambda cost: cost.node)
        return FleetCost(self._workers.name, tuple(nodes), tuple(self._repeated))

    def _move(
        self,
        phase: Phase,
        shards: Sequence[Shard],
        pieces: PiecesOf,
        sources: Sequence[Source],
        sink: Target,
        may_overflow: bool = True,
    ) -> Moving:
        """Do what `move_shards` does, a part for each shard. The first error ends all of them."""
        pace = Pace(phase, sum(shard.bytes for shard in shards), time.monotonic(), TOLD_SECONDS)
        queue = _Queue(shards)
        try:
            while queue.waiting or queue.under_way:
                has_room = self._send(queue, lambda shard: part_of(shard, phase, pieces, sources, sink, may_overflow))
                for part, event in self._workers.wait(list(queue.under_way), 0 if has_room else PROGRESS_SECONDS):
                    if done := self._heard(queue, part, event):
                        self._add(done.result, shards[done.number].bytes, of_source=phase == "transfer")
                        sink.note(done.result.record)
                        yield Done(done.number, done.result.record)
                more, queue.new_bytes = queue.new_bytes, 0
                if progress := pace.add(more, time.monotonic()):
                    sent, there = self.spent.bytes_uploaded, self.spent.bytes_deduplicated
                    # A part that reads may be put together from several files.
                    names = list(islice(queue.new_files, PROGRESS_FILES)) if phase == "transfer" else []
                    news = replace(progress, workers=queue.at_work, files={n: queue.new_files.pop(n) for n in names})
                    yield replace(news, bytes_uploaded=sent, bytes_deduplicated=there)
        finally:
            for part in queue.under_way:
                self._workers.stop(part)

    def _send(self, queue: _Queue, part_of_shard: Callable[[Shard], Part]) -> bool:
        """Send out one part if a processor is free; return whether one was. Others may have news meanwhile."""
        count, now = self._workers.count, time.monotonic()
        if queue.waiting and len(queue.under_way) < count:
            number = queue.waiting.popleft()
            queue.begun[number] += 1
            queue.under_way[self._workers.start(part_json(part_of_shard(queue.shards[number])))] = number
            queue.idle_since = None
            return True
        if not queue.under_way:
            queue.idle_since = queue.idle_since or now
            if now > queue.idle_since + WORKERS_SECONDS:
                raise Refused(f"The cluster has had no processor for {WORKERS_SECONDS:.0f} s.", "Add some nodes.")
        return False

    def _heard(self, queue: _Queue, part: Any, event: PartEvent | None) -> Done[PartDone] | None:
        """Return a finished part. Queue a failed one again, or raise its error if that is no use."""
        number = queue.under_way[part]
        if isinstance(event, AtWork):
            queue.states[number] = event
            queue.count(number, event.bytes_done)
            return None
        del queue.under_way[part]
        queue.states.pop(number, None)
        if isinstance(event, PartDone):
            queue.count(number, queue.shards[number].bytes)
            return Done(number, event)
        queue.waiting.appendleft(number)
        file, begun = queue.shards[number].file, queue.begun[number]
        if event is None and begun >= ATTEMPTS:
            hint = "Check Ray's logs of its node and the memory there. Finished shards are kept."
            raise Refused(f"The worker for {file} has died {begun} times.", hint)
        if event and (not event.again or begun >= ATTEMPTS):
            kind = _KINDS.get(event.kind, ShardingError)
            raise kind(event.message, f"{event.hint} It failed on node {event.node}.".lstrip(), event.remedy)
        self._repeated.append(file)
        return None

    def _add(self, done: PartDone, size: int, of_source: bool) -> None:
        self.spent += done.spent if of_source else replace(done.spent, bytes_read=0, read_requests=0)
        before = self._nodes.get(done.node, NodeCost(done.node, 0, 0, 0.0, 0))
        seconds, peak = before.seconds + done.spent.seconds, max(before.peak_anon_bytes, done.spent.peak_anon_bytes)
        self._nodes[done.node] = NodeCost(done.node, before.parts + 1, before.bytes + size, seconds, peak)


_KINDS = {  # Errors of parts that are raised here with the same class: those that need no more than words.
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, ShardingError) and "__init__" not in vars(kind)
}
