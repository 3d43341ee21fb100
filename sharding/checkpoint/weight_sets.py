"""Find the weight files in a folder that a library loads together, by name: one file, an index, shards. Pure.

The names come from the source code of transformers 5.23 (`modeling_utils`), diffusers 0.42 (`models.modeling_utils`,
`loaders.lora_base`, `loaders.textual_inversion`), sentence-transformers 6.2 (`base.modules.module`), peft 0.21
(`utils.save_and_load`), timm 1.0 (`models._hub`), open_clip 3.3 (`factory`, `pretrained`) and huggingface_hub 2.4
(`hub_mixin`).
"""

import re
from collections.abc import Collection, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import islice

from sharding.core.errors import SourceError
from sharding.core.text import MOST_NAMES, name_some
from sharding.core.values import Finding, Library, folder_of
from sharding.formats.index import Index
from sharding.formats.names import BIN_SHARD_NAME, SHARD_NAME

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
    maps the stems of `.bin` files, taken if there is no safetensors file, to the stems that they get as safetensors.

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
"""The name that diffusers gives weights. Only for this name, a library prefers the index to the one file."""
_ADAPTERS = ("pytorch_lora_weights", "learned_embeds", "pytorch_custom_diffusion_weights")
_OPEN_CLIP = ("open_clip_model", "open_clip_pytorch_model")
_DIFFUSION = {DIFFUSION_STEM: DIFFUSION_STEM}

TRANSFORMERS = Loader(("model", DIFFUSION_STEM), _TORCH | _DIFFUSION)  # Also the loader for an unknown library.
DIFFUSERS = Loader((DIFFUSION_STEM, "model"), _DIFFUSION | _TORCH)
PEFT = Loader(("adapter_model",), {"adapter_model": "adapter_model"}, is_whole=True)
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
    return f"{folder}{slash}{OPEN_CLIP.pickled.get(match[1], match[1])}{match[2]}.safetensors" if match else path


Folders = Mapping[str, Sequence[str]]  # The files in each folder.


@dataclass(slots=True)
class WeightSet:
    """Files that are loaded together from `folder` ("" or ending in "/"): one file, an index, or shards."""

    folder: str
    stem: str = "model"
    variant: str = ""
    is_whole: bool = False
    index_first: bool = False
    single: str | None = None
    index: str | None = None
    shards: list[str] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    """Safetensors files that the ranks of a training run saved, or the metadata file that locates their pieces."""

    @property
    def takes_index(self) -> bool:
        """Whether the library follows the index rather than the one file that may stand beside it."""
        return self.index is not None and (self.index_first or self.single is None)

    def files(self, index: Index | None, paths: Container[str]) -> list[str]:
        """Return the weight files, as `index` lists them. Raises SourceError if some are not in `paths`."""
        if self.single and not self.takes_index:
            return [self.single]
        if index is None:
            return _complete(self.shards)
        listed = sorted(set(index.weight_map.values()))
        missing = [path for path in listed if path not in paths]
        if missing:
            message = f"{len(missing)} of the {len(listed)} files that {self.index} lists are missing: "
            hint = "Download them again. The checkpoint is incomplete without them."
            raise SourceError(f"{message}{name_some(missing)}.", hint)
        return listed

    def findings(self, listed: Set[str]) -> list[Finding]:
        """Return findings about the choice of the files. `listed` are those in the index."""
        if self.single and (self.index or self.shards) and not (listed == {self.single} and not self.shards):
            library = "diffusers" if self.index_first else "transformers"
            used, beside = (self.index, self.single) if self.takes_index else (self.single, "an index or shards")
            message = f"{used} stands beside {beside}. It is the one used, as in {library}."
            return [Finding("warning", "several-checkpoints", message, "Remove the set that is out of date.")]
        if not self.single and not self.index and not self.ranks:
            return [Finding("warning", "no-index", "There is no index. The headers of the shards list the tensors.")]
        return []


def sets_by_variant(loader: Loader, folder: str, inside: Sequence[str]) -> dict[str, WeightSet]:
    """Return the weight sets that `loader` finds in a folder, by variant; safetensors count before pickles."""
    pickled = _matching(folder, inside, "bin", tuple(loader.pickled))
    safe = _matching(folder, inside, "safetensors", loader.stems)
    for stem in loader.stems:
        sets = {
            variant: replace(weight_set, stem=stem)
            for (of, variant), weight_set in pickled.items()
            if loader.pickled[of] == stem and (weight_set.single or weight_set.shards)
        }
        sets |= {
            variant: replace(weight_set, index_first=stem == DIFFUSION_STEM)
            for (of, variant), weight_set in safe.items()
            if of == stem
        }
        if loader.is_whole:  # such loaders know no variants
            sets = {"": replace(sets[""], is_whole=True)} if "" in sets else {}
        if sets:
            return sets
    return {}


def by_folder(paths: Iterable[str]) -> Folders:
    """Return the files of a repo by folder ("" or ending in "/")."""
    inside: dict[str, list[str]] = {}
    for path in paths:
        inside.setdefault(folder_of(path), []).append(path)
    return inside


def has_weights(loader: Loader, folder: str, inside: Folders) -> bool:
    """Return whether `folder` has weights that `loader` finds."""
    return bool(sets_by_variant(loader, folder, inside.get(folder, ())))


def has_index_alone(folder: str, inside: Folders) -> bool:
    """Return whether `folder` has an index that transformers and diffusers follow, and no single weight file."""
    sets = sets_by_variant(TRANSFORMERS, folder, inside.get(folder, ())).values()
    return any(weight_set.index for weight_set in sets) and not any(weight_set.single for weight_set in sets)


def own_names(loader: Loader, folder: str, inside: Iterable[str]) -> list[str]:
    """Return the safetensors files `inside` a folder that are no shards and have no name that `loader` looks for."""
    weights, _ = _names("safetensors", loader.stems)
    others = [path for path in inside if path.endswith(".safetensors") and not SHARD_NAME.fullmatch(path)]
    matches = ((path, weights.fullmatch(path.removeprefix(folder))) for path in others)
    return sorted(path for path, match in matches if match is None or match["variant"] or match["old"])


_RANK_INDEX = re.compile(r".*\.safetensors\.index\.(?:[^./]+-)?rank\d+-of-\d+\.json")
"""The index of one rank of a pipeline: see `Component.of_rank`."""


def _matching(
    folder: str, inside: Iterable[str], suffix: str, stems: tuple[str, ...]
) -> dict[tuple[str, str], WeightSet]:
    sets: dict[tuple[str, str], WeightSet] = {}
    weights, index = _names(suffix, stems)
    for path in sorted(inside):
        name = path.removeprefix(folder)
        match = weights.fullmatch(name) or index.fullmatch(name)
        if match is None or _RANK_INDEX.fullmatch(path):
            continue
        named = match.groupdict()
        variant = named["variant"] or named["old"] or ""
        weight_set = sets.setdefault((named["stem"], variant), WeightSet(folder, named["stem"], variant))
        if "index" in named:
            if weight_set.index is None or not named["old"]:  # an index with an old name counts only without a new one
                weight_set.index = path
        elif named["number"]:
            weight_set.shards.append(path)
        else:
            weight_set.single = path
    return sets


def _names(suffix: str, stems: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return patterns for the names of weights and of their indexes. Diffusers before 0.32 wrote a variant at `old`."""
    stem = f"(?P<stem>{'|'.join(stems) or '(?!)'})"
    weights = rf"{stem}(?:\.(?P<variant>[^./]+?))?(?P<number>-\d{{5,}}-of-\d{{5,}})?(?:\.(?P<old>[^./]+))?\.{suffix}"
    index = rf"{stem}\.{suffix}(?:\.(?P<old>[^./]+))?\.(?P<index>index)(?:\.(?P<variant>[^./]+))?\.json"
    return re.compile(weights), re.compile(index)


def _complete(shards: Sequence[str]) -> list[str]:
    sets: dict[tuple[str, str, int], set[int]] = {}
    for path in shards:
        match = SHARD_NAME.fullmatch(path) or BIN_SHARD_NAME.fullmatch(path)
        assert match is not None
        sets.setdefault((match["stem"], match["rest"], int(match["count"])), set()).add(int(match["number"]))
    if len(sets) > 1:
        names = ", ".join(f"{stem} of {count}" for stem, _, count in sets)
        message = f"There are shards of several checkpoints and no index: {names}."
        raise SourceError(message, "Remove the shards that are out of date.")
    ((_, _, count), numbers), *_ = sets.items()
    if missing := count - len(numbers & set(range(1, count + 1))):
        absent = (number for number in range(1, count + 1) if number not in numbers)
        start, _, end = shards[0].rpartition("-of-")
        stem = start.rpartition("-")[0]
        names = name_some([f"{stem}-{number:05d}-of-{end}" for number in islice(absent, MOST_NAMES)], total=missing)
        message = f"{missing} of the {count} shards are missing, and there is no index: {names}."
        raise SourceError(message, "Download them again.")
    return sorted(shards)


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
