"""Reckon what a job of a terabyte would take on many machines, of what smaller ones have taken."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median

from rich import box
from rich.table import Table

from harness.fleets import Led
from harness.processes import Cost

_SHARDS, _GIGABYTES = 200, 5.0
_CASES = ((1, 1.0), (16, 1.0), (1, 0.1), (16, 0.1))
"""How many nodes, and gigabytes a second of each."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a job has taken, once a round; medians."""

    led: Led
    model_bytes: int
    costs: Sequence[Cost]

    @property
    def seconds(self) -> float:
        """Wall time."""
        return median(cost.seconds for cost in self.costs)

    @property
    def cpu_seconds(self) -> float:
        """Processor time of the command."""
        return median(cost.cpu_seconds for cost in self.costs)

    @property
    def worker_cpu_seconds(self) -> float:
        """Processor time of all workers."""
        return median(self.led.worker_cpu_seconds)

    @property
    def parts(self) -> int:
        """How many there were in both waves; 0 on one machine alone."""
        fleet = self.led.reports[0]["fleet"] or {"nodes": ()}
        return sum(int(node["parts"]) for node in fleet["nodes"])


@dataclass(frozen=True, slots=True)
class Rates:
    """Seconds of processor: of the coordinator and of a worker for a part, and of a worker for a gigabyte."""

    of_coordinator: float
    of_worker: float
    of_gigabyte: float


def rates(large: Job, few: Job, many: Job) -> Rates:
    """Return what one part more and one gigabyte more take: `few` and `many` are of small parts.

    Each of the three has had one worker, so that starting it drops out, and no limit, so that waiting does.
    """
    more = many.parts - few.parts
    of_worker = (many.worker_cpu_seconds - few.worker_cpu_seconds) / more
    of_bytes = large.worker_cpu_seconds - few.worker_cpu_seconds - of_worker * (large.parts - few.parts)
    of_gigabyte = of_bytes / ((large.model_bytes - few.model_bytes) / 1e9)
    return Rates((many.cpu_seconds - few.cpu_seconds) / more, of_worker, of_gigabyte)


def on_paper(rates: Rates) -> tuple[Table, list[str]]:
    """Return a table of what the terabyte would take, and how it was reckoned, in words."""
    table = Table("nodes", "network of each", "network takes", "processors take", "the job", box=box.MARKDOWN)
    for nodes, gigabytes_a_second in _CASES:
        parts = ceil(_SHARDS / nodes)
        network = 2 * parts * _GIGABYTES / gigabytes_a_second
        processor = parts * (_GIGABYTES * rates.of_gigabyte + 2 * rates.of_worker)
        times = (f"{seconds / 60:.1f} min" for seconds in (network, processor, max(network, processor)))
        table.add_row(str(nodes), f"{gigabytes_a_second * 1e3:.0f} MB a second each way", *times)
    return table, [
        f"Nobody has run this: {_SHARDS} shards of {_GIGABYTES:g} GB from as many files, one worker a node. A worker "
        "keeps network and processors busy at the same time, so the job takes the longer of both times.",
        "Network: parts of the node (all parts / nodes, rounded up) x bytes of a part / rate, twice. A part of the "
        "first wave is read and uploaded at the same time. A part of the second wave is read.",
        f"Processors: parts of the node x (gigabytes of a part x {rates.of_gigabyte:.1f} s, for both waves together, "
        f"+ 2 x {rates.of_worker * 1e3:.0f} ms). These times were measured with one worker above, without its start. A "
        "node counts as one core.",
        f"The coordinator takes {rates.of_coordinator * 1e3:.1f} ms of processor a part, as measured above: "
        f"{2 * _SHARDS * rates.of_coordinator:.1f} s in the whole job, while the others work.",
    ]
