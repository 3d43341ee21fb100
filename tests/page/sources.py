"""What the page is tried with, written by hand: to import torch takes seconds."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.conftest import random_tensors, write_checkpoint

LONG = "60kB"
"""What cuts the source of `save_long` into 12 shards: into a slow repo, there is time to interfere."""
LAYERS, SIDE, RANK = 6, 32, 4
"""Of the model that an adapter changes, and of the adapter."""


def save_one(folder: Path, tensors: Mapping[str, np.ndarray] | None = None) -> Path:
    """A model of 240 kB, or of `tensors`, in one file."""
    return write_checkpoint(folder, {"model.safetensors": tensors or random_tensors()}, False)


def save_long(folder: Path) -> Path:
    return save_one(folder, {f"layers.{n}.weight": np.full(3000, n, np.float32) for n in range(60)})


def save_layered(folder: Path) -> Path:
    """A model of 40 layers."""
    parts = {"self_attn.q_proj": 1000, "mlp.up_proj": 1500, "input_layernorm": 25}
    names = {f"model.layers.{n}.{part}.weight": (n, size) for n in range(40) for part, size in parts.items()}
    tensors = {name: np.full(size, n, np.float32) for name, (n, size) in names.items()}
    return save_one(folder, {**tensors, "model.embed_tokens.weight": np.ones(9000, np.float32)})


def save_variants(folder: Path) -> Path:
    """Float32 weights, three of them too large for fp16, and their variant fp16."""
    plain = {f"layers.{n}.weight": np.full(3000, n, np.float32) for n in range(6)}
    plain["layers.5.weight"][:3] = 1e6
    half = {name: np.minimum(tensor, 6e4).astype(np.float16) for name, tensor in plain.items()}
    write_checkpoint(folder, {"model.safetensors": plain, "model.fp16.safetensors": half}, False)
    (folder / "config.json").unlink()  # nothing for transformers to be asked about
    return folder


def save_fp8(folder: Path) -> Path:
    """A model in FP8, with a scale for each 128 x 128."""
    parts: dict[str, tuple[str, tuple[int, ...], bytes]] = {"norm.weight": ("BF16", (400,), b"\x80\x3f" * 400)}
    for n in range(4):  # 448 is the largest number in FP8: with these scales, layer n is n + 1 all over
        parts[f"layers.{n}.weight"] = ("F8_E4M3", (200, 400), b"\x7e" * 80_000)
        scales = np.full((2, 4), (n + 1) / 448, np.float32)
        parts[f"layers.{n}.weight_scale_inv"] = ("F32", scales.shape, scales.tobytes())
    entries, end = {}, 0
    for name, (dtype, shape, content) in parts.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + len(content)]}
    header = json.dumps(entries).encode()
    folder.mkdir()
    content = len(header).to_bytes(8, "little") + header + b"".join(content for *_, content in parts.values())
    (folder / "model.safetensors").write_bytes(content)
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": said}))
    return folder


def save_plain(folder: Path) -> Path:
    """A model of which an adapter changes two tensors in each layer."""
    parts = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    names = [f"model.layers.{n}.{part}.weight" for n in range(LAYERS) for part in parts]
    numbers = np.random.default_rng(0).standard_normal((len(names) + 2, SIDE, SIDE)).astype(np.float32)
    tensors = dict(zip(names, numbers[2:], strict=True))
    return save_one(folder, {**tensors, "model.embed_tokens.weight": numbers[:2].reshape(64, SIDE)})


def save_lora(folder: Path, side: int = SIDE) -> Path:
    """An adapter as PEFT saves it."""
    generator, tensors = np.random.default_rng(1), {}
    for layer in range(LAYERS):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = generator.standard_normal((RANK, side)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = generator.standard_normal((side, RANK)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def save_ranks(folder: Path) -> Path:
    """A model of 240 kB as two ranks leave it, cut along the first dimension."""
    for rank in (0, 1):
        whole = random_tensors()
        halves = {name: np.array_split(array, [len(array) // 2])[rank].copy() for name, array in whole.items()}
        starts = {name: [rank * (len(array) // 2), *[0] * (array.ndim - 1)] for name, array in whole.items()}
        info = json.dumps({name: {"saved_offsets": start} for name, start in starts.items()})
        metadata = {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": info}
        save_file(halves, folder / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors", metadata)
    return folder
