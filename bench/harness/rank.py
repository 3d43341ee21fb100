"""One rank of a pipeline: load, compute once, and write down what came into its cache and what it held."""

import json
import os
import sys
from pathlib import Path


def main() -> None:
    """Read HOME VARIANT PLACE… from the command line; a PLACE for each rank."""
    home, variant, *places = sys.argv[1:]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cache = Path(home, f"cache{rank}")
    os.environ["HF_HOME"] = str(cache)

    import torch
    from transformers import AutoModelForCausalLM
    from transformers.distributed import DistributedConfig

    from sharding.core.meter import Meter

    options = {"variant": variant.format(rank=rank)} if variant else {}
    with Meter() as meter, torch.no_grad():
        config = DistributedConfig(pp_size=ranks)
        model = AutoModelForCausalLM.from_pretrained(places[rank], dtype="auto", distributed_config=config, **options)
        model(torch.arange(8).view(1, 8))
    fetched = sum(path.stat().st_size for path in cache.rglob("*.safetensors*") if path.is_symlink())
    told = {"bytes": fetched, "anon": meter.peak_anon_bytes}
    Path(home, f"{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
