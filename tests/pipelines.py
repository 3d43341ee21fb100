"""A small Stable Diffusion pipeline with random weights, saved as the Hub has them."""

from pathlib import Path
from typing import Any

import torch


def build(seed: int = 0) -> Any:
    """Return a pipeline of three models, a tokenizer and a scheduler."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(seed)
    sizes = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
    unet = UNet2DConditionModel(
        **sizes,
        sample_size=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
    )
    blocks = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    config = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": 8, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    words = ("<|startoftext|>", "<|endoftext|>", "a</w>", "b</w>", "a", "b", "c", "c</w>")
    return StableDiffusionPipeline(
        vae=AutoencoderKL(**sizes, **blocks, latent_channels=4),
        text_encoder=CLIPTextModel(CLIPTextConfig(**config, **tokens)),
        tokenizer=CLIPTokenizer(vocab={word: n for n, word in enumerate(words)}, merges=[], model_max_length=8),
        unet=unet,
        scheduler=DDIMScheduler(clip_sample=False, set_alpha_to_one=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def save(folder: Path, variant: str | None = None) -> Path:
    """Save that pipeline in `folder` and return it."""
    build().save_pretrained(folder, variant=variant)
    return folder


def image(folder: Path, variant: str | None = None) -> Any:
    """Return what the pipeline in `folder` draws in two steps from a fixed seed."""
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(folder, variant=variant)
    pipeline.set_progress_bar_config(disable=True)
    seed = torch.Generator().manual_seed(0)
    return pipeline("a b", num_inference_steps=2, height=16, width=16, output_type="np", generator=seed).images
