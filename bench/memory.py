"""Whether the memory and the time a gigabyte of re-sharding grow with the model."""

import sys
from pathlib import Path

from checkpoints import build_llama, weight_bytes
from figures import Figure, anon_megabytes, print_figures, ratio
from processes import Cost
from scratch import benchmark_arguments, scratch
from state import State
from turns import Contender, take_turns


def main() -> None:
    """Build two checkpoints, re-shard them in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, nargs=2, default=[1.5, 15.0], metavar=("SMALL", "LARGE"))
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    small, large = arguments.gigabytes
    with scratch(arguments.folder, int((small + large + max(small, large)) * 1.1e9)) as folder:
        sources = {f"{gigabytes:g} GB": folder / f"source-{gigabytes:g}" for gigabytes in (small, large)}
        for source, gigabytes in zip(sources.values(), (small, large), strict=True):
            build_llama(source, int(gigabytes * 1e9))
        destination = folder / "destination"
        # No source is read ahead: the large one and its copy may not fit into the page cache together.
        state = State((destination,), (), int(max(small, large) * 1.1e9))
        command = (sys.executable, "-m", "sharding", "shard", "--json", "--max-shard-size", arguments.max_shard_size)
        costs = take_turns(
            [Contender(title, (*command, str(source), str(destination))) for title, source in sources.items()],
            arguments.pairs,
            state,
        )
        facts = [
            *(f"{title}: {weight_bytes(source):,} bytes of weights." for title, source in sources.items()),
            f"Random bf16 Llamas that differ in their number of layers, into shards of {arguments.max_shard_size}; "
            "digests and verification included.",
            f"{state} The source may or may not be in the page cache.",
        ]
        print_figures("Memory", _figures(sources, costs), costs, facts, folder, ("safetensors", "huggingface_hub"))


def _figures(sources: dict[str, Path], costs: dict[str, list[Cost]]) -> list[Figure]:
    one, other = sources
    pace = {
        title: tuple(cost.seconds / (weight_bytes(source) / 1e9) for cost in costs[title])
        for title, source in sources.items()
    }
    peaks = {title: anon_megabytes(costs[title]) for title in sources}
    return [
        ratio(f"peak anonymous memory, {other} to {one}", peaks[other], peaks[one], "about 1"),
        ratio(f"time a GB, {other} to {one}", pace[other], pace[one]),
        *(Figure(f"{title}: time a GB", values, "{:.3f} s") for title, values in pace.items()),
    ]


if __name__ == "__main__":
    main()
