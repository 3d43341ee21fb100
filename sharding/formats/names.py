"""Recognise files by their names. Pure."""

import re
import unicodedata
from collections.abc import Collection, Iterable

from sharding.core.errors import DestinationError
from sharding.core.text import name_some

SINGLE_NAME = "model.safetensors"
REPORT_NAME = "sharding_report.json"
DIGESTS_NAME = "sharding_digests.json"
PICTURE_NAME = "sharding_comparison.svg"
MAP_NAME = "sharding_map.svg"
CARD_NAME = "README.md"

ENTRANCES = ("model_index.json", "modules.json")
"""Files that make a folder a pipeline or a sentence transformer."""

STAGING_FOLDER = ".shard-my-repo"
"""Folder in a destination that holds everything until it is published."""

RECORDS_FOLDER = "sharding_records"
"""Folder on a staging branch in which a job records its finished shards."""

SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>(?:\.[^./]+)?)\.safetensors")
BIN_SHARD_NAME = re.compile(SHARD_NAME.pattern.replace("safetensors", "bin"))

RANK_SHARD_NAME = re.compile(
    r"shard-(?P<rank>\d{5})-model-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.ASCII
)
"""Files of one rank, as named by torch's HuggingFaceStorageWriter (torch 2.13, `_hf_utils._gen_file_name`)."""

DCP_METADATA_NAME = ".metadata"
"""The file that torch.distributed.checkpoint writes beside the files of ranks (`__0_0.distcp`)."""

_OTHER_FORMATS = (
    ".safetensors", ".bin", ".distcp", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".onnx",
    ".onnx_data", ".pb", ".tflite", ".mlmodel", ".mlpackage", ".ot", ".npz", ".npy", ".pdparams", ".pkl", ".pickle",
    ".nemo",
)  # fmt: skip
_DATA = (".npz", ".npy", ".pkl", ".pickle")
"""Formats among these that can also hold data other than weights."""
DDP = "DistributedDataParallel"
_DUPLICATE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "gguf/")
_INDEX = re.compile(r".*\.(?:safetensors|bin)(?:\.[^./]+)?\.index(?:\.[^./]+)?\.json")
_TRAINING_STATE = re.compile(
    r"(?:optimizer(?:_\d+)?/.*|(?:optimizer|scheduler|scaler|sampler|dl_state)\w*\.(?:bin|pt)|random_states_\d+\.pkl"
    r"|rng_state(?:_\d+)?\.pth|trainer_state\.json|training_args\.bin|custom_checkpoint_\d+\.pkl)"
)
_ACCELERATE_FOLDER = "pytorch_model_fsdp_0/"
_ACCELERATE_FOLDERS = re.compile(r"pytorch_model_fsdp_\d+/")
"""Accelerate numbers the models of one run."""
_RANK_INDEX = re.compile(r".*\.safetensors\.index\.(?:[^./]+-)?rank\d+-of-\d+\.json")


_WRAPPERS = {
    "torch.compile": re.compile(r"(?:^|\.)_orig_mod\."),
    "FSDP": re.compile(r"(?:^|\.)_(?:fsdp|checkpoint)_wrapped_module\."),
    DDP: re.compile(r"^module\."),
}
"""What the wrappers of torch add to the names of tensors."""


def wrapper_of(name: str) -> str:
    """Return what wrapped the model that a tensor of this name was saved with, "" for an ordinary name.

    >>> wrapper_of("_orig_mod.lm_head.weight"), wrapper_of("module.lm_head.weight"), wrapper_of("lm_head.weight")
    ('torch.compile', 'DistributedDataParallel', '')
    """
    return next((wrapper for wrapper, form in _WRAPPERS.items() if form.search(name)), "")


def folded(path: str) -> str:
    """Return `path` in the form in which a disk that ignores case compares it.

    >>> folded("README.md") == folded("ReadMe.MD")
    True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def is_reserved(path: str) -> bool:
    """Return whether `path` lies in a folder for unpublished files of this tool. No file of a source may lie there."""
    return folded(path).partition("/")[0] in (STAGING_FOLDER, RECORDS_FOLDER)


def is_plain(path: str) -> bool:
    """Return whether `path` leads to a file below its folder and has no other spelling.

    >>> is_plain("unet/model.safetensors"), is_plain("./model.safetensors"), is_plain("../model.safetensors")
    (True, False, False)
    """
    return not {"", ".", ".."} & set(path.split("/"))


def clashes(ours: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Return which paths of a source (`theirs`) would replace one of `ours`, or are reserved.

    A file also clashes with a folder of the same name.

    >>> clashes(["model.safetensors"], ["Model.SafeTensors", "model.safetensors/x", "vocab.txt"])
    ['Model.SafeTensors', 'model.safetensors/x']
    """
    taken = set(map(folded, ours))
    folders = {folder for path in taken for folder in _folders(path)}
    return [
        path
        for path in theirs
        if is_reserved(path) or folded(path) in taken | folders or taken & set(_folders(folded(path)))
    ]


def refuse_clashes(ours: Iterable[str], beside: Iterable[str]) -> None:
    """Raise DestinationError if a file of the source (`beside`) would replace one of `ours`."""
    if taken := clashes(ours, beside):
        raise DestinationError(
            f"{name_some(taken)} of the source would replace a file that this tool writes.",
            "Rename it in the source.",
        )


def _folders(path: str) -> list[str]:
    return [path[: match.start()] for match in re.finditer("/", path)]


def rivals(ours: Iterable[str], there: Iterable[str]) -> set[str]:
    """Return which of the paths `there` a library could load instead of the weights among `ours`.

    Files that make the folder a pipeline are among them, because a library then loads the folders that they name.

    >>> sorted(rivals(["model-00001-of-00002.safetensors"], ["model.safetensors", "lora.safetensors", "modules.json"]))
    ['model.safetensors', 'modules.json']
    """
    stems = {_stem(path) for path in ours if path.endswith(".safetensors")}
    folders = {stem.rpartition("/")[0] for stem in stems}
    paths = {path for path in there if path.endswith(".safetensors") and _stem(path) in stems}
    paths |= {
        path for path in there if is_index(path) and ".safetensors." in path and path.rpartition("/")[0] in folders
    }
    paths |= {path for path in there if path in ENTRANCES}
    return paths - set(ours)


def _stem(path: str) -> str:
    return re.sub(r"(-\d{5,}-of-\d{5,})?\.safetensors$", "", path)


def is_weights(name: str) -> bool:
    """Return whether a file of this name may hold weights or be an index of them."""
    return name.endswith(_OTHER_FORMATS) or is_index(name)


def may_hold_weights(name: str) -> bool:
    """Return whether a file of this name may hold weights of a model, and not only the state of its training."""
    return name.endswith(_OTHER_FORMATS) and not is_training_state(name)


def is_index(path: str) -> bool:
    """Return whether a file of this path is an index of weights, for any variant."""
    return _INDEX.fullmatch(path) is not None


def is_training_state(path: str) -> bool:
    """Return whether a file of this path is state that accelerate or the Trainer needs to continue training."""
    return _TRAINING_STATE.fullmatch(path) is not None


def may_be_model(path: str) -> bool:
    """Return whether a file of this name can hold a model: weights in any format, but no data and no training state.

    >>> may_be_model("tf_model.h5"), may_be_model("training_args.bin"), may_be_model("vectors.npy")
    (True, False, False)
    """
    name = path.rpartition("/")[2]
    if name == DCP_METADATA_NAME:
        return True
    return is_weights(name) and not name.endswith(_DATA) and not is_index(name) and not is_training_state(name)


def trained_folder(paths: Collection[str]) -> str | None:
    """Return the folder ("" or ending in "/") with the weights that the ranks of a training run saved.

    Returns None if `paths` are those of an ordinary repo. Also None if there are several such folders, and none is the
    top or has accelerate's name, or several have.

    >>> trained_folder(["optimizer_0/.metadata", "pytorch_model_fsdp_0/.metadata", "scheduler.bin"])
    'pytorch_model_fsdp_0/'
    """
    relevant = [path for path in paths if not is_training_state(path)]
    top = [path for path in relevant if "/" not in path and not is_of_ranks(path)]
    if any(is_index(name) or name.endswith((".safetensors", ".bin")) for name in top):
        return None
    folders = {path[: path.rfind("/") + 1] for path in relevant if is_of_ranks(path.rpartition("/")[2])}
    if sum(_ACCELERATE_FOLDERS.fullmatch(folder) is not None for folder in folders) > 1:
        return None
    known = [folder for folder in ("", _ACCELERATE_FOLDER) if folder in folders]
    return known[0] if known else folders.pop() if len(folders) == 1 else None


def is_of_ranks(name: str) -> bool:
    """Return whether the ranks of a training run saved a file of this name (without its folder)."""
    return name == DCP_METADATA_NAME or RANK_SHARD_NAME.fullmatch(name) is not None


def is_rank_index(path: str) -> bool:
    """Return whether a file of this path is the index of one rank of a pipeline: see `Component.of_rank`."""
    return _RANK_INDEX.fullmatch(path) is not None


def is_duplicate(path: str) -> bool:
    """Return whether a file holds the same weights again, in a layout for other programs."""
    return path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated.")
