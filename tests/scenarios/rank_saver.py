"""Save a tiny model as one file a rank, as verl, SkyRL and accelerate do. Makes `tests/checkpoint/ranks.zip`.

`python -m tests.scenarios.rank_saver OUT [SIZE]` (torch 2.13, transformers 5.23, PEFT 0.21) writes a folder for each
way, with `truth.safetensors`: the whole tensors, as torch gathers them. `SIZE` makes a larger model, for a benchmark.
"""

import json
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardedStateDictConfig, StateDictType, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.scenarios.ranks import on_ranks

warnings.filterwarnings("ignore")
WAYS = {"verl": 3, "hsdp": 4, "tp": 4, "sharded": 3, "lora": 2, "flat": 2}
"""How many ranks save in each way."""
ACCELERATE = ("sharded", "flat")


def model_of(size: int = 1) -> Any:
    """Return a Qwen3 of random weights, whose dimensions no number of ranks divides, a small one with two buffers."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "qwen3", hidden_size=7 * size, intermediate_size=11 * size, num_attention_heads=1, num_key_value_heads=1,
        head_dim=4 * size, num_hidden_layers=1 if size == 1 else 8, vocab_size=17 * size, tie_word_embeddings=False,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    model.config.architectures = [type(model).__name__]  # verl's merger asks for it
    if size == 1:
        model.register_buffer("steps", torch.tensor([2**40 + 1, 3]))  # bf16 cannot hold it
        model.model.register_buffer("scale", torch.tensor(0.1))
    return model


def main() -> None:
    out, size = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.set_num_threads(1)
    ways = {"verl": 4} if size > 1 else WAYS
    done = all([on_ranks(ranks, partial(_save, out, way, ranks, size)) for way, ranks in ways.items()])
    with ZipFile(out / "ranks.zip", "w", ZIP_DEFLATED, compresslevel=9) as packed:
        for path in sorted(path for way in ways for path in (out / way).rglob("*") if path.is_file() and size == 1):
            packed.write(path, path.relative_to(out))
    sys.exit(not done)


def _save(out: Path, way: str, ranks: int, size: int, rank: int) -> None:
    dist.init_process_group("gloo")
    model, folder = model_of(size), out / way
    if way == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_()
    cut, state = _placed(model, way, ranks)
    name = (
        f"model_world_size_{ranks}_rank_{rank}.pt" if way not in ACCELERATE else f"pytorch_model_fsdp_0_rank{rank}.bin"
    )
    folder.mkdir(parents=True, exist_ok=True)
    torch.save(state, folder / name)
    whole = _again(cut, way) if way != "flat" and size == 1 else {}
    if not rank:
        if way not in ACCELERATE:
            (folder / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
            inner = model.base_model.model if way == "lora" else model
            inner.config.save_pretrained(folder / "huggingface")
        if way == "lora":
            model.peft_config["default"].save_pretrained(folder / "lora_adapter")
        if whole:
            save_file({name: value.contiguous() for name, value in whole.items()}, folder / "truth.safetensors")
    dist.destroy_process_group()


def _again(model: Any, way: str) -> dict[str, torch.Tensor]:
    """Return the whole tensors of a model that is cut, as torch gathers them."""
    if way in ACCELERATE:
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            return dict(model.state_dict())
    state = model.state_dict().items()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state}


def _placed(model: Any, way: str, ranks: int) -> tuple[Any, dict[str, Any]]:
    """Return `model`, cut over the ranks, and the state that this rank saves."""
    if way in ACCELERATE:
        cut = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=way != "flat")
        kind = StateDictType.LOCAL_STATE_DICT if way == "flat" else StateDictType.SHARDED_STATE_DICT
        FullyShardedDataParallel.set_state_dict_type(cut, kind, *([] if way == "flat" else [ShardedStateDictConfig()]))
        return cut, dict(cut.state_dict())
    mesh = {
        "hsdp": lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("ddp", "fsdp")),
        "tp": lambda: init_device_mesh("cpu", (2, 2), mesh_dim_names=("fsdp", "tp")),
    }.get(way, lambda: init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",)))()
    if way == "tp":
        plan = {"mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()}
        for layer in model.model.layers:
            parallelize_module(layer, mesh["tp"], plan)
    inner = model.base_model.model if way == "lora" else model
    for layer in inner.model.layers:
        fully_shard(layer, mesh=mesh["fsdp"] if way == "tp" else mesh)
    fully_shard(model, mesh=mesh["fsdp"] if way == "tp" else mesh)
    return model, model.state_dict()


if __name__ == "__main__":
    main()
