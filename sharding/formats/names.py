"""Recognise files by their names, and a mistaken file by its first bytes. Pure."""

import re
import unicodedata
from collections.abc import Iterable

from sharding.core.errors import DestinationError
from sharding.core.text import name_some
from sharding.core.values import folder_of, folders_around

SAFETENSORS = ".safetensors"
SINGLE_NAME = f"model{SAFETENSORS}"
GGUF_PIECE = re.compile(r".*\.gguf(?:[.-]split-[a-z]+|[.-]part-?\w+|\.\d+)", re.IGNORECASE | re.DOTALL)
WRITTEN = (SAFETENSORS, ".gguf")  # Endings of the weight files that a copy may have.
LOADED = (SAFETENSORS, ".bin")  # Endings of the weights that transformers loads.
TRAINED = (".distcp", ".metadata", ".pt")  # Endings of what the ranks of a training run save.
REPORT_NAME = "sharding_report.json"
DIGESTS_NAME = "sharding_digests.json"
PICTURE_NAME = "sharding_comparison.svg"
MAP_NAME = "sharding_map.svg"
CARD_NAME = "README.md"
CONFIG_NAME = "config.json"

ENTRANCES = ("model_index.json", "modules.json")  # Files that make a folder a pipeline or a sentence transformer.
STAGING_FOLDER = ".shard-my-repo"  # Folder in a destination that holds everything until it is published.
RECORDS_FOLDER = "sharding_records"  # Folder on a staging branch in which a job records its finished shards.
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
_DATA = (".npz", ".npy", ".pkl", ".pickle")  # Formats among these that can also hold data other than weights.
_DUPLICATE_FOLDERS = ("original/", "consolidated/", "onnx/", "openvino/", "coreml/", "gguf/")
_STEP = re.compile(r"(?:.*/)?(?:(?:checkpoint|epoch|step)[-_]\d+|last-checkpoint)/", re.ASCII)
_INDEX = re.compile(r".*\.(?:safetensors|bin)(?:\.[^./]+)?\.index(?:\.[^./]+)?\.json")
_TRAINING_STATE = re.compile(
    r"(?:optimizer(?:_\d+)?/.*|(?:optimizer|scheduler|scaler|sampler|dl_state)\w*\.(?:bin|pt)|random_states_\d+\.pkl"
    r"|rng_state(?:_\d+)?\.pth|trainer_state\.json|training_args\.bin|custom_checkpoint_\d+\.pkl"
    r"|(?:optim|extra_state)_world_size_\d+_rank_\d+\.pt|fsdp_config\.json|lora_train_meta\.json|latest_c\w+\.txt)"
)


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


def refuse_clashes(ours: Iterable[str], beside: Iterable[str]) -> None:
    """Raise DestinationError if a file of the source (`beside`) would replace one of `ours`, or is reserved.

    >>> refuse_clashes(["a"], ["A", "a/x", "b"])
    Traceback (most recent call last):
    sharding.core.errors.DestinationError: A, a/x of the source would replace a file that this tool writes.
    """
    taken = set(map(folded, ours))
    occupied = taken.union(*map(_folders, taken))

    def clashes(path: str) -> bool:
        return is_reserved(path) or folded(path) in occupied or bool(taken & _folders(folded(path)))

    if names := list(filter(clashes, beside)):
        message = f"{name_some(names)} of the source would replace a file that this tool writes."
        raise DestinationError(message, "Rename it in the source.")


def _folders(path: str) -> set[str]:
    return {folder[:-1] for folder in folders_around(path)}


def rivals(ours: Iterable[str], there: Iterable[str]) -> set[str]:
    """Return which of the paths `there` a library could load instead of the weights among `ours`.

    Files that make the folder a pipeline are among them, because a library then loads the folders that they name.

    >>> rivals(["m-00001-of-00002.gguf"], ["m.gguf", "n.gguf"])
    {'m.gguf'}
    >>> sorted(rivals(["model-00001-of-00002.safetensors"], ["model.safetensors", "lora.safetensors", "modules.json"]))
    ['model.safetensors', 'modules.json']
    """
    stems = {_stem(path) for path in ours if path.endswith(WRITTEN)}
    folders = {folder_of(stem) for stem in stems}

    def is_rival(path: str) -> bool:
        if path.endswith(WRITTEN):
            return _stem(path) in stems
        return path in ENTRANCES or (is_index(path) and ".safetensors." in path and folder_of(path) in folders)

    return set(filter(is_rival, there)) - set(ours)


def _stem(path: str) -> str:
    return re.sub(r"(-\d{5,}-of-\d{5,})?(?=\.(safetensors|gguf)$)", "", path)


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
    return name == DCP_METADATA_NAME or (may_hold_weights(name) and not name.endswith(_DATA) and not is_index(name))


def is_of_earlier_step(path: str) -> bool:
    """Return whether a file lies in a folder that the Trainer, or a script with accelerate, saved before the end."""
    return _STEP.match(path) is not None


def is_duplicate(path: str) -> bool:
    """Return whether a file holds the same weights again, in a layout for other programs."""
    return path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated.")


_USUAL = re.compile(
    r"(?:pytorch_model|model|tf_model|flax_model|rust_model|diffusion_(?:pytorch|flax)_model|consolidated|weights"
    r"|open_clip\w*|adapter_model|ggml-model)(?:[._-].*)?"
)
"""Names, without their endings, of the weights of a whole model, in any format or variant."""
_LIKELY = (
    (r"(?:value|v|reward)_head", "a value head, as trl writes it"),
    (r"non_lora_trainables", "what LLaVA trained beside its LoRA"),
    (r"(?:mm_)?projector", "a projector from images to words"),
    (r"new_embeddings", "embeddings of new tokens, as vLLM reads them"),
    (r"medusa_lm_head", "Medusa heads"),
    (r"(?:vit|vision\w*|visual)", "a vision tower"),
)


def may_be_missed(path: str) -> bool:
    """Return whether a file of this name may hold weights that the model itself does not hold in another form.

    >>> may_be_missed("mm_projector.bin"), may_be_missed("pytorch_model.bin"), may_be_missed("optimizer.pt")
    (True, False, False)
    """
    stem, _, ending = path.rpartition("/")[2].rpartition(".")
    is_pickle = ending in ("bin", "pt", "pth")
    return (ending == "safetensors" or is_pickle) and not (_USUAL.fullmatch(stem) or is_training_state(path))


def likely(path: str) -> str:
    """Return what such a file is likely to be, as its name says.

    >>> likely("mm_projector.bin"), likely("extra.safetensors")
    ('a projector from images to words', 'other weights')
    """
    stem = path.rpartition("/")[2].rpartition(".")[0]
    return next((words for name, words in _LIKELY if re.fullmatch(name, stem)), "other weights")


POINTER_BYTES = 1024  # A pointer of Git LFS is shorter (its specification, "The Pointer").
USUAL_POINTER = range(120, 200)  # The bytes of a pointer with nothing but version, SHA-256 and size.
POINTER = "a pointer of Git LFS, and not the file itself"
_STARTS = (
    (rb"version https?://[\w.-]+/spec/", POINTER, "Run `git lfs pull` in its folder, or download the file."),
    (rb"GGUF", "a GGUF file", "Give it the ending .gguf. To get safetensors, use the repo that it was made from."),
    (rb"PK\x03\x04", "a file of torch.save", "Give it the ending .bin, as in pytorch_model.bin."),
    (rb"\s*<(?i:!doctype|html|\?xml)", "a web page", "Download the file again. Sign in, if its repo needs that."),
    (rb"\s*[{\[]", "a JSON file", "Download the weights again, or give the file its own name."),
)
"""How each kind of file starts, what it is, and what to do."""


def what_is(start: bytes, expected: str = "safetensors") -> tuple[str, str]:
    """Return what a file is that starts with these bytes, and what to do. Both are "" if it is none of these.

    A file that is `expected` to be one of torch.save is not told that it is.

    >>> what_is(b"version https://git-lfs.github.com/spec/v1\\noid sha256:00")[0]
    'a pointer of Git LFS, and not the file itself'
    """
    kinds = ((what, hint) for form, what, hint in _STARTS if re.match(form, start))
    return next((kind for kind in kinds if expected not in kind[0]), ("", ""))
