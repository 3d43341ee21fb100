"""Find out from the names of tensors whether they must stay in one file. Pure."""

import re
from collections.abc import Collection

from sharding.checkpoint.loaders import DIFFUSION_STEM
from sharding.checkpoint.weight_sets import WeightSet
from sharding.core.values import Library

_ADAPTER = re.compile(
    r"(?:^|[._])lora[._]|hada_w|lokr_w|oft_blocks|dora_scale|\.(?:alpha|diff|diff_b)$|(?:^|\.)(?:image_proj|ip_adapter)\."
)
"""Names of tensors in LoRAs, similar adapters and IP-Adapters, as written by kohya's scripts, diffusers and peft."""
_OLD_ATTENTION = re.compile(r"\.attentions\.\d+\.(?:query|key|value|proj_attn)\.(?:weight|bias)$")


def why_one_file(library: Library, weight_set: WeightSet, names: Collection[str]) -> str:
    """Return why a set of weights with tensors of these `names` must stay in one file, or "" if it need not.

    Without an index, diffusers 0.42 (`ModelMixin._fix_state_dict_keys_on_load`) renames the tensors of old attention
    blocks. It also notices that an autoencoder has no encoder. With an index, it does neither.

    >>> why_one_file("unknown", WeightSet("", single="style.safetensors"), ["unet.lora_A.weight", "unet.lora_B.weight"])
    'they belong to an adapter'
    """
    if weight_set.single is None or weight_set.takes_index or weight_set.is_whole:
        return ""
    if library == "unknown" and all(map(_ADAPTER.search, names)):
        return "they belong to an adapter"
    if weight_set.stem != DIFFUSION_STEM:
        return ""
    if any(map(_OLD_ATTENTION.search, names)):
        return "diffusers renames the tensors of old attention blocks only in a single file"
    tops = {name.removeprefix(weight_set.folder).partition(".")[0] for name in names}
    if "decoder" in tops and "encoder" not in tops:
        return "diffusers detects a missing encoder only in a single file"
    return ""
