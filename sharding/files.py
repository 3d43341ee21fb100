"""Decide which files of a repo lie beside its weights and which are left out; read its indexes. Touches no files."""

import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from sharding.errors import SourceError
from sharding.limits import MAX_SIDE_FILE_BYTES, format_bytes
from sharding.values import FileEntry, Finding, TensorEntry, folder_of

SINGLE_NAME = "model.safetensors"
REPORT_NAME = "sharding_report.json"
DIGESTS_NAME = "sharding_digests.json"
PICTURE_NAME = "sharding_comparison.svg"
CARD_NAME = "README.md"

SHARD_NAME = re.compile(r"(?P<base>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<rest>(?:\.[^./]+)?)\.safetensors")
BIN_SHARD_NAME = re.compile(SHARD_NAME.pattern.replace("safetensors", "bin"))

_OTHER_FORMATS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".onnx", ".onnx_data", ".pb",
    ".tflite", ".mlmodel", ".mlpackage", ".ot", ".npz", ".npy", ".pdparams", ".pkl", ".pickle", ".nemo",
)  # fmt: skip
_DUPLICATE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "gguf/")
_INDEX = re.compile(r".*\.(?:safetensors|bin)(?:\.[^./]+)?\.index(?:\.[^./]+)?\.json")
_NEVER = {".gitattributes", REPORT_NAME, DIGESTS_NAME, PICTURE_NAME}


@dataclass(frozen=True, slots=True)
class Index:
    """An index file: which file it says each tensor is in, and its own count of parameters if it has one."""

    weight_map: Mapping[str, str]
    total_parameters: int | None


def parse_index(text: bytes, path: str) -> Index:
    """Return what the index at `path` (of safetensors or .bin files) says, with its folder before names and files.

    Raises SourceError unless it maps names to plain file names.
    """
    hint = f"Delete {path} to go by the shard files alone, or download it again."
    folder = folder_of(path)
    suffix = ".bin" if ".bin." in path.removeprefix(folder) else ".safetensors"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{path} is not valid JSON.", hint) from error
    weight_map = document.get("weight_map") if isinstance(document, dict) else None
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(file, str) for file in weight_map.values())
    ):
        raise SourceError(f"{path} has no weight_map from tensor names to file names.", hint)
    for file in set(weight_map.values()):
        if not file.endswith(suffix) or re.search(r"[/\\\x00-\x1f]", file):
            raise SourceError(f"{path} names {file[:100]!r}, which is not a {suffix[1:]} file beside it.", hint)
    metadata = document.get("metadata")
    count = metadata.get("total_parameters") if isinstance(metadata, dict) else None
    # A hundred thousand entries, few files.
    weight_map = {folder + name: intern(folder + file) for name, file in weight_map.items()}
    return Index(weight_map, count if type(count) is int and count >= 0 else None)


def sort_files(
    files: Iterable[FileEntry], taken: Container[str], copied: Container[str] = ()
) -> tuple[tuple[FileEntry, ...], list[Finding]]:
    """Return the files that lie beside the weights, and findings on those that are left out.

    `taken` are the weights and the indexes that they were chosen by, `copied` weights that are side files.
    """
    side, left_out = [], dict[str, list[str]]()
    for file in sorted(files, key=lambda file: file.path):
        if file.path in taken:
            continue
        reason = _reason_to_leave_out(file, is_copied=file.path in copied)
        if reason:
            left_out.setdefault(reason, []).append(file.path)
        else:
            side.append(file)
    findings = [
        Finding("info", "left-out", f"Left out: {name_some(paths)} ({reason}).") for reason, paths in left_out.items()
    ]
    return tuple(side), findings


def compare_with_index(index: Index, tensors: Iterable[TensorEntry], tied: Iterable[str] = ()) -> list[Finding]:
    """Return findings for every way in which an index disagrees with the headers of the files it lists.

    `tied` are names that are left out because another stands for the same tensor.
    """
    real = {tensor.name: tensor.file for tensor in tensors}
    known = set(tied)
    unlisted = [name for name in real if name not in index.weight_map]
    absent = [name for name in index.weight_map if name not in real and name not in known]
    elsewhere = [name for name, file in index.weight_map.items() if real.get(name, file) != file]
    findings = []
    for names, code, problem in (
        (unlisted, "index-unlisted-tensor", "in the files but not in the index; they are kept"),
        (absent, "index-absent-tensor", "in the index but in no file; nothing can be kept of them"),
        (elsewhere, "index-wrong-file", "in another file than the index says; the files are right"),
    ):
        if names:
            findings.append(Finding("warning", code, f"{len(names)} tensors are {problem}: {name_some(names)}."))
    return findings


def is_weights(name: str) -> bool:
    """Return whether a file of this name could be taken for weights, or for an index of them."""
    return name.endswith(_OTHER_FORMATS) or is_index(name)


def is_index(path: str) -> bool:
    """Return whether a file of this path says which weights are in which file, of any variant."""
    return _INDEX.fullmatch(path) is not None


def is_duplicate(path: str) -> bool:
    """Return whether a file holds the weights once more, in a layout for other programs."""
    return path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated.")


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few of `names` as a phrase.

    >>> name_some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _reason_to_leave_out(file: FileEntry, is_copied: bool) -> str | None:
    path = file.path
    if path in _NEVER or is_index(path):
        return "describes the files of the source, not those of the result"
    if is_duplicate(path):
        return "the same weights in another layout"
    if path.endswith(".safetensors") and not is_copied:
        return "not part of the checkpoint" if SHARD_NAME.fullmatch(path) else "other weights"
    if is_weights(path) and not is_copied:
        return "weights or data in another format"
    if file.bytes > MAX_SIDE_FILE_BYTES:
        return f"larger than {format_bytes(MAX_SIDE_FILE_BYTES)}, too large for a side file"
    return None
