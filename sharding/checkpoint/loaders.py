"""List the file names under which each library looks for weights. Pure.

A loader also says whether its library follows an index. The names come from the source code of transformers 5.23
(`modeling_utils`), diffusers 0.42 (`models.modeling_utils`, `loaders.lora_base`, `loaders.textual_inversion`),
sentence-transformers 6.2 (`base.modules.module`), peft 0.21 (`utils.save_and_load`), timm 1.0 (`models._hub`),
open_clip 3.3 (`factory`, `pretrained`) and huggingface_hub 2.4 (`hub_mixin`).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sharding.core.values import Library

ONE_FILE: Mapping[Library, str] = {
    "open_clip": "open_clip",
    "timm": "timm",
    "spacy": "spaCy",
    "pytorch_model_hub_mixin": "PyTorchModelHubMixin",
}
"""Libraries that load one file and follow no index, with their names for people."""


@dataclass(frozen=True, slots=True)
class Loader:
    """How a library finds the weights in one folder.

    `stems` are the names of safetensors files without their ending. The first one in the folder is taken. `pickled`
    maps the stems of `.bin` files to the stems that they get as safetensors. A `.bin` file is taken if its stem has no
    safetensors file.

    With `is_whole`, the library loads one file and follows no index. With `any_name`, it takes a file of any name if
    the folder has none of `stems`. With `may_take_more`, the loader may be code of the repo, which can load any weights
    in the folder.
    """

    stems: tuple[str, ...]
    pickled: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = False
    any_name: bool = False
    may_take_more: bool = False


_TORCH = {"pytorch_model": "model"}
DIFFUSION_STEM = "diffusion_pytorch_model"
"""The name that diffusers gives weights. For this name it prefers the index to the one file.

For every other name, every library prefers the one file."""
_ADAPTERS = ("pytorch_lora_weights", "learned_embeds", "pytorch_custom_diffusion_weights")
_OPEN_CLIP = ("open_clip_model", "open_clip_pytorch_model")


def _same(stems: Iterable[str]) -> dict[str, str]:
    return {stem: stem for stem in stems}


TRANSFORMERS = Loader(("model", DIFFUSION_STEM), _TORCH | _same([DIFFUSION_STEM]))
"""Also the loader for an unknown library."""
ONE_OF_TRANSFORMERS = replace(TRANSFORMERS, is_whole=True)
DIFFUSERS = Loader((DIFFUSION_STEM, "model"), _same([DIFFUSION_STEM]) | _TORCH)
PEFT = Loader(("adapter_model",), _same(["adapter_model"]), is_whole=True)
DIFFUSERS_ADAPTER = Loader(_ADAPTERS, is_whole=True, any_name=True)
"""LoRA weights and learned embeddings of diffusers. If no name matches, it takes the first safetensors file."""
SENTENCE_MODULE = Loader(("model",), is_whole=True, may_take_more=True)
OPEN_CLIP_OWN = Loader(_OPEN_CLIP, {"open_clip_pytorch_model": "open_clip_model"}, is_whole=True)
OPEN_CLIP = Loader((*_OPEN_CLIP, "model"), {**OPEN_CLIP_OWN.pickled, **_TORCH}, is_whole=True, any_name=True)
TIMM = Loader(("model", *_OPEN_CLIP), _TORCH, is_whole=True, any_name=True)
MIXIN = Loader(("model",), _TORCH, is_whole=True, any_name=True)
SPACY = Loader((), is_whole=True, any_name=True)

_BY_NAME = re.compile(
    rf"(?:adapter_model|{'|'.join((*_ADAPTERS, *_OPEN_CLIP))}|value_head|head|readout|adapter\.[\w-]+)"
    r"\.(?:safetensors|bin)|open_clip_pytorch_model\.pth|spk_dict\.pt|model_head\.pkl",
    re.ASCII,
)
"""Weights that a library, or a class of transformers (wav2vec2, JEV, Qwen2.5-Omni), finds by name beside others.

LLaMA-Factory and other trainers with rewards write `value_head`. `model_head.pkl` is the classifier of SetFit."""
_PICKLE = re.compile(r"([^.]+?)((?:-\d{5,}-of-\d{5,})?(?:\..+)?)\.(?:bin|pth)")
_AS_SAFETENSORS = OPEN_CLIP.pickled
_STEP = re.compile(r"(?:.*/)?(?:(?:checkpoint|epoch|step)[-_]\d+|last-checkpoint)/", re.ASCII)
"""Folders in which the Trainer and scripts with accelerate save intermediate steps."""


def is_found_by_name(name: str) -> bool:
    """Return whether a library finds a file by this `name` (without its folder) beside other weights.

    >>> is_found_by_name("pytorch_lora_weights.safetensors"), is_found_by_name("consolidated.safetensors")
    (True, False)
    """
    return _BY_NAME.fullmatch(name) is not None


def as_safetensors(path: str) -> str:
    """Return the name of a pickle as a safetensors file, which its library prefers.

    >>> as_safetensors("spanish/adapter_model.bin"), as_safetensors("open_clip_pytorch_model.bin")
    ('spanish/adapter_model.safetensors', 'open_clip_model.safetensors')
    """
    folder, slash, name = path.rpartition("/")
    match = _PICKLE.fullmatch(name)
    return f"{folder}{slash}{_AS_SAFETENSORS.get(match[1], match[1])}{match[2]}.safetensors" if match else path


def is_of_earlier_step(path: str) -> bool:
    """Return whether a file lies in a folder that a trainer saved at an intermediate step."""
    return _STEP.match(path) is not None
