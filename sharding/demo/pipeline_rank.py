"""One rank of a pipeline of transformers: load the part of its own folder, compute with the others. Run by torchrun."""

import os
import sys
from pathlib import Path

from sharding.demo.whole_job import generate


def main() -> None:
    """Load `rank0`, `rank1` … in the folder that is named, and print what all of them have written together."""
    import torch.distributed
    from transformers.distributed import DistributedConfig

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    text = generate(Path(sys.argv[1], f"rank{rank}"), distributed_config=DistributedConfig(pp_size=ranks))
    # In one piece: all ranks write into one pipe.
    print(f"  rank {rank} of {ranks}    {text!r}\n", end="", flush=True)
    # A process that ends with threads of the group alive may be aborted by them, and one that ends first breaks others.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
