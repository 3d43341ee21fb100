"""Be one rank of a transformers pipeline, as torchrun runs it: load the part in its own folder."""

import os
import sys
from pathlib import Path

from sharding.demo.whole_job import generate


def main() -> None:
    """Load `rank0`, `rank1` … of the folder in the first argument, and print the text that all ranks write together."""
    import torch.distributed
    from transformers.distributed import DistributedConfig

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    text = generate(Path(sys.argv[1], f"rank{rank}"), distributed_config=DistributedConfig(pp_size=ranks))
    # One write, newline included, because all ranks share one pipe.
    print(f"  rank {rank} of {ranks}    {text!r}\n", end="", flush=True)
    # Threads of the group can abort a process that ends before them, and a rank that ends first breaks the others.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
