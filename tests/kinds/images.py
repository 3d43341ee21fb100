"""What timm and open_clip load, and a repo that transformers loads as well as open_clip."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tests.kinds.kind import Kind, State, named

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CLIP_WEIGHTS, CLIP_PICKLE = "open_clip_model.safetensors", "open_clip_pytorch_model.bin"
TIMM = "test_resnet"
CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 16, "layers": 2, "width": 32, "head_width": 16, "patch_size": 4},
    "text_cfg": {"context_length": 8, "vocab_size": 96, "width": 32, "heads": 2, "layers": 2},
}


def _random() -> dict[str, torch.Tensor]:
    return {f"blocks.{n}.weight": torch.randn(64, 64) for n in range(4)}


def save_timm(folder: Path) -> None:
    """Save a model as `push_to_hf_hub` does."""
    import timm
    from timm.models import save_for_hf

    torch.manual_seed(0)
    save_for_hf(timm.create_model(TIMM, num_classes=10), str(folder), safe_serialization=True)


def write_timm(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    save_file(_random(), folder / WEIGHTS)
    shape = {"input_size": [3, 160, 160], "num_classes": 10, "classifier": "fc", "first_conv": "conv1.0"}
    config = {"architecture": TIMM, "num_classes": 10, "num_features": 64, "pretrained_cfg": {"tag": "r160", **shape}}
    (folder / "config.json").write_text(json.dumps(config))


def _timm(folder: Path) -> State:
    import timm

    return timm.create_model(f"local-dir:{folder}", pretrained=True).state_dict()  # type: ignore[no-any-return]


def _words() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2, "b": 3}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]")


def save_open_clip(folder: Path) -> None:
    """Save a model as `push_to_hf_hub` does: once as safetensors and once as torch does."""
    from open_clip.model import CLIP as Model
    from open_clip.push_to_hf_hub import save_for_hf

    torch.manual_seed(0)
    model = Model(**CLIP)
    model.visual.image_mean, model.visual.image_std = (0.5,) * 3, (0.25,) * 3
    save_for_hf(model, _words(), CLIP, str(folder))


def write_open_clip(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    weights = _random()
    save_file(weights, folder / CLIP_WEIGHTS)
    torch.save(weights, folder / CLIP_PICKLE)
    _words().save_pretrained(folder)
    config = {"model_cfg": CLIP, "preprocess_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))


def _open_clip(folder: Path) -> State:
    import open_clip

    return open_clip.create_model(f"local-dir:{folder}").state_dict()  # type: ignore[no-any-return]


def _save_clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 96, "max_position_embeddings": 8, "bos_token_id": 0, "eos_token_id": 1}
    vision = {**sizes, "image_size": 16, "patch_size": 4}
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).save_pretrained(folder)


def save_both(folder: Path) -> None:
    """Save a model for either library in one folder."""
    save_open_clip(folder)
    _save_clip(folder)


def write_both(folder: Path) -> None:
    """Write the same files, those of open_clip by hand."""
    write_open_clip(folder)
    _save_clip(folder)


def _both(folder: Path) -> State:
    from transformers import CLIPModel

    return named(open_clip=_open_clip(folder), transformers=CLIPModel.from_pretrained(folder).state_dict())


_OPEN_CLIP = partial(Kind, library="open_clip_torch", whole=(CLIP_WEIGHTS,))

KINDS = {
    "timm": Kind(save_timm, _timm, "timm", write_timm, whole=(WEIGHTS,), finding="one-file-loader"),
    "open_clip": _OPEN_CLIP(save_open_clip, _open_clip, write=write_open_clip, finding="one-file-loader"),
    "open_clip and transformers": _OPEN_CLIP(save_both, _both, write=write_both, cut=(INDEX,)),
}
