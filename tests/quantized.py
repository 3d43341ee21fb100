"""Small models quantized as the Hub has them, and what their numbers and scales stand for, computed plainly."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SMALL = {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 96, "pad_token_id": 0}
CLASSES: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_size": 256, "intermediate_size": 384, "num_key_value_heads": 2, "head_dim": 64},
    "qwen3_moe": {
        "hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128, "num_experts": 4,
        "num_experts_per_tok": 2, "num_key_value_heads": 2, "head_dim": 64,
    },
    "deepseek_v3": {
        "hidden_size": 256, "intermediate_size": 384, "moe_intermediate_size": 128, "n_routed_experts": 8, "n_group": 2,
        "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "num_key_value_heads": 4,
        "q_lora_rank": 128, "kv_lora_rank": 96, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32, "v_head_dim": 32,
    },
    "gpt_oss": {
        "hidden_size": 64, "intermediate_size": 96, "num_key_value_heads": 2, "head_dim": 16, "num_local_experts": 4,
        "num_experts_per_tok": 2, "layer_types": ["sliding_attention", "full_attention"],
    },
}  # fmt: skip
_MATRICES = re.compile(r"(?:_proj|_proj_with_mqa|_a_proj|_b_proj)\.weight$")
_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
BLOCK = (128, 128)


def spread(scales: torch.Tensor, block: tuple[int, int], shape: torch.Size) -> torch.Tensor:
    """One scale for each number of a tensor of `shape`, of which each `block` has one of `scales`."""
    whole = scales.float().repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)
    return whole[..., : shape[-2], : shape[-1]]


def fp8(weight: torch.Tensor, block: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` in FP8, and its scales of `dtype`, one for each `block`."""
    rows, columns = weight.shape
    height, width = -(-rows // block[0]), -(-columns // block[1])
    padded = torch.zeros(height * block[0], width * block[1])
    padded[:rows, :columns] = weight.float()
    largest = padded.view(height, block[0], width, block[1]).abs().amax((1, 3))
    scales = (largest / 448 + 1e-12).to(dtype)
    return (weight.float() / spread(scales, block, weight.shape)).to(torch.float8_e4m3fn), scales


def build(model_type: str, folder: Path, **changes: Any) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
    """Save a model with random weights in `folder`; return it, and the tensors of its file."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**SMALL, **CLASSES[model_type], **changes})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    return model.eval(), load_file(folder / "model.safetensors")


def write(folder: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, Any] | None) -> Path:
    """Write `tensors` as the only file in `folder`, and what config.json says of their quantization."""
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    config = json.loads(path.read_text()) if path.exists() else {}
    if quantization is not None:
        config["quantization_config"] = quantization
    path.write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


Quantize = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _each_matrix(tensors: dict[str, torch.Tensor], suffix: str, quantize: Quantize) -> dict[str, torch.Tensor]:
    made = {}
    for name, tensor in tensors.items():
        if _MATRICES.search(name):
            made[name], made[name + suffix] = quantize(tensor)
        else:
            made[name] = tensor
    return made


def save_fp8(model_type: str, folder: Path, **changes: Any) -> Path:
    """Save a model as DeepSeek and Qwen publish theirs: FP8, one scale for each 128 x 128."""
    _, tensors = build(model_type, folder, **changes)
    said = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": list(BLOCK)}
    return write(folder, _each_matrix(tensors, "_scale_inv", lambda w: fp8(w, BLOCK, torch.float32)), said)


def compressed(strategy: str, **changes: Any) -> dict[str, Any]:
    """What config.json says of FP8 as compressed-tensors writes it."""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": strategy, "block_structure": None}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    if strategy == "block":
        weights["block_structure"] = list(BLOCK)
    said = {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"]}
    return {**said, "config_groups": {"group_0": group}, **changes}


def integers(bits: int, group: int | None, **changes: Any) -> dict[str, Any]:
    """What config.json says of packed integers as compressed-tensors writes it. Without `group`, channels have scales."""
    said = compressed("group" if group else "channel", format="pack-quantized")
    said["config_groups"]["group_0"]["weights"] |= {"num_bits": bits, "type": "int", "group_size": group, **changes}
    return said


def save_compressed(strategy: str, folder: Path, model_type: str = "qwen3") -> Path:
    """Save a model as compressed-tensors does: FP8, one scale of bfloat16 for the tensor, a channel or a block."""
    _, tensors = build(model_type, folder)

    def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        block = {"tensor": tuple(weight.shape), "channel": (1, weight.shape[1]), "block": BLOCK}[strategy]
        packed, scales = fp8(weight, block, torch.bfloat16)  # type: ignore[arg-type]
        return packed, scales.reshape(1) if strategy == "tensor" else scales

    made = _each_matrix(tensors, "_scale", quantize)
    scales = [name for name in made if name.endswith("weight_scale")]
    beside = {name.replace("weight_scale", "input_scale"): torch.ones(1) for name in scales}
    return write(folder, {**made, **beside}, compressed(strategy))


def save_packed(said: dict[str, Any], folder: Path, model_type: str = "qwen3") -> Path:
    """Save a model as compressed-tensors packs its numbers: integers, or NVFP4."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.format import infer_module_format
    from compressed_tensors.quantization import QuantizationConfig

    _, tensors = build(model_type, folder)
    (scheme,) = QuantizationConfig.model_validate(said).config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme))
    made: dict[str, torch.Tensor] = {}
    for name, weight in tensors.items():
        if not _MATRICES.search(name):
            made[name] = weight
            continue
        group = scheme.weights.group_size or weight.shape[1]
        largest = weight.float().reshape(weight.shape[0], -1, group).abs().amax(-1)
        parts = {"weight": weight, "weight_scale": (largest / 7).bfloat16()}
        if scheme.weights.type == "float":
            whole = 448 * 6 / largest.max().reshape(1)
            parts |= {
                "weight_scale": (largest / 6 * whole).to(torch.float8_e4m3fn).float(),
                "weight_global_scale": whole,
            }
        made |= {name.removesuffix("weight") + part: each for part, each in compressor.compress(parts, scheme).items()}
    return write(folder, made, said)


def save_mxfp4(folder: Path, **changes: Any) -> Path:
    """Save a gpt-oss as OpenAI publishes it: experts in FP4, one scale for each 32."""
    _, tensors = build("gpt_oss", folder, **changes)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = tensor.shape
            groups = columns // 32
            made[f"{name}_blocks"] = torch.randint(0, 256, (experts, rows, groups, 16), dtype=torch.uint8)
            # Small enough to compute with, and some as small as a byte says.
            made[f"{name}_scales"] = torch.randint(112, 124, (experts, rows, groups), dtype=torch.uint8)
            made[f"{name}_scales"][0, 0, 0] = 0
        else:
            made[name] = tensor
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return write(folder, made, {"quant_method": "mxfp4", "modules_to_not_convert": kept})


BESIDE: dict[str, dict[str, torch.dtype]] = {
    "gptq": {"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16, "g_idx": torch.int32},
    "awq": {"qweight": torch.int32, "qzeros": torch.int32, "scales": torch.float16},
    "bitsandbytes 4-bit": {
        "weight": torch.uint8, "weight.absmax": torch.uint8, "weight.quant_map": torch.float32,
        "weight.nested_absmax": torch.float32, "weight.quant_state.bitsandbytes__nf4": torch.uint8,
    },
    "bitsandbytes 8-bit": {"weight": torch.int8, "SCB": torch.float32, "weight_format": torch.uint8},
    "compressed-tensors": {
        "weight_packed": torch.int32, "weight_scale": torch.bfloat16, "weight_zero_point": torch.int32,
        "weight_shape": torch.int64,
    },
    "modelopt": {
        "weight": torch.uint8, "weight_scale": torch.float8_e4m3fn, "weight_scale_2": torch.float32,
        "input_scale": torch.float32,
    },
    "torchao": {"_weight_qdata": torch.int8, "_weight_scale": torch.float32},
}  # fmt: skip
"""What quantizers write for the `weight` of a module, by their names; the numbers themselves first."""


def save_beside(method: str, model_type: str, folder: Path, **changes: Any) -> Path:
    """Save a model whose matrices are named and typed as `method` does it, with numbers that mean nothing."""
    _, tensors = build(model_type, folder, **changes)
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if _MATRICES.search(name):
            module = name.removesuffix("weight")
            made |= {module + last: torch.zeros(4, 2).to(dtype) for last, dtype in BESIDE[method].items()}
        else:
            made[name] = tensor
    return write(folder, made, {"quant_method": method.split()[0]})


def plain_fp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What the blocks and scales of MXFP4 stand for, transposed as the class of gpt-oss has it, in float32."""
    numbers = torch.stack([_FP4[(blocks & 15).long()], _FP4[(blocks >> 4).long()]], -1).flatten(-2)
    exponents = scales.to(torch.int32)[..., None] - 127
    return torch.ldexp(numbers, exponents).flatten(-2).transpose(1, 2).contiguous()
