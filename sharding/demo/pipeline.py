"""Show one model on two processes without a network. Each takes its part from a Hub on this machine."""

import os
import subprocess
import sys
from pathlib import Path
from shutil import rmtree

from sharding.demo.whole_job import NEW_TOKENS, PROMPT, SOURCE, download, generate, serve_sample, shard

_RANKS = 2


def main() -> None:
    """Work in the folder `demo/pipeline`. Exit with 1 if two processes write another text than one process."""
    place = Path("demo", "pipeline")
    rmtree(place, ignore_errors=True)
    with serve_sample(place) as endpoint:
        for rank in range(_RANKS):
            shard(place, endpoint, f"./{place}/rank{rank}", "--strategy", f"pp:{_RANKS}", "--rank", str(rank))
        whole = download(SOURCE, place, endpoint)
    print(f"\nLoading the whole model in one process, then its parts in {_RANKS} processes.")
    print(f"Each writes {NEW_TOKENS} tokens after {PROMPT!r}:", flush=True)
    alone = generate(whole)
    print(f"  one process    {alone!r}", flush=True)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(_RANKS)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        [sys.executable, *launch, "-m", "sharding.demo.pipeline", str(place)],
        env=env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    print(done.stdout, end="")
    texts = [line.partition("    ")[2] for line in done.stdout.splitlines()]
    agree = not done.returncode and texts == [repr(alone)] * _RANKS
    print("They agree." if agree else "They differ!")
    sys.exit(not agree)


def be_rank(place: Path) -> None:
    """Load `rank0`, `rank1` … of `place`, as torchrun says which, and print the text that all ranks write together."""
    import torch.distributed
    from transformers.distributed import DistributedConfig

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    text = generate(place / f"rank{rank}", distributed_config=DistributedConfig(pp_size=ranks))
    # One write, newline included, because all ranks share one pipe.
    print(f"  rank {rank} of {ranks}    {text!r}\n", end="", flush=True)
    # Threads of the group can abort a process that ends before them, and a rank that ends first breaks the others.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_rank(Path(sys.argv[1]))
    else:
        main()
