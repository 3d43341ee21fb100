"""Whether memory and time a gigabyte stay the same from one gigabyte to a terabyte: transfers, and plans."""

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harness.chart import Line, draw
from harness.checkpoints import build_sparse, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns


@dataclass(frozen=True, slots=True)
class Sparse:
    """A checkpoint of headers and holes: how many files and tensors, and one side of each tensor."""

    title: str
    files: int
    tensors: int
    width: int = 2048


# Tensors of 3.1 MB, as experts have them; and of 50 MB, in files beyond 50 GB.
_PLANS = (
    Sparse("plan, 20 files", 20, 3_000),
    Sparse("plan, 200 files", 200, 30_000),
    Sparse("plan, 4 files beyond 50 GB", 4, 4_800, 8192),
    Sparse("plan, 2,000 files", 2_000, 300_000),
)


def main() -> None:
    """Stream, plan, print the table, draw the chart."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[1, 5, 20], help="what is streamed")
    parser.add_argument("--plans", type=int, default=len(_PLANS), help="how many of the plans, smallest first")
    parser.add_argument("--chart", type=Path, help="draw memory over size into this SVG file")
    arguments = parser.parse_args()
    plans = _PLANS[: arguments.plans]
    with scratch(arguments.folder, 2_000_000_000) as folder:
        places = {plan.title: folder / str(number) for number, plan in enumerate(plans)}
        for plan in plans:
            build_sparse(places[plan.title], plan.files, plan.tensors, plan.width)
        sizes = {f"stream, {gigabytes:g} GB": int(gigabytes * 1e9) for gigabytes in arguments.gigabytes}
        sizes |= {title: weight_bytes(place) for title, place in places.items()}
        stream = (sys.executable, "-m", "bench.harness.discard", "--bytes")
        ours = (sys.executable, "-m", "sharding", "plan", "--json", "--max-shard-size", "5GB")
        contenders = [
            *(Contender(title, (*stream, str(size))) for title, size in sizes.items() if title not in places),
            *(Contender(title, (*ours, str(place))) for title, place in places.items()),
        ]
        state = State(touched_bytes=1_000_000_000)
        costs = take_turns(contenders, arguments.pairs, state)
        facts = [
            "stream: random weights, generated as they are read, into shards of 200MB that nobody keeps. It plans, "
            "transfers with all digests, and reads a second time. There is no disk and no network.",
            *(
                f"{plan.title}: {sizes[plan.title] / 1e9:,.0f} GB in {plan.tensors:,} tensors, headers and holes; the "
                f"largest file has {_largest(places[plan.title]) / 1e9:,.0f} GB."
                for plan in plans
            ),
            str(state),
        ]
        print_figures("Scale", _figures(costs, sizes), costs, facts, folder, ("safetensors", "huggingface_hub"))
        if arguments.chart:
            arguments.chart.write_text(_chart(costs, sizes))


def _figures(costs: dict[str, list[Cost]], sizes: dict[str, int]) -> list[Figure]:
    streams = [title for title in costs if title.startswith("stream")]
    first, last = streams[0], streams[-1]
    pace = {title: tuple(second / (sizes[title] / 1e9) for second in seconds(costs[title])) for title in streams}
    memory = anon_megabytes(costs[last]), anon_megabytes(costs[first])
    plans = [title for title in costs if title not in streams]
    return [
        ratio(f"peak anonymous memory, {last} to {first}", *memory, "about 1"),
        ratio(f"time a GB, {last} to {first}", pace[last], pace[first], "about 1"),
        *(Figure(f"{title}: time a GB", values, "{:.3f} s") for title, values in pace.items()),
        *(Figure(f"{title}: time", seconds(costs[title]), "{:.3f} s") for title in plans),
        *(Figure(f"{title}: peak anonymous memory", anon_megabytes(costs[title]), "{:.1f} MB") for title in plans),
    ]


def _chart(costs: dict[str, list[Cost]], sizes: dict[str, int]) -> str:
    lines: dict[str, list[tuple[float, float]]] = {"streaming": [], "planning": []}
    for title, runs in costs.items():
        name = "streaming" if title.startswith("stream") else "planning"
        lines[name].append((sizes[title] / 1e9, median(anon_megabytes(runs))))
    return draw(
        "Peak anonymous memory by size of the checkpoint",
        ("GB of weights", "MB of anonymous memory"),
        [Line(name, tuple(sorted(points))) for name, points in lines.items() if points],
    )


def _largest(folder: Path) -> int:
    return max(path.stat().st_size for path in folder.glob("*.safetensors"))


if __name__ == "__main__":
    main()
