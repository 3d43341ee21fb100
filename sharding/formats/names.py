"""Tell what a file is by its name. Pure."""

import re

SINGLE_NAME = "model.safetensors"
REPORT_NAME = "sharding_report.json"
DIGESTS_NAME = "sharding_digests.json"
PICTURE_NAME = "sharding_comparison.svg"
MAP_NAME = "sharding_map.svg"
CARD_NAME = "README.md"

SHARD_NAME = re.compile(r"(?P<base>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>(?:\.[^./]+)?)\.safetensors")
BIN_SHARD_NAME = re.compile(SHARD_NAME.pattern.replace("safetensors", "bin"))

_OTHER_FORMATS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".onnx", ".onnx_data", ".pb",
    ".tflite", ".mlmodel", ".mlpackage", ".ot", ".npz", ".npy", ".pdparams", ".pkl", ".pickle", ".nemo",
)  # fmt: skip
_DUPLICATE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "gguf/")
_INDEX = re.compile(r".*\.(?:safetensors|bin)(?:\.[^./]+)?\.index(?:\.[^./]+)?\.json")
_RANK_INDEX = re.compile(r".*\.safetensors\.index\.(?:[^./]+-)?rank\d+-of-\d+\.json")


def is_weights(name: str) -> bool:
    """Return whether a file of this name could be taken for weights, or for an index of them."""
    return name.endswith(_OTHER_FORMATS) or is_index(name)


def is_index(path: str) -> bool:
    """Return whether a file of this path says which weights are in which file, of any variant."""
    return _INDEX.fullmatch(path) is not None


def is_rank_index(path: str) -> bool:
    """Return whether a file of this path says which weights one rank of a pipeline loads: `Component.of_rank`."""
    return _RANK_INDEX.fullmatch(path) is not None


def is_duplicate(path: str) -> bool:
    """Return whether a file holds the weights once more, in a layout for other programs."""
    return path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated.")
