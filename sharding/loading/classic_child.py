"""The process of the classic engine: load with transformers, save with accelerate, load that again; run no repo's code.

Arguments: folder, new folder, bytes of the largest shard, dtype or "keep".
"""

import sys
from pathlib import Path

from sharding.core.allowance import load_allowance, memory_allowance
from sharding.model_class.transformers_class import Unsupported, model_class


def main() -> None:
    """Re-shard one folder into another. Exits with the reason if the class is not transformers' own."""
    try:
        import transformers.modeling_utils  # noqa: F401 - first, so that the limit is the model's alone

        with memory_allowance(load_allowance(Path(sys.argv[1]))):
            load_and_save(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
    except (Unsupported, MemoryError) as error:
        sys.exit(str(error))


def load_and_save(folder: Path, out: Path, max_shard_bytes: int, dtype: str) -> None:
    """Load the checkpoint in `folder`, save it in `out`, and load that again. Raises Unsupported or MemoryError."""
    import torch
    from accelerate import Accelerator, init_empty_weights, load_checkpoint_and_dispatch

    cls, config = model_class(folder)
    wanted = "auto" if dtype == "keep" else getattr(torch, dtype)
    model = cls.from_pretrained(folder, low_cpu_mem_usage=True, dtype=wanted, local_files_only=True)
    Accelerator().save_model(model, out, max_shard_size=max_shard_bytes)
    classes, dtype_loaded = sorted(model._no_split_modules or []), model.dtype
    del model
    with init_empty_weights():
        empty = cls._from_config(config, dtype=dtype_loaded)
    empty.tie_weights()
    load_checkpoint_and_dispatch(empty, out, device_map={"": "cpu"}, no_split_module_classes=classes)


if __name__ == "__main__":
    main()
