"""Write checkpoints to measure with, in the format of the Hub: random or quantized ones, adapters, and sparse ones."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 16 << 20
_BYTES = {"BF16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I32": 4, "I64": 8, "F16": 2}
_NAMES = {"BF16": "bfloat16", "F32": "float32"}
_INDEX_NAME = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"
    numbers: tuple[int, ...] = ()  # Its numbers, if they are not random.

    @property
    def parameters(self) -> int:
        """Number of elements."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @property
    def bytes(self) -> int:
        """Size of the data."""
        return self.parameters * _BYTES[self.dtype]


def build_llama(folder: Path, weight_bytes: int, dtype: str = "BF16") -> None:
    """Write a Llama of about `weight_bytes` in two files, in a process of its own: it imports torch."""
    _build("llama", folder, "--bytes", weight_bytes, "--dtype", dtype)


def build_sparse(folder: Path, files: int, tensors: int, width: int = 2048, *, filled: bool = False) -> None:
    """Write `files` files that hold `tensors` tensors, one side of each `width`: headers, and holes for the weights.

    With `filled` there are random bytes in the place of holes, which nothing packs any tighter.
    """
    _build("sparse", folder, "--files", files, "--tensors", tensors, "--width", width, *["--filled"] * filled)


def build_quantized(folder: Path, kind: str, weight_bytes: int) -> None:
    """Write about `weight_bytes` of quantized weights: a Llama in FP8 or packed integers, or one weight in a format."""
    _build("quantized", folder, "--of", kind, "--bytes", weight_bytes)


def build_adapter(folder: Path, base: Path, rank: int, *, is_dora: bool = False) -> None:
    """Write a random adapter in fp32 for every linear layer of the Llama in `base`."""
    _build("adapter", folder, "--base", base, "--rank", rank, *["--dora"] * is_dora)


def weight_bytes(folder: Path) -> int:
    """Return the size of the weight files in `folder`, holes included."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _build(kind: str, folder: Path, *arguments: object) -> None:
    subprocess.run([sys.executable, __file__, kind, folder, *map(str, arguments)], check=True)


def _write_llama(folder: Path, weight_bytes: int, dtype: str) -> None:
    import numpy as np
    from safetensors import safe_open

    config, tensors = _llama(weight_bytes, dtype)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config)
    files = _in_two_files(tensors)
    random = np.random.default_rng(0)
    for name, part in files.items():
        with open(folder / name, "wb") as stream:
            write_header(stream, part)
            left_bytes = sum(tensor.bytes for tensor in part)
            while left_bytes:
                chunk_bytes = min(left_bytes, _CHUNK_BYTES)
                # Any sign, an exponent from -7 to -4, any mantissa: finite in fp16 too, and quicker than a normal.
                bits = random.integers(0, 1 << 16, chunk_bytes // 2, np.uint16)
                upper = slice(None) if dtype == "BF16" else slice(1, None, 2)  # the upper half of an fp32 is a bf16
                bits[upper] = bits[upper] & 0x81FF | 0x3C00
                stream.write(bits.data)
                left_bytes -= chunk_bytes
        with safe_open(folder / name, framework="np") as file:
            assert sorted(file.keys()) == [tensor.name for tensor in part]
    write_index(folder, files)


_SIDE = 128
_ROWS, _GROUPS = 5760, 90
"""Of an expert of gpt-oss: its rows, and the groups of 32 columns in each."""


def _write_quantized(folder: Path, kind: str, weight_bytes: int) -> None:
    folder.mkdir(parents=True)
    said: dict[str, object] = {"quant_method": "fp8", "weight_block_size": [_SIDE, _SIDE]}
    config: dict[str, object] = {}  # of no class: nothing is asked
    match kind:
        case "llama":
            text, tensors = _llama(2 * weight_bytes, "BF16")
            config, tensors = json.loads(text), [part for tensor in tensors for part in _in_fp8(tensor)]
        case "int4":
            text, tensors = _llama(4 * weight_bytes, "BF16")
            config, tensors = json.loads(text), [part for tensor in tensors for part in _in_int4(tensor)]
            weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": _SIDE}
            groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
            said = {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": groups}
            said |= {"ignore": ["lm_head"]}
        case "gptq":
            said = {"quant_method": "gptq", "bits": 4, "group_size": _SIDE}
            rows, columns = 28672, 8192  # as in a Llama of 70 billion parameters
            shapes = {"qweight": (columns // 8, rows), "qzeros": (columns // _SIDE, rows // 8)}
            tensors = [Tensor(f"up_proj.{name}", shape, "I32") for name, shape in shapes.items()]
            tensors.append(Tensor("up_proj.scales", (columns // _SIDE, rows), "F16"))
        case "fp8":
            side = round(weight_bytes**0.5) // _SIDE * _SIDE
            tensors = _in_fp8(Tensor("a_proj.weight", (side, side)))
        case _:
            said = {"quant_method": "mxfp4"}
            experts = max(1, weight_bytes // (_ROWS * _GROUPS * 17))
            shape = (experts, _ROWS, _GROUPS)
            tensors = [Tensor("up_proj_blocks", (*shape, 16), "U8"), Tensor("up_proj_scales", shape, "U8")]
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    # As safetensors 0.8 lays out tensors of several dtypes.
    tensors.sort(key=lambda tensor: (-_BYTES[tensor.dtype], tensor.name))
    with open(folder / "model.safetensors", "wb") as stream:
        write_header(stream, tensors)
        for tensor in tensors:
            _write_numbers(stream, tensor)


def _in_fp8(tensor: Tensor) -> list[Tensor]:
    """Return what a tensor of a Llama is in FP8: a matrix between layers and its scales, or itself."""
    if not tensor.name.endswith("_proj.weight"):
        return [tensor]
    grid = tuple(-(-length // _SIDE) for length in tensor.shape)
    return [Tensor(tensor.name, tensor.shape, "F8_E4M3"), Tensor(f"{tensor.name}_scale_inv", grid, "F32")]


def _in_int4(tensor: Tensor) -> list[Tensor]:
    """Return what a tensor of a Llama is as packed integers, with a scale for each 128."""
    if not tensor.name.endswith("_proj.weight"):
        return [tensor]
    rows, columns = tensor.shape
    packed, scales = Tensor(f"{tensor.name}_packed", (rows, columns // 8), "I32"), (rows, columns // _SIDE)
    return [
        packed,
        Tensor(f"{tensor.name}_scale", scales),
        Tensor(f"{tensor.name}_shape", (2,), "I64", (rows, columns)),
    ]


def _write_numbers(stream: BinaryIO, tensor: Tensor) -> None:
    """Write random numbers of a dtype, all of them finite, and small ones for scales."""
    import numpy as np

    random = np.random.default_rng(0)
    left_bytes = tensor.bytes
    if tensor.numbers:
        stream.write(np.array(tensor.numbers, np.int64).data)
        return
    while left_bytes:
        count = min(left_bytes, _CHUNK_BYTES)
        bits = random.integers(0, 256, count, np.uint8)
        match tensor.dtype:
            case "F8_E4M3":
                bits &= 0xF7  # no NaN
            case "U8" if tensor.name.endswith("_scales"):
                bits = bits % 8 + 116
            case "F32":
                bits.view(np.uint32)[:] = (bits.view(np.uint32) & 0x007FFFFF) | 0x3A000000
            case "BF16" | "F16":
                bits.view(np.uint16)[:] = (bits.view(np.uint16) & 0x81FF) | 0x3C00
        stream.write(bits.data)
        left_bytes -= count


def _llama(weight_bytes: int, dtype: str) -> tuple[str, list[Tensor]]:
    """Return the configuration (JSON) and the tensors of the Llama whose size comes nearest to `weight_bytes`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def tensors(layers: int) -> tuple[str, list[Tensor]]:
        config = LlamaConfig(
            architectures=["LlamaForCausalLM"],
            dtype=_NAMES[dtype],
            vocab_size=32_000,
            hidden_size=2048,
            intermediate_size=5632,
            num_hidden_layers=layers,
            num_attention_heads=32,
            num_key_value_heads=4,
            tie_word_embeddings=False,
        )
        with torch.device("meta"):
            state = LlamaForCausalLM(config).state_dict()
        return config.to_json_string(), [Tensor(name, tuple(tensor.shape), dtype) for name, tensor in state.items()]

    one, two = (sum(tensor.bytes for tensor in tensors(layers)[1]) for layers in (1, 2))
    return tensors(max(1, 1 + round((weight_bytes - one) / (two - one))))


def _write_adapter(folder: Path, base: Path, rank: int, is_dora: bool) -> None:
    import numpy as np
    from safetensors import safe_open
    from safetensors.numpy import save_file

    random, tensors = np.random.default_rng(0), {}
    for path in sorted(base.glob("*.safetensors")):
        with safe_open(path, framework="np") as file:
            for name in [name for name in file.keys() if name.endswith("_proj.weight")]:  # noqa: SIM118
                outputs, inputs = file.get_slice(name).get_shape()
                module = f"base_model.model.{name.removesuffix('.weight')}"
                tensors[f"{module}.lora_A.weight"] = random.standard_normal((rank, inputs), np.float32) / 20
                tensors[f"{module}.lora_B.weight"] = random.standard_normal((outputs, rank), np.float32) / 20
                if is_dora:
                    tensors[f"{module}.lora_magnitude_vector"] = random.random(outputs, np.float32) + 1
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    targets = sorted({name.split(".")[-3] for name in tensors if name.endswith("lora_A.weight")})
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base), "r": rank}
    config |= {"lora_alpha": 2 * rank, "target_modules": targets, "use_dora": is_dora}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _in_two_files(tensors: Iterable[Tensor]) -> dict[str, list[Tensor]]:
    tensors = list(tensors)
    half_bytes = sum(tensor.bytes for tensor in tensors) // 2
    files: dict[str, list[Tensor]] = {f"model-0000{number}-of-00002.safetensors": [] for number in (1, 2)}
    first, second = files.values()
    for tensor in tensors:
        (first if half_bytes > 0 else second).append(tensor)
        half_bytes -= tensor.bytes
    for part in (first, second):
        part.sort(key=lambda tensor: tensor.name)  # as safetensors 0.8 lays out tensors of one dtype
    return files


def _write_sparse(folder: Path, files: int, tensors: int, width: int, filled: bool) -> None:
    folder.mkdir(parents=True)
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": files}
    (folder / "config.json").write_text(json.dumps(config))
    parts = {}
    for layer in range(files):
        count = tensors // files + (layer < tensors % files)
        parts[f"model-{layer + 1:05d}-of-{files:05d}.safetensors"] = sorted(
            (_expert(layer, number, width) for number in range(count)), key=lambda tensor: tensor.name
        )
    for name, part in parts.items():
        with open(folder / name, "wb") as stream:
            write_header(stream, part)
            if not filled:
                stream.truncate(stream.tell() + sum(tensor.bytes for tensor in part))
                continue
            for tensor in part:
                stream.write(os.urandom(tensor.bytes))
    write_index(folder, parts)


def _expert(layer: int, number: int, width: int) -> Tensor:
    """Return one of the three matrices of an expert, 3 MiB at a width of 2048, named as in Qwen3-MoE."""
    projection = ("down", "gate", "up")[number % 3]
    shape = (width, width * 3 // 8) if projection == "down" else (width * 3 // 8, width)
    return Tensor(f"model.layers.{layer}.mlp.experts.{number // 3}.{projection}_proj.weight", shape)


def write_header(stream: BinaryIO, tensors: Iterable[Tensor]) -> None:
    """Write length and header as safetensors 0.8 does: compact JSON, padded with spaces to a multiple of 8."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end_byte = 0
    for tensor in tensors:
        start_byte, end_byte = end_byte, end_byte + tensor.bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start_byte, end_byte]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    stream.write(len(text).to_bytes(8, "little") + text)


def write_index(folder: Path, files: Mapping[str, Iterable[Tensor]]) -> None:
    """Write the index that says which file has which tensor."""
    tensors = [tensor for part in files.values() for tensor in part]
    metadata = {
        "total_parameters": sum(tensor.parameters for tensor in tensors),
        "total_size": sum(tensor.bytes for tensor in tensors),
    }
    weight_map = {tensor.name: file for file, part in files.items() for tensor in part}
    text = json.dumps({"metadata": metadata, "weight_map": weight_map}, indent=2, sort_keys=True)
    (folder / _INDEX_NAME).write_text(text + "\n")


def main() -> None:
    """Write one checkpoint into a new folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    llama = kinds.add_parser("llama", help="random weights in two files")
    llama.add_argument("--dtype", choices=list(_BYTES), default="BF16")
    llama.add_argument("--bytes", type=int, default=1_500_000_000)
    quantized = kinds.add_parser("quantized", help="random quantized weights")
    quantized.add_argument("--of", choices=["llama", "fp8", "mxfp4", "int4", "gptq"], default="llama")
    quantized.add_argument("--bytes", type=int, default=750_000_000)
    sparse = kinds.add_parser("sparse", help="real headers, holes for the weights")
    sparse.add_argument("--files", type=int, default=200)
    sparse.add_argument("--tensors", type=int, default=100_000)
    sparse.add_argument("--width", type=int, default=2048)
    sparse.add_argument("--filled", action="store_true", help="random bytes in the place of holes")
    adapter = kinds.add_parser("adapter", help="a random LoRA for a random Llama")
    adapter.add_argument("--base", type=Path, required=True)
    adapter.add_argument("--rank", type=int, default=64)
    adapter.add_argument("--dora", action="store_true", help="with a length for each output")
    for kind in (llama, quantized, sparse, adapter):
        kind.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.kind == "llama":
        _write_llama(arguments.folder, arguments.bytes, arguments.dtype)
    elif arguments.kind == "quantized":
        _write_quantized(arguments.folder, arguments.of, arguments.bytes)
    elif arguments.kind == "adapter":
        _write_adapter(arguments.folder, arguments.base, arguments.rank, arguments.dora)
    else:
        _write_sparse(arguments.folder, arguments.files, arguments.tensors, arguments.width, arguments.filled)


if __name__ == "__main__":
    main()
