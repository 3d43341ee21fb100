"""Save a model as trainers do, over a gloo group, one process a rank. A process of its own.

`python -m tests.scenarios.trainer MODEL OUT RANKS HOW…` cuts the model in the folder MODEL over RANKS and saves it in
OUT/HOW: `hf` and `hf-columns` by `dcp.save` with HuggingFaceStorageWriter, `plain` and `columns` with FileSystemWriter,
an optimizer and a step beside the model, `accelerate` by the `save_state` of accelerate's FSDP after a step of training.
What that has trained is saved whole in OUT/trained too. In `columns` tensors are cut along any of their dimensions.
"""

import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tests.scenarios.ranks import on_ranks

warnings.filterwarnings("ignore")


def main() -> None:
    folder, out, ranks, ways = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    if "accelerate" in ways:  # once for all ranks
        import accelerate  # noqa: F401
        from transformers import AutoModelForCausalLM  # noqa: F401
    groups = [how for how in ways if how != "accelerate"], [how for how in ways if how == "accelerate"]
    sys.exit(not all([on_ranks(ranks, partial(_work, ranks, folder, out, group)) for group in groups if group]))


def _work(ranks: int, folder: Path, out: Path, ways: list[str], rank: int) -> None:
    if ways == ["accelerate"]:
        _accelerate(folder, out / "accelerate")
        return
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (ranks,))
    for how in ways:
        _distribute(folder, out / how, mesh, how)
    dist.destroy_process_group()


def _distribute(folder: Path, out: Path, mesh: Any, how: str) -> None:
    state = {name: _placed(name, tensor, mesh, how) for name, tensor in _loaded(folder).items()}
    if how.startswith("hf"):
        state |= {"model.steps": torch.arange(3), "model.scale": torch.tensor(7, dtype=torch.int16)}
        several = {name: 1 + number % 3 for number, name in enumerate(state)} if how == "hf-columns" else None
        writer: Any = dcp.HuggingFaceStorageWriter(str(out), several, save_distributed=True)
        dcp.save(state, storage_writer=writer)
    else:
        moments = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
        optimizer = {"state": {name: {"exp_avg": moments[name], "step": torch.tensor(3.0)} for name in state}}
        whole = {"model": state, "optimizer": optimizer, "step": 3, "lr_scheduler": {"last": [1, 2]}}
        dcp.save(whole, storage_writer=dcp.FileSystemWriter(str(out), thread_count=1 + (how == "columns")))


def _loaded(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def _placed(name: str, tensor: torch.Tensor, mesh: Any, how: str) -> torch.Tensor:
    if not tensor.ndim:
        return tensor
    axis = len(name) % tensor.ndim if how in ("columns", "hf-columns") else 0
    if name.endswith("norm.weight") and how != "plain":
        return distribute_tensor(tensor, mesh, [Replicate()])
    found: DTensor = distribute_tensor(tensor, mesh, [Shard(axis)])
    return found


def _accelerate(folder: Path, out: Path) -> None:
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin, PartialState
    from transformers import AutoModelForCausalLM

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        state_dict_type="SHARDED_STATE_DICT",
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
    )
    accelerator = Accelerator(cpu=True)
    # By itself accelerate takes FSDP on accelerators only.
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    model(torch.arange(3, 15).view(1, 12)).logits.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    accelerator.save_state(str(out))
    whole = accelerator.get_state_dict(model)
    if accelerator.is_main_process:
        unwrapped = AutoModelForCausalLM.from_config(model.config)
        unwrapped.load_state_dict(whole)
        unwrapped.save_pretrained(out.parent / "trained")
    accelerator.wait_for_everyone()
    accelerator.end_training()


if __name__ == "__main__":
    main()
