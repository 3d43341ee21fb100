"""What round trips to a Hub cost: requests of a plan, many small tensors at 50 ms a request, commits that take 1 s."""

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checkpoints import build_sparse
from harness.figures import Figure, print_figures, ratio, seconds
from harness.hubs import HubState, filled
from harness.processes import Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_PLAN, _JOB, _SLOW_JOB = "plan", "job", "job, 50 ms on every request"
_SHARDS, _SLOW_SHARDS = "job of 40 shards", "job of 40 shards, 1 s on every commit"
_DELAY, _SLOW_COMMITS = "--fault=delay:0.05@.", "--fault=delay:1@POST .*/commit/"
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
        full = filled(folder, [folder / "many", folder / "small"])
        ours = (sys.executable, "-m", "sharding")
        shard = (*ours, "shard", "alice/small", "alice/result", "--max-shard-size", "50MB", "--json")
        shards = (*ours, "shard", str(folder / "small"), "alice/result", "--max-shard-size", "5MB", "--json")
        served = folder / "served"
        plan_log, job_log = folder / "plan.log", folder / "job.log"
        contenders = [
            Contender(_PLAN, (*ours, "plan", "alice/many", "--json"), within=HubState(served, full, log=plan_log)),
            Contender(_JOB, shard, within=HubState(served, full, log=job_log)),
            Contender(_SLOW_JOB, shard, within=HubState(served, full, (_DELAY,))),
            Contender(_SHARDS, shards, within=HubState(served)),
            Contender(_SLOW_SHARDS, shards, within=HubState(served, None, (_SLOW_COMMITS,))),
        ]
        state = State((served,))
        costs = take_turns(contenders, arguments.pairs, state)
        requests = {log: log.read_text().count(' HTTP/1.1" ') for log in (plan_log, job_log)}
        figures = [
            ratio(f"time, {_SLOW_JOB} to {_JOB}", seconds(costs[_SLOW_JOB]), seconds(costs[_JOB]), "at most 1.5"),
            Figure(f"time, {_PLAN}", seconds(costs[_PLAN]), "{:.3f} s", "at most 3 s"),
            Figure(
                f"{_SLOW_SHARDS}: longer by", _longer(costs[_SLOW_SHARDS], costs[_SHARDS]), "{:.3f} s", "at most 6 s"
            ),
        ]
        facts = [
            f"plan: {arguments.tensors:,} tensors in {arguments.files} files on a Hub, headers only: "
            f"{requests[plan_log]} requests.",
            f"job: one file of {arguments.small_tensors:,} tensors of {_SMALL_BYTES:,} bytes, in the order of their "
            f"names, into shards of 50MB in natural order, Hub to Hub, verified: {requests[job_log]} requests.",
            "job of 40 shards: the same tensors from a folder into shards of 5MB, to an empty Hub.",
            str(state),
        ]
        print_figures("Round trips", figures, costs, facts, folder, ("huggingface_hub", "hf-xet"))


def _longer(slow: Sequence[Cost], quick: Sequence[Cost]) -> tuple[float, ...]:
    return tuple(one - other for one, other in zip(seconds(slow), seconds(quick), strict=True))


def _build_small(folder: Path, tensors: int) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    random = np.random.default_rng(0)
    folder.mkdir()
    arrays = {f"layers.{n}.bias": np.frombuffer(random.bytes(_SMALL_BYTES), np.float32) for n in range(tensors)}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    main()
