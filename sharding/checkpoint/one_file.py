"""Tell by the names of tensors that what loads them takes one file. Pure."""

import re
from collections.abc import Collection

from sharding.checkpoint.loaders import DIFFUSION_STEM
from sharding.checkpoint.weight_sets import WeightSet
from sharding.core.values import Library

_ADAPTER = re.compile(
    r"(?:^|[._])lora[._]|hada_w|lokr_w|oft_blocks|dora_scale|\.(?:alpha|diff|diff_b)$|(?:^|\.)(?:image_proj|ip_adapter)\."
)
"""How kohya's scripts, diffusers and peft call the tensors of a LoRA and its kin, and of an IP-Adapter."""
_OLD_ATTENTION = re.compile(r"\.attentions\.\d+\.(?:query|key|value|proj_attn)\.(?:weight|bias)$")


def why_one_file(library: Library, weight_set: WeightSet, names: Collection[str]) -> str:
    """Return why a set of weights with tensors of these `names` is loaded from one file only, "" where nothing says so.

    diffusers 0.42 (`ModelMixin._fix_state_dict_keys_on_load`) renames the tensors of old attention blocks, and notices
    that an autoencoder has no encoder, only where there is no index.

    >>> why_one_file("unknown", WeightSet("", single="style.safetensors"), ["unet.lora_A.weight", "unet.lora_B.weight"])
    'they are those of an adapter'
    """
    if weight_set.single is None or weight_set.takes_index or weight_set.is_whole:
        return ""
    if library == "unknown" and all(map(_ADAPTER.search, names)):
        return "they are those of an adapter"
    if weight_set.stem != DIFFUSION_STEM:
        return ""
    if any(map(_OLD_ATTENTION.search, names)):
        return "diffusers knows the old names of its attention blocks in one file only"
    tops = {name.removeprefix(weight_set.folder).partition(".")[0] for name in names}
    if "decoder" in tops and "encoder" not in tops:
        return "diffusers notices in one file only that there is no encoder"
    return ""
