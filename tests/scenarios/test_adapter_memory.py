"""An adapter is merged into a model of any size in little memory, as the kernel counts it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.commands import run_process
from tests.promises import promise

ITEM_BYTES = {"BF16": 2, "F32": 4}
WIDTH, INNER, WORDS, LAYERS, RANK = 2048, 5632, 32_000, 15, 64
LINEAR = {
    "self_attn.q_proj": (WIDTH, WIDTH),
    "self_attn.k_proj": (WIDTH // 8, WIDTH),
    "self_attn.v_proj": (WIDTH // 8, WIDTH),
    "self_attn.o_proj": (WIDTH, WIDTH),
    "mlp.gate_proj": (INNER, WIDTH),
    "mlp.up_proj": (INNER, WIDTH),
    "mlp.down_proj": (WIDTH, INNER),
}


def write_holes(path: Path, dtype: str, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Write a safetensors file of zeros that takes no place on the disk; return its size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in sorted(shapes.items()):
        start, end = end, end + ITEM_BYTES[dtype] * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(stream.tell() + end)
    return path.stat().st_size


def write_base(folder: Path) -> int:
    """Write a Llama of 1.5 GB."""
    folder.mkdir()
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "tie_word_embeddings": False}
    (folder / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        f"model.layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in LINEAR.items()
    }
    shapes |= {"model.embed_tokens.weight": (WORDS, WIDTH), "lm_head.weight": (WORDS, WIDTH)}
    return write_holes(folder / "model.safetensors", "BF16", shapes)


def write_adapter(folder: Path) -> None:
    """Write an adapter of rank 64 on every linear layer."""
    folder.mkdir()
    targets = [name.rpartition(".")[2] for name in LINEAR]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": targets}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        for name, (outputs, inputs) in LINEAR.items():
            module = f"base_model.model.model.layers.{layer}.{name}"
            shapes |= {f"{module}.lora_A.weight": (RANK, inputs), f"{module}.lora_B.weight": (outputs, RANK)}
    write_holes(folder / "adapter_model.safetensors", "F32", shapes)


@promise("docs/formats.md#lora-adapters")
@pytest.mark.thorough
def test_an_adapter_of_rank_64_is_merged_into_a_model_of_1_5_gb_within_200_mb(tmp_path: Path) -> None:
    base, adapter, out = tmp_path / "base", tmp_path / "adapter", tmp_path / "out"
    assert write_base(base) > 1_500_000_000
    write_adapter(adapter)
    done = run_process("shard", base, out, "--adapter", adapter, "--max-shard-size", "500MB", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["verification"]["identical"]
    assert report["resources"]["peak_anon_bytes"] <= 200_000_000
