"""One job on 1, 2, 4 and 8 Ray workers, each with its own network, compared with the same job on one machine."""

import sys
from collections.abc import Iterator, Mapping
from statistics import median

import psutil
from harness.checkpoints import build_sparse, weight_bytes
from harness.fleets import Led
from harness.hubs import UNKNOWN_CHUNKS, HubState, filled
from harness.paper import Job, Rates, on_paper, rates
from harness.results import tell
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns
from rich import box
from rich.table import Table

_OVER_HTTP, _LIBRARIES = "--xet-over-http", ("ray", "huggingface_hub", "hf-xet")
_ALONE, _LARGE, _FEW, _MANY = 0, "large", "few", "many"
_FREE, _LINE, _LINK = "no limit", "line", "link"
_COLUMNS = (
    *("workers", "time", "ideal", "time / ideal", "speed-up", "processors busy"),
    *("coordinator: processor time", "peak anonymous memory", "read itself"),
    *("a worker: peak anonymous memory", "parts repeated"),
)


def main() -> None:
    """Build checkpoints, put them on a Hub, run all in turn, print the tables."""
    parser = benchmark_arguments(__doc__, pairs=1)
    parser.add_argument("--shards", type=int, default=96, help="of 6.3 MB, from as many files (default: 96)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8], help="1 and others")
    parser.add_argument("--megabytes-a-second", type=float, default=4.0, help="of each worker, each way (default: 4)")
    parser.add_argument("--small", type=int, nargs=2, default=[100, 200], help="shards of two jobs of small parts")
    arguments = parser.parse_args()
    rate = arguments.megabytes_a_second * 1e6
    shards = {_LARGE: arguments.shards, _FEW: arguments.small[0], _MANY: arguments.small[1]}
    wanted = [(_LARGE, _ALONE, _LINK), *((_LARGE, workers, _LINE) for workers in arguments.workers)]
    wanted += [(name, 1, _FREE) for name in shards]
    with scratch(arguments.folder, int(arguments.shards * 4e7)) as folder:
        for name, count in shards.items():
            per_file, width = (2, 2048) if name == _LARGE else (1, 512)
            build_sparse(folder / name, count, per_file * count, width, filled=True)
        full = filled(folder, [folder / name for name in shards], (_OVER_HTTP,), private=True)
        leds, contenders = [], []
        for name, workers, limit in wanted:
            limits = [f"--fault={limit}:{rate:.0f}@{way} /cas/" for way in ("GET", "POST") if limit != _FREE]
            leds.append(
                Led(
                    HubState(folder / "served", full, (_OVER_HTTP, UNKNOWN_CHUNKS, *limits)),
                    f"alice/{name}-again",
                    workers,
                )
            )
            title = f"{name}, {workers} workers, {limit}"
            contenders.append(Contender(title, _command(name, workers), within=leds[-1]))
        state = State((folder / "served",))
        costs = take_turns(contenders, arguments.pairs, state).values()
        done = [
            Job(led, weight_bytes(folder / name), runs)
            for (name, *_), led, runs in zip(wanted, leds, costs, strict=True)
        ]
        *limited, large, few, many = done
        jobs = {job.led.workers: job for job in limited}
        measured = rates(large, few, many)
        facts = [*_facts(large, few, many, measured, rate), str(state), f"Rounds: {arguments.pairs}; medians."]
        tell("Many machines", _table(jobs, rate), facts, folder, _LIBRARIES)
        tell("Many machines, on paper", *on_paper(measured), folder, _LIBRARIES)


def _command(name: str, workers: int) -> tuple[str, ...]:
    """Return a job that puts two tensors into a shard of the large model, and one into one of others."""
    size = ("--max-shard-size", "6.3MB" if name == _LARGE else "200KB")
    ours = (sys.executable, "-m", "sharding", "shard", f"alice/{name}", f"alice/{name}-again", *size, "--json")
    return (*ours, "--workers", "ray") if workers else ours


def _table(jobs: Mapping[int, Job], rate: float) -> Table:
    table = Table(*_COLUMNS, box=box.MARKDOWN)
    for workers, job in jobs.items():
        ideal = 3 * job.model_bytes / (rate * max(1, workers))
        busy = median((cost.cpu_seconds + cost.others_cpu_seconds) / cost.seconds for cost in job.costs)
        read = median(report["resources"]["bytes_read"] for report in job.led.reports) - job.model_bytes
        fleets = [report["fleet"] for report in job.led.reports if report["fleet"]]
        peaks = [node["peak_anon_bytes"] for fleet in fleets for node in fleet["nodes"]]
        table.add_row(
            str(workers or "one machine alone"),
            *(f"{job.seconds:.1f} s", f"{ideal:.1f} s", f"{job.seconds / ideal:.2f}"),
            *(f"{jobs[1].seconds / job.seconds:.2f}", f"{busy / (psutil.cpu_count() or 1):.0%}"),
            f"{job.cpu_seconds:.1f} s",
            f"{median(cost.peak_anon_bytes for cost in job.costs) / 1e6:.0f} MB",
            f"{read / 1e6:.1f} MB" if workers else "all",
            f"{max(peaks) / 1e6:.0f} MB" if peaks else "",
            str(sum(len(fleet["repeated"]) for fleet in fleets)),
        )
    return table


def _facts(large: Job, few: Job, many: Job, measured: Rates, rate: float) -> Iterator[str]:
    yield (
        f"{large.model_bytes:,} random bytes in shards of 6.3 MB, in a private repo of a loopback Hub that "
        f"serves its Xet store over HTTP. Each grant gets {rate / 1e6:g} MB a second each way. Each part has its own "
        "grant. One machine alone has one grant for all its work."
    )
    yield (
        "Ideal: every worker reads, uploads, and reads again without a pause, one after another. Larger shards do "
        "better: beyond 64 MB, a package of Xet, reading continues during the upload."
    )
    yield (
        "The cluster is on this machine too. It was started before, with empty caches and no login. Processors busy: "
        "those of this machine, by everything on it, also the Hub. Read itself: of the source, and the headers of the "
        "result."
    )
    yield (
        f"Parts of 0.2 MB, one worker, no limit: {few.parts} in {few.seconds:.1f} s and {many.parts} in "
        f"{many.seconds:.1f} s, both waves together. One more part takes {measured.of_coordinator * 1e3:.1f} ms of the "
        f"coordinator's processor and {measured.of_worker * 1e3:.1f} ms of the worker's. One more gigabyte "
        f"takes {measured.of_gigabyte:.1f} s of the worker's. The large job with one worker and no limit took "
        f"{large.seconds:.1f} s."
    )


if __name__ == "__main__":
    main()
