"""Small models quantized as the Hub has them, and what their numbers and scales stand for, computed plainly."""

import json
import re
from collections.abc import Callable, Mapping
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
    folder.mkdir(parents=True, exist_ok=True)
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


def save_mxfp8(folder: Path, powers: torch.dtype) -> Path:
    """Save a model in FP8 with a power of two for each 32 numbers, as MiniMax publishes it."""

    def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        exponents = (fp8(weight, (1, 32), torch.float32)[1].log2().ceil() + 127).to(torch.uint8).view(powers)
        return (weight.float() / spread(exponents.view(torch.float8_e8m0fnu), (1, 32), weight.shape)).to(
            torch.float8_e4m3fn
        ), exponents

    said = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
    return write(folder, _each_matrix(build("qwen3", folder)[1], "_scale_inv", quantize), said)


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
        if scheme.weights.strategy == "tensor_group":
            whole = 448 * 6 / largest.max().reshape(1)
            parts |= {
                "weight_scale": (largest / 6 * whole).to(torch.float8_e4m3fn).float(),
                "weight_global_scale": whole,
            }
        elif scheme.weights.type == "float":
            parts["weight_scale"] = (largest / {4: 6, 8: 448}[scheme.weights.num_bits]).log2().ceil().exp2().bfloat16()
        elif not scheme.weights.symmetric:
            parts["weight_zero_point"] = torch.randint(-8, 8, largest.shape, dtype=torch.int8)
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


def random_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor with every kind of number, infinite ones and NaNs among them."""
    size = torch.empty(0, dtype=dtype).element_size()
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(dtype)


def _of_group(group: int, **weights: Any) -> dict[str, Any]:
    """What config.json says of numbers with a scale for each `group`, as compressed-tensors writes it."""
    name = weights.pop("format")
    said = compressed("group" if group else "channel", format=name)
    said["config_groups"]["group_0"]["weights"] |= {"group_size": group or None, **weights}
    return said


NVFP4 = _of_group(16, format="nvfp4-pack-quantized", num_bits=4, strategy="tensor_group")
MXFP4 = _of_group(32, format="mxfp4-pack-quantized", num_bits=4, scale_dtype="torch.uint8")
MXFP8 = _of_group(32, format="mxfp8-quantized", scale_dtype="torch.uint8")
INT8 = _of_group(0, format="int-quantized", type="int")
INT8["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
_FP8, _WORDS, _HALF = torch.float8_e4m3fn, torch.int32, torch.float16
Parts = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def _parts(rows: int, columns: int) -> dict[str, tuple[dict[str, Any] | None, Parts]]:
    """What config.json says, and the dtypes and shapes of the parts of a matrix, for each format that is dequantized."""
    groups = columns // 32
    scales = {"weight_scale": (torch.float32, (rows, groups))}
    words = {"weight_packed": (_WORDS, (rows, columns // 8)), **scales}
    fp4 = {"weight_packed": (torch.uint8, (rows, columns // 2))}
    powers = {"weight_scale": (torch.uint8, (rows, groups))}
    gptq = {"qweight": (_WORDS, (columns // 8, rows)), "qzeros": (_WORDS, (groups, rows // 8))}
    gptq |= {"scales": (_HALF, (groups, rows))}
    number, fp8 = (torch.float32, (1,)), {"weight": (_FP8, (rows, columns))}
    int8, nvfp4 = {"weight": (torch.int8, (rows, columns))}, {"weight_scale": (_FP8, (rows, columns // 16))}
    count = rows * columns
    nf4 = {"weight": (torch.uint8, (count // 2, 1)), "weight.quant_map": (torch.float32, (16,))}
    return {
        "fp8": ({"quant_method": "fp8"}, {**fp8, "weight_scale_inv": (torch.float32, (-(-rows // 128), -(-columns // 128)))}),
        "fp8 of modelopt": ({"quant_method": "modelopt", "quant_algo": "FP8"}, {**fp8, "weight_scale": number}),
        "fp8 of comfy": (None, {**fp8, "scale_weight": (torch.float32, ())}),
        "mxfp8": ({"quant_method": "mxfp8"}, {**fp8, "weight_scale_inv": powers["weight_scale"]}),
        "fp4 of deepseek": (
            {"quant_method": "fp8", "expert_dtype": "fp4"},
            {"weight": (torch.int8, (rows, columns // 2)), "scale": powers["weight_scale"]},
        ),
        "integers": (integers(4, 32), words),
        "integers with zeros": (
            integers(4, 32, symmetric=False),
            {**words, "weight_zero_point": (_WORDS, (rows // 8, groups))},
        ),
        "integers in another order": (integers(4, 32), {**words, "weight_g_idx": (_WORDS, (columns,))}),
        "integers of 8 bits": (INT8, {**int8, "weight_scale": (torch.bfloat16, (rows, 1))}),
        "nvfp4": (NVFP4, {**fp4, **nvfp4, "weight_global_scale": number}),
        "nvfp4 of modelopt": (
            {"quant_method": "modelopt", "quant_algo": "NVFP4"},
            {"weight": fp4["weight_packed"], **nvfp4, "weight_scale_2": number},
        ),
        "mxfp4": (MXFP4, {**fp4, **powers}),
        "nf4": ({"quant_method": "bitsandbytes"}, {**nf4, "weight.absmax": (torch.float32, (count // 64,))}),
        "int8 of bitsandbytes": (
            {"quant_method": "bitsandbytes", "load_in_8bit": True},
            {**int8, "SCB": (torch.float32, (rows,))},
        ),
        "gptq": (_GPTQ, {**gptq, "g_idx": (_WORDS, (columns,))}),
        "gptq v2": ({**_GPTQ, "checkpoint_format": "gptq_v2"}, gptq),
        "awq": (
            {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True},
            {**gptq, "qweight": (_WORDS, (columns, rows // 8))},
        ),
    }  # fmt: skip


FORMS = list(_parts(32, 32))
"""Every format that is dequantized."""


def _filled(part: str, dtype: torch.dtype, shape: tuple[int, ...], columns: int) -> torch.Tensor:
    if part.endswith("g_idx"):
        return torch.randperm(columns).to(dtype) // 32
    if dtype == torch.uint8 and "scale" in part:
        return torch.randint(100, 130, shape, dtype=dtype)
    if dtype.is_floating_point:
        return (torch.rand(shape) / 16 + 0.01).to(dtype)
    return random_bytes(dtype, *shape)


def save_form(form: str, folder: Path, model: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Save a few matrices, or a model with those of `model`, in a format, with numbers that mean nothing."""
    torch.manual_seed(0)
    made: dict[str, torch.Tensor] = {}
    plain = model or {f"layers.{layer}.a_proj.weight": torch.zeros(64, 128) for layer in range(3)}
    for name, tensor in plain.items():
        if not _MATRICES.search(name):
            made[name] = tensor
            continue
        module, shape = name.removesuffix("weight"), (tensor.shape[0], tensor.shape[1])
        for part, (dtype, lengths) in _parts(*shape)[form][1].items():
            made[module + part] = _filled(part, dtype, lengths, shape[1])
        if form == "nf4":
            state = json.dumps({"blocksize": 64, "dtype": "bfloat16", "shape": shape}).encode()
            made[f"{name}.quant_state.bitsandbytes__nf4"] = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    return write(folder, made, _parts(32, 32)[form][0])


def plain_fp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What the blocks and scales of MXFP4 stand for, transposed as the class of gpt-oss has it, in float32."""
    numbers = torch.stack([_FP4[(blocks & 15).long()], _FP4[(blocks >> 4).long()]], -1).flatten(-2)
    exponents = scales.to(torch.int32)[..., None] - 127
    return torch.ldexp(numbers, exponents).flatten(-2).transpose(1, 2).contiguous()
