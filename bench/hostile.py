"""Planning merges with hostile adapters of every kind, of N, 2 N and 4 N names: whether time grows faster than N."""

import statistics
import sys
import time

from harness.processes import ROOT
from harness.results import tell
from harness.scratch import benchmark_arguments
from rich import box
from rich.table import Table

sys.path.insert(0, str(ROOT))  # the merges are planned in this process

from harness.hostile_adapters import KINDS, build, plan_merge


def main() -> None:
    """Plan each kind in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--names", type=int, default=5_000, help="N (default: 5000)")
    arguments = parser.parse_args()
    table = Table("kind", "N", "2 N", "4 N", "4 N to 2 N", "outcome at 4 N", box=box.MARKDOWN)
    for kind in KINDS:
        seconds, outcome = [], ""
        for times in (1, 2, 4):
            taken = []
            for _ in range(max(1, arguments.pairs)):
                checkpoint = build(kind, times * arguments.names)
                began = time.perf_counter()
                outcome = plan_merge(checkpoint)
                taken.append(time.perf_counter() - began)
            seconds.append(statistics.median(taken))
        shown = [f"{one:.2f} s" for one in seconds]
        table.add_row(kind, *shown, f"{seconds[2] / seconds[1]:.1f}", outcome)
    facts = [
        f"N is {arguments.names:,}. Kinds with longer names have fewer. In one process, without a Hub.",
        "What grows in step with its input doubles. What is refused at a limit takes no longer from there on.",
    ]
    tell("Hostile adapters", table, facts, ROOT, ("pydantic",))


if __name__ == "__main__":
    main()
