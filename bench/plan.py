"""Planning a checkpoint of very many tensors against reading its headers with safetensors."""

import sys

from harness.checkpoints import build_sparse
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours"
_FLOOR = "safe_open"


def main() -> None:
    """Build a checkpoint, run both in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=100_000, help="in all files together (default: 100000)")
    parser.add_argument("--max-shard-size", default="5GB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, 1_000 * arguments.tensors) as folder:
        source = folder / "source"
        build_sparse(source, arguments.files, arguments.tensors)
        size = ("--max-shard-size", arguments.max_shard_size)
        contenders = [
            Contender(_OURS, (sys.executable, "-m", "sharding", "plan", str(source), "--json", *size)),
            Contender(_FLOOR, (sys.executable, str(ROOT / "bench/harness/peers.py"), "headers", str(source))),
        ]
        # The files are mostly holes: reading them whole would fill the page cache with zeros, for nothing.
        state = State(touched_bytes=4_000 * arguments.tensors)
        costs = take_turns(contenders, arguments.pairs, state)
        ours, floor = costs[_OURS], costs[_FLOOR]
        figures = [
            ratio("time, ours to safe_open", seconds(ours), seconds(floor)),
            ratio("peak anonymous memory, ours to safe_open", anon_megabytes(ours), anon_megabytes(floor)),
            Figure("time, ours", seconds(ours), "{:.3f} s", "at most 1.5 s"),
            Figure("peak anonymous memory, ours", anon_megabytes(ours), "{:.1f} MB", "at most 150 MB"),
        ]
        facts = [
            f"{arguments.tensors:,} tensors in {arguments.files} files with an index, planned into shards of "
            f"{arguments.max_shard_size}; headers in the page cache.",
            str(state),
            "safe_open: one Python process that opens every file and lists names and shapes, and plans nothing.",
        ]
        print_figures("Planning", figures, costs, facts, folder, ("safetensors", "huggingface_hub"))


if __name__ == "__main__":
    main()
