"""What diffusers loads: pipelines, single models, LoRA weights, and embeddings of textual inversion."""

import shutil
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests import pipelines
from tests.kinds.kind import Kind, State, changed, named

WEIGHTS = "diffusion_pytorch_model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
LORA, EMBEDDING = "pytorch_lora_weights.safetensors", "learned_embeds.safetensors"
TOKEN = "<cat-toy>"
PARTS = ("unet", "vae", "text_encoder")


def _unet(folder: Path) -> State:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel.from_pretrained(folder).state_dict()  # type: ignore[no-any-return]


def _pipeline(folder: Path, variant: str | None = None) -> State:
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(folder, variant=variant)
    return named(**{part: getattr(pipeline, part).state_dict() for part in PARTS})


def save_both(folder: Path) -> None:
    """Save a pipeline, and its variant fp16 with other weights."""
    pipelines.save(folder)
    pipelines.build(seed=1).to(torch.float16).save_pretrained(folder, variant="fp16")


def save_unet(folder: Path) -> None:
    pipelines.build().unet.save_pretrained(folder)


def save_unet_among_others(folder: Path) -> None:
    """Save the UNet in shards, which diffusers takes first, beside two files of other saves: it looks at neither."""
    unet = pipelines.build().unet
    unet.save_pretrained(folder, max_shard_size="30kB")
    for name in (WEIGHTS, "model.safetensors"):
        save_file(changed(unet.state_dict()), folder / name, metadata={"format": "pt"})


def save_among_others(folder: Path) -> None:
    """Save a pipeline with such a UNet, whose text encoder is in one file that transformers takes before shards."""
    pipelines.save(folder)
    shutil.rmtree(folder / "unet")
    save_unet_among_others(folder / "unet")
    encoder = folder / "text_encoder"
    whole = (encoder / "model.safetensors").read_bytes()
    pipelines.build(seed=1).text_encoder.save_pretrained(encoder, max_shard_size="2kB")
    (encoder / "model.safetensors").write_bytes(whole)


def _lora() -> dict[str, dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    block = "down_blocks.1.attentions.0.transformer_blocks.0"
    layers = {f"{block}.{attn}.{name}": (16, 16) for attn in ("attn1", "attn2") for name in ("to_q", "to_v")}
    encoder = {f"text_model.encoder.layers.{n}.self_attn.{name}": (16, 16) for n in (0, 1) for name in ("q_proj",)}

    def pairs(shapes: dict[str, tuple[int, int]]) -> dict[str, torch.Tensor]:
        downs = {f"{name}.lora_A.weight": torch.randn(64, width) for name, (_, width) in shapes.items()}
        return downs | {f"{name}.lora_B.weight": torch.randn(height, 64) for name, (height, _) in shapes.items()}

    return {"unet_lora_layers": pairs(layers), "text_encoder_lora_layers": pairs(encoder)}


def save_lora(folder: Path) -> None:
    """Save LoRA weights as diffusers does; where peft is not installed, it does so too."""
    from diffusers import StableDiffusionPipeline

    StableDiffusionPipeline.save_lora_weights(folder, **_lora())


def save_embedding(folder: Path) -> None:
    """Save one embedding as `textual_inversion.py` among the examples of diffusers does."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    save_file({TOKEN: torch.randn(600, 16)}, folder / EMBEDDING, metadata={"format": "pt"})


def save_lora_and_embedding(folder: Path) -> None:
    """Save both in one folder, as `advanced_diffusion_training` does."""
    save_lora(folder)
    save_embedding(folder)


def _adapted(folder: Path) -> State:
    """Return the weights of a pipeline into which peft has put the LoRA."""
    pipeline = pipelines.build()
    pipeline.load_lora_weights(folder)
    return named(unet=pipeline.unet.state_dict(), text_encoder=pipeline.text_encoder.state_dict())


def _embedded(folder: Path) -> State:
    """Return the embeddings of a text encoder that has learned the token, and what the token is called."""
    pipeline = pipelines.build()
    pipeline.load_textual_inversion(folder)
    ids = pipeline.tokenizer.convert_tokens_to_ids([TOKEN, f"{TOKEN}_599"])
    return {"embeddings": pipeline.text_encoder.get_input_embeddings().weight, "ids": torch.tensor(ids)}


def _both(folder: Path) -> State:
    from diffusers import StableDiffusionPipeline

    return named(lora=StableDiffusionPipeline.lora_state_dict(folder)[0], embedding=_embedded(folder))


_DIFFUSERS = partial(Kind, library="diffusers")

KINDS = {
    "diffusers pipeline, two variants": _DIFFUSERS(save_both, _pipeline, cut=(f"unet/{INDEX}", f"vae/{INDEX}")),
    "diffusers pipeline, the variant fp16": _DIFFUSERS(
        save_both,
        partial(_pipeline, variant="fp16"),
        variant="fp16",
        cut=("unet/diffusion_pytorch_model.safetensors.index.fp16.json",),
    ),
    "diffusers pipeline, among other files": _DIFFUSERS(save_among_others, _pipeline, cut=(f"unet/{INDEX}",)),
    "diffusers model": _DIFFUSERS(save_unet, _unet, cut=(INDEX,)),
    "diffusers model, among other files": _DIFFUSERS(save_unet_among_others, _unet, cut=(INDEX,)),
    "diffusers LoRA, with a textual inversion": _DIFFUSERS(save_lora_and_embedding, _both, whole=(LORA, EMBEDDING)),
    "diffusers LoRA, in a pipeline": Kind(save_lora, _adapted, library="peft", write=save_lora, whole=(LORA,)),
    "diffusers textual inversion": _DIFFUSERS(save_embedding, _embedded, whole=(EMBEDDING,)),
}
