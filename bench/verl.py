"""Make an ordinary checkpoint of a run that saved one file a rank: ours, and verl's own merger."""

import os
import subprocess
import sys

from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_KEEP, _OURS, _VERL = "ours", "ours, --dtype bf16", "verl.model_merger"
_SIZE = 360  # Of `rank_saver`: a Qwen3 of 0.39 billion parameters.


def main() -> None:
    """Save a run on 4 ranks in fp32, make a model of it in turns, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--verl", required=True, help="folder in which `pip install --no-deps --target` put verl")
    parser.add_argument("--size", type=int, default=_SIZE)
    arguments = parser.parse_args()
    with scratch(arguments.folder, 6_000_000_000) as folder:
        saver = (sys.executable, "-m", "tests.scenarios.rank_saver", str(folder), str(arguments.size))
        subprocess.run(saver, check=True, cwd=ROOT, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"})
        run, out = folder / "verl", str(folder / "out")
        contenders = [
            Contender(_KEEP, (sys.executable, "-m", "sharding", "shard", str(run), out, "--json")),
            Contender(_OURS, (sys.executable, "-m", "sharding", "shard", str(run), out, "--dtype", "bf16", "--json")),
            Contender(_VERL, (sys.executable, "-m", "tests.kinds.verl_merger", arguments.verl, str(run), out)),
        ]
        costs = take_turns(contenders, arguments.pairs, State((folder / "out",), touched_bytes=3_000_000_000))
        ours, theirs = costs[_OURS], costs[_VERL]
        memory = anon_megabytes(theirs), anon_megabytes(ours)
        figures = [
            ratio(f"time, {_OURS} to {_VERL}", seconds(ours), seconds(theirs), "at most 0.8"),
            ratio(f"peak anonymous memory, {_VERL} to {_OURS}", *memory),
            Figure(f"peak anonymous memory, {_KEEP}", anon_megabytes(costs[_KEEP]), "{:.1f} MB", "at most 200"),
        ]
        size = sum(path.stat().st_size for path in run.glob("*.pt"))
        facts = [
            f"A run of {size / 1e9:.2f} GB in fp32 that 4 ranks saved with FSDP2. verl writes bf16.",
            "verl's merger does not hash, read again or sync. Ours includes all of that.",
        ]
        print_figures("One file a rank", figures, costs, facts, folder, ("torch", "transformers"))


if __name__ == "__main__":
    main()
