"""What round trips to a Hub cost: requests of a plan, and a job of many small tensors with 50 ms on every request."""

import subprocess
import sys
from pathlib import Path

from harness.checkpoints import build_sparse
from harness.figures import Figure, print_figures, ratio, seconds
from harness.hubs import HubState, environment, serve
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_PLAN, _JOB, _SLOW_JOB = "plan", "job", "job, 50 ms on every request"
_DELAY = "--fault=delay:0.05@."
_SMALL_BYTES = 20_000


def main() -> None:
    """Put two checkpoints on a Hub, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--tensors", type=int, default=100_000, help="in all files of the plan together")
    parser.add_argument("--small-tensors", type=int, default=10_000, help="in the one file of the job")
    arguments = parser.parse_args()
    with scratch(arguments.folder, 8_000_000_000) as folder:
        build_sparse(folder / "many", arguments.files, arguments.tensors, width=8)
        _build_small(folder / "small", arguments.small_tensors)
        full = folder / "full"
        with serve(full) as address:
            for name in ("many", "small"):
                command = (sys.executable, ROOT / "bench/harness/peers.py", "upload", folder / name, f"alice/{name}")
                subprocess.run([*map(str, command)], env=dict(environment(address, folder / "home")), check=True)
        ours = (sys.executable, "-m", "sharding")
        shard = (*ours, "shard", "alice/small", "alice/result", "--max-shard-size", "50MB", "--json")
        served = folder / "served"
        plan_log, job_log = folder / "plan.log", folder / "job.log"
        contenders = [
            Contender(_PLAN, (*ours, "plan", "alice/many", "--json"), within=HubState(served, full, log=plan_log)),
            Contender(_JOB, shard, within=HubState(served, full, log=job_log)),
            Contender(_SLOW_JOB, shard, within=HubState(served, full, (_DELAY,))),
        ]
        state = State((served,))
        costs = take_turns(contenders, arguments.pairs, state)
        requests = {log: log.read_text().count(' HTTP/1.1" ') for log in (plan_log, job_log)}
        figures = [
            ratio(f"time, {_SLOW_JOB} to {_JOB}", seconds(costs[_SLOW_JOB]), seconds(costs[_JOB]), "at most 1.5"),
            Figure(f"time, {_PLAN}", seconds(costs[_PLAN]), "{:.3f} s", "at most 3 s"),
        ]
        facts = [
            f"plan: {arguments.tensors:,} tensors in {arguments.files} files on a Hub, headers only: "
            f"{requests[plan_log]} requests.",
            f"job: one file of {arguments.small_tensors:,} tensors of {_SMALL_BYTES:,} bytes, in the order of their "
            f"names, into shards of 50MB in natural order, Hub to Hub, verified: {requests[job_log]} requests.",
            str(state),
        ]
        print_figures("Round trips", figures, costs, facts, folder, ("huggingface_hub", "hf-xet"))


def _build_small(folder: Path, tensors: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    folder.mkdir()
    arrays = {f"layers.{n}.bias": np.frombuffer(random.bytes(_SMALL_BYTES), np.float32) for n in range(tensors)}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
