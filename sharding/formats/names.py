"""Tell what a file is by its name. Pure."""

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
"""What makes a folder a pipeline or a sentence transformer."""

STAGING_FOLDER = ".shard-my-repo"
"""Folder in a destination where everything lies until it is published."""

RECORDS_FOLDER = "sharding_records"
"""Folder on a staging branch where a job notes what it has finished."""

SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>(?:\.[^./]+)?)\.safetensors")
BIN_SHARD_NAME = re.compile(SHARD_NAME.pattern.replace("safetensors", "bin"))

RANK_SHARD_NAME = re.compile(
    r"shard-(?P<rank>\d{5})-model-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors", re.ASCII
)
"""Files of one rank, as torch's HuggingFaceStorageWriter calls them (torch 2.13, `_hf_utils._gen_file_name`)."""

DCP_METADATA_NAME = ".metadata"
"""What torch.distributed.checkpoint writes beside the files of ranks, `__0_0.distcp`."""

_OTHER_FORMATS = (
    ".safetensors", ".bin", ".distcp", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".onnx",
    ".onnx_data", ".pb", ".tflite", ".mlmodel", ".mlpackage", ".ot", ".npz", ".npy", ".pdparams", ".pkl", ".pickle",
    ".nemo",
)  # fmt: skip
_DATA = (".npz", ".npy", ".pkl", ".pickle")
"""Of these, files that can be something else than weights."""
_DUPLICATE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "gguf/")
_INDEX = re.compile(r".*\.(?:safetensors|bin)(?:\.[^./]+)?\.index(?:\.[^./]+)?\.json")
_TRAINING_STATE = re.compile(
    r"(?:optimizer(?:_\d+)?/.*|(?:optimizer|scheduler|scaler|sampler|dl_state)\w*\.(?:bin|pt)|random_states_\d+\.pkl"
    r"|rng_state(?:_\d+)?\.pth|trainer_state\.json|training_args\.bin|custom_checkpoint_\d+\.pkl)"
)
_ACCELERATE_FOLDER = "pytorch_model_fsdp_0/"
_RANK_INDEX = re.compile(r".*\.safetensors\.index\.(?:[^./]+-)?rank\d+-of-\d+\.json")


def folded(path: str) -> str:
    """Return `path` as a disk that ignores case compares it.

    >>> folded("README.md") == folded("ReadMe.MD")
    True
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


def is_reserved(path: str) -> bool:
    """Return whether a path is one where this tool keeps what is not published: no file of a source has it."""
    return folded(path).partition("/")[0] in (STAGING_FOLDER, RECORDS_FOLDER)


def is_plain(path: str) -> bool:
    """Return whether `path` leads to a file below a folder, and no other path leads there.

    >>> is_plain("unet/model.safetensors"), is_plain("./model.safetensors"), is_plain("../model.safetensors")
    (True, False, False)
    """
    return not {"", ".", ".."} & set(path.split("/"))


def clashes(ours: Iterable[str], theirs: Iterable[str]) -> list[str]:
    """Return which paths of a source (`theirs`) would take the place of one of `ours`, or are reserved.

    One that is a file takes the place of a folder, too.

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
    """Raise DestinationError where a file of the source, `beside` our own, would take the place of one of `ours`."""
    if taken := clashes(ours, beside):
        raise DestinationError(
            f"{name_some(taken)} of the source would take the place of a file that this tool writes.",
            "Rename it in the source.",
        )


def _folders(path: str) -> list[str]:
    return [path[: match.start()] for match in re.finditer("/", path)]


def rivals(ours: Iterable[str], there: Iterable[str]) -> set[str]:
    """Return which of the paths `there` a library could load in the place of the weights among `ours`.

    That is also what makes a pipeline of the folder: it would be loaded from the folders that this names.

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
    """Return whether a file of this name could be taken for weights, or for an index of them."""
    return name.endswith(_OTHER_FORMATS) or is_index(name)


def is_index(path: str) -> bool:
    """Return whether a file of this path says which weights are in which file, of any variant."""
    return _INDEX.fullmatch(path) is not None


def is_training_state(path: str) -> bool:
    """Return whether a file of this path beside weights is what accelerate or the Trainer needs to go on training."""
    return _TRAINING_STATE.fullmatch(path) is not None


def may_be_model(path: str) -> bool:
    """Return whether a file of this name can hold a model: weights in any format, no data and no state of a training.

    >>> may_be_model("tf_model.h5"), may_be_model("training_args.bin"), may_be_model("vectors.npy")
    (True, False, False)
    """
    name = path.rpartition("/")[2]
    if name == DCP_METADATA_NAME:
        return True
    return is_weights(name) and not name.endswith(_DATA) and not is_index(name) and not is_training_state(name)


def trained_folder(paths: Collection[str]) -> str | None:
    """Return the folder, "" or ending in "/", of the weights that the ranks of a training run have saved.

    None where files at `paths` are an ordinary repo, or there are several such folders and none of accelerate's name.

    >>> trained_folder(["optimizer_0/.metadata", "pytorch_model_fsdp_0/.metadata", "scheduler.bin"])
    'pytorch_model_fsdp_0/'
    """
    relevant = [path for path in paths if not is_training_state(path)]
    if any("/" not in path and _is_ordinary(path) for path in relevant):
        return None
    folders = {path[: path.rfind("/") + 1] for path in relevant if is_of_ranks(path.rpartition("/")[2])}
    known = [folder for folder in ("", _ACCELERATE_FOLDER) if folder in folders]
    return known[0] if known else folders.pop() if len(folders) == 1 else None


def _is_ordinary(name: str) -> bool:
    return is_index(name) or (name.endswith((".safetensors", ".bin")) and not is_of_ranks(name))


def is_of_ranks(name: str) -> bool:
    """Return whether a file of this name, without its folder, is what the ranks of a training run have saved."""
    return name == DCP_METADATA_NAME or RANK_SHARD_NAME.fullmatch(name) is not None


def is_rank_index(path: str) -> bool:
    """Return whether a file of this path says which weights one rank of a pipeline loads: `Component.of_rank`."""
    return _RANK_INDEX.fullmatch(path) is not None


def is_duplicate(path: str) -> bool:
    """Return whether a file holds the weights once more, in a layout for other programs."""
    return path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated.")
