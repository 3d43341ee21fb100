"""Write sparse checkpoints with the headers of well-known models: their files, tensors and shapes, and holes."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints import Tensor, write_header, write_index


@dataclass(frozen=True, slots=True)
class Shape:
    """A model: its title, and `write`, which writes it into a folder. `remark` says in what it differs."""

    title: str
    write: Callable[[Path], None]
    remark: str = ""


def build_shape(name: str, folder: Path) -> None:
    """Write the model `name` of SHAPES into `folder`, in a process of its own: some of them import torch."""
    subprocess.run([sys.executable, "-m", "harness.shapes", name, folder], check=True, cwd=Path(__file__).parent.parent)


def _llama(
    layers: int, hidden: int, inner: int, grouped: int, vocabulary: int, architecture: str
) -> tuple[dict[str, object], list[Tensor]]:
    kind = architecture.removesuffix("ForCausalLM").lower()
    config = {"architectures": [architecture], "model_type": kind, "num_hidden_layers": layers}
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "vocab_size": vocabulary}
    heads = {"num_attention_heads": hidden // 128, "num_key_value_heads": grouped // 128}
    tensors = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors += _attention(at, hidden, hidden, grouped)
        tensors += _experts(f"{at}.mlp", hidden, inner)
        tensors += _norms(at, hidden)
    tensors += [Tensor("model.norm.weight", (hidden,)), Tensor("lm_head.weight", (vocabulary, hidden))]
    return {**config, **sizes, **heads, "tie_word_embeddings": False}, tensors


def _norms(at: str, hidden: int) -> list[Tensor]:
    return [Tensor(f"{at}.{name}.weight", (hidden,)) for name in ("input_layernorm", "post_attention_layernorm")]


def _attention(at: str, hidden: int, width: int, grouped: int) -> list[Tensor]:
    rows = {"q": width, "k": grouped, "v": grouped}
    attention = [Tensor(f"{at}.self_attn.{name}_proj.weight", (count, hidden)) for name, count in rows.items()]
    return [*attention, Tensor(f"{at}.self_attn.o_proj.weight", (hidden, width))]


def _experts(at: str, hidden: int, inner: int) -> list[Tensor]:
    shapes = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    return [Tensor(f"{at}.{name}_proj.weight", shape) for name, shape in shapes.items()]


def _write_mistral(folder: Path) -> None:
    _write(folder, *_llama(32, 4096, 14_336, 1024, 32_000, "MistralForCausalLM"), files=2)


def _write_llama(folder: Path) -> None:
    _write(folder, *_llama(80, 2048, 7168, 256, 32_064, "LlamaForCausalLM"), files=30)


def _write_qwen(folder: Path) -> None:
    hidden, inner, vocabulary, layers, experts = 1024, 384, 75_968, 48, 128
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": layers}
    sizes = {"hidden_size": hidden, "moe_intermediate_size": inner, "vocab_size": vocabulary, "num_experts": experts}
    tensors = [Tensor("model.embed_tokens.weight", (vocabulary, hidden))]
    for layer in range(layers):
        at = f"model.layers.{layer}"
        tensors += _attention(at, hidden, 2 * hidden, hidden // 4)
        tensors += [Tensor(f"{at}.self_attn.{name}_norm.weight", (128,)) for name in ("q", "k")]
        tensors += [Tensor(f"{at}.mlp.gate.weight", (experts, hidden))]
        tensors += [part for n in range(experts) for part in _experts(f"{at}.mlp.experts.{n}", hidden, inner)]
        tensors += _norms(at, hidden)
    tensors += [Tensor("model.norm.weight", (hidden,)), Tensor("lm_head.weight", (vocabulary, hidden))]
    _write(folder, {**config, **sizes, "tie_word_embeddings": False}, tensors, files=16)


_COUNT, _LAYERS, _WIDTH = 3000, 3, 512


def _write_many(folder: Path) -> None:
    """Write 3,000 files: a layer in each."""
    config = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": _COUNT}
    tensors = [part for n in range(_COUNT) for part in _experts(f"model.layers.{n}.mlp.experts.0", _WIDTH, _WIDTH)]
    _write(folder, config, tensors, files=_COUNT)


def _write_sdxl(folder: Path) -> None:
    """Write the four components of SDXL in fp32, from the configurations that its base model has."""
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    unet = {
        "sample_size": 128,
        "block_out_channels": (320, 640, 1280),
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        "transformer_layers_per_block": (1, 2, 10),
        "attention_head_dim": (5, 10, 20),
        "cross_attention_dim": 2048,
        "use_linear_projection": True,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 256,
        "projection_class_embeddings_input_dim": 2816,
    }
    vae = {
        "block_out_channels": (128, 256, 512, 512),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "layers_per_block": 2,
    }
    small = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    large = {"hidden_size": 1280, "intermediate_size": 5120, "num_attention_heads": 20, "num_hidden_layers": 32}
    with torch.device("meta"):
        parts = {
            "unet": ("diffusers", "diffusion_pytorch_model", UNet2DConditionModel(**unet)),
            "vae": ("diffusers", "diffusion_pytorch_model", AutoencoderKL(**vae)),
            "text_encoder": ("transformers", "model", CLIPTextModel(CLIPTextConfig(**small))),
            "text_encoder_2": (
                "transformers",
                "model",
                CLIPTextModelWithProjection(CLIPTextConfig(**large, projection_dim=1280)),
            ),
        }
    entries = {name: [library, type(model).__name__] for name, (library, _, model) in parts.items()}
    folder.mkdir(parents=True)
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionXLPipeline", **entries}))
    for name, (_, stem, model) in parts.items():
        tensors = [Tensor(key, tuple(tensor.shape), "F32") for key, tensor in model.state_dict().items()]
        (folder / name).mkdir()
        model.config.save_pretrained(folder / name) if stem == "model" else model.save_config(folder / name)
        _write_file(folder / name / f"{stem}.safetensors", tensors)


SHAPES: Mapping[str, Shape] = {
    "mistral": Shape("Mistral-7B", _write_mistral),
    "llama": Shape("Llama-70B", _write_llama, "a quarter of the width, so a sixteenth of the bytes"),
    "qwen": Shape("Qwen3-30B-A3B", _write_qwen, "half of both widths, so a quarter of the bytes"),
    "sdxl": Shape("SDXL", _write_sdxl, "fp32, as its plain files"),
    "many": Shape("3,000 files", _write_many),
}


def _write(folder: Path, config: Mapping[str, object], tensors: list[Tensor], files: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    parts = {
        f"model-{number:05d}-of-{files:05d}.safetensors": part for number, part in enumerate(_cut(tensors, files), 1)
    }
    for name, part in parts.items():
        _write_file(folder / name, part)
    write_index(folder, parts)


def _cut(tensors: list[Tensor], files: int) -> list[list[Tensor]]:
    """Return the tensors of each of `files` files of about the same size."""
    total_bytes, at_byte = sum(tensor.bytes for tensor in tensors), 0
    parts: list[list[Tensor]] = [[] for _ in range(files)]
    for tensor in tensors:
        parts[at_byte * files // total_bytes].append(tensor)
        at_byte += tensor.bytes
    return parts


def _write_file(path: Path, tensors: Iterable[Tensor]) -> None:
    part = sorted(tensors, key=lambda tensor: tensor.name)  # as safetensors 0.8 lays out tensors of one dtype
    with open(path, "wb") as stream:
        write_header(stream, part)
        stream.truncate(stream.tell() + sum(tensor.bytes for tensor in part))


def main() -> None:
    """Write one model into a new folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    SHAPES[arguments.name].write(arguments.folder)


if __name__ == "__main__":
    main()
