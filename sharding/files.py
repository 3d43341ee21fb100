"""Decide which files of a repo are its weights, which lie beside them and which are left out. Touches no files.

The choice is transformers' own (5.23): `model.safetensors`, its index, `pytorch_model.bin`, its index, and only then
anything else. What the index says is compared with the headers afterwards, and the headers win.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern

from sharding.errors import SourceError
from sharding.limits import MAX_SIDE_FILE_BYTES, format_bytes
from sharding.values import FileEntry, Finding, TensorEntry

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
REPORT_NAME = "sharding_report.json"
DIGESTS_NAME = "sharding_digests.json"
PICTURE_NAME = "sharding_comparison.svg"
CARD_NAME = "README.md"

BIN_NAME = "pytorch_model.bin"
BIN_INDEX_NAME = "pytorch_model.bin.index.json"

SHARD_NAME = re.compile(r"(?P<base>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.safetensors")

_BIN_SHARD = re.compile(r"(?P<base>pytorch_model)-(?P<number>\d{5,})-of-(?P<count>\d{5,})\.bin")

_OTHER_FORMATS = (
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".ggml", ".onnx", ".onnx_data",
    ".tflite", ".mlmodel", ".mlpackage", ".ot", ".npz", ".npy", ".pdparams", ".pkl", ".pickle", ".nemo",
)  # fmt: skip
_ELSEWHERE = {
    ".gguf": "This is a GGUF file for llama.cpp; its own tool gguf-split cuts it.",
    ".h5": "Load it once with transformers' from_tf=True and save it again.",
    ".msgpack": "Load it once with transformers' from_flax=True and save it again.",
    ".bin": "Rename the file that holds the model to pytorch_model.bin.",
}
_DUPLICATE_FOLDERS = ("original/", "onnx/", "openvino/", "coreml/", "gguf/")
_NEVER = {".gitattributes", INDEX_NAME, REPORT_NAME, DIGESTS_NAME, PICTURE_NAME, BIN_INDEX_NAME}


@dataclass(frozen=True, slots=True)
class Index:
    """An index file: which file it says each tensor is in, and its own count of parameters if it has one."""

    weight_map: Mapping[str, str]
    total_parameters: int | None


@dataclass(frozen=True, slots=True)
class Choice:
    """The files of a repo, sorted into the weights, what is copied beside them, and findings on the rest.

    `index` is the one that the weights were chosen by; None where none was, or another file came first.
    """

    weight_files: tuple[FileEntry, ...]
    side_files: tuple[FileEntry, ...]
    findings: tuple[Finding, ...]
    index: Index | None


def find_index(files: Iterable[FileEntry]) -> FileEntry | None:
    """Return the index that says which files are the weights, if one does."""
    by_path = {file.path: file for file in files}
    if INDEX_NAME in by_path or SINGLE_NAME in by_path or BIN_NAME in by_path:
        return by_path.get(INDEX_NAME)
    # Where the old weights were deleted their index often stayed.
    return by_path.get(BIN_INDEX_NAME) if any(map(_BIN_SHARD.fullmatch, by_path)) else None


def parse_index(text: bytes, path: str = INDEX_NAME) -> Index:
    """Return what the index at `path` says. Raises SourceError unless it maps names to plain names of weight files."""
    hint = f"Delete {path} to go by the shard files alone, or download it again."
    suffix = ".bin" if path == BIN_INDEX_NAME else ".safetensors"
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
    weight_map = {name: intern(file) for name, file in weight_map.items()}  # a hundred thousand entries, few files
    return Index(weight_map, count if type(count) is int and count >= 0 else None)


def choose_files(files: Iterable[FileEntry], index: Index | None) -> Choice:
    """Sort the files of a repo. `index` is what its index file says, if it has one.

    Raises SourceError where there are no weights that can be streamed, or listed shards are missing.
    """
    by_path = {file.path: file for file in files}
    findings: list[Finding] = []
    weights = _weights(by_path, index, findings)
    used_index = index if index and set(weights) == set(index.weight_map.values()) else None
    side, left_out = [], dict[str, list[str]]()
    for path, file in sorted(by_path.items()):
        if path in weights or (used_index and path == (BIN_INDEX_NAME if weights[0].endswith(".bin") else INDEX_NAME)):
            continue
        reason = _reason_to_leave_out(file, weights)
        if reason:
            left_out.setdefault(reason, []).append(path)
        else:
            side.append(file)
    for reason, paths in left_out.items():
        findings.append(Finding("info", "left-out", f"Left out: {name_some(paths)} ({reason})."))
    return Choice(tuple(by_path[path] for path in weights), tuple(side), tuple(findings), used_index)


def choose_side_files(files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
    """Return what is copied beside weights that are made anew, whatever the format of the old ones."""
    return tuple(file for file in files if _reason_to_leave_out(file, []) is None)


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
    return name.endswith(_OTHER_FORMATS) or name.endswith(".index.json")


def name_some(names: Sequence[str], most: int = 3) -> str:
    """Return the first few of `names` as a phrase.

    >>> name_some(["a", "b", "c", "d"])
    'a, b, c and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _weights(by_path: Mapping[str, FileEntry], index: Index | None, findings: list[Finding]) -> list[str]:
    shards = sorted(path for path in by_path if "/" not in path and SHARD_NAME.fullmatch(path))
    if SINGLE_NAME in by_path:
        if index or shards:
            findings.append(
                Finding(
                    "warning",
                    "several-checkpoints",
                    f"{SINGLE_NAME} stands beside an index or shards; it is the one used, as in transformers.",
                    "Remove the set that is out of date.",
                )
            )
        return [SINGLE_NAME]
    if BIN_NAME in by_path and not (index and INDEX_NAME in by_path):
        return [BIN_NAME]
    if index:
        listed = sorted(set(index.weight_map.values()))
        missing = [path for path in listed if path not in by_path]
        if missing:
            raise SourceError(
                f"{len(missing)} of the {len(listed)} files that the index lists are missing: {name_some(missing)}.",
                "Download them again; the checkpoint is incomplete without them.",
            )
        return listed
    if shards:
        findings.append(Finding("warning", "no-index", "There is no index; the shard files alone say what is in them."))
        return _complete_set(shards)
    others = [path for path in by_path if "/" not in path and path.endswith(".safetensors")]
    if len(others) == 1:
        return others
    pickled = sorted(path for path in by_path if _BIN_SHARD.fullmatch(path))
    if pickled and not others:
        findings.append(Finding("warning", "no-index", "There is no index; the shard files alone say what is in them."))
        return _complete_set(pickled)
    raise _no_weights(by_path, others)


def _complete_set(shards: list[str]) -> list[str]:
    sets: dict[tuple[str, int], set[int]] = {}
    for path in shards:
        match = SHARD_NAME.fullmatch(path) or _BIN_SHARD.fullmatch(path)
        assert match is not None
        sets.setdefault((match["base"], int(match["count"])), set()).add(int(match["number"]))
    if len(sets) > 1:
        names = ", ".join(f"{base} of {count}" for base, count in sets)
        raise SourceError(
            f"There are shards of several checkpoints and no index: {names}.", "Remove those that are out of date."
        )
    (_, count), numbers = next(iter(sets.items()))
    missing = count - len(numbers & set(range(1, count + 1)))
    if missing:
        raise SourceError(
            f"{missing} of the {count} shards are missing, and there is no index.", "Download them again."
        )
    return shards


def _no_weights(by_path: Mapping[str, FileEntry], others: list[str]) -> SourceError:
    if others:
        return SourceError(
            f"There are {len(others)} safetensors files and no index to say which go together: {name_some(others)}.",
            f"Keep one, or add {INDEX_NAME}.",
        )
    for suffix, hint in _ELSEWHERE.items():
        found = [path for path in by_path if path.endswith(suffix)]
        if found:
            return SourceError(f"There are no safetensors weights, only {name_some(found)}.", hint)
    return SourceError(
        "There are no weights in it.",
        f"Weights are {SINGLE_NAME}, or shards such as model-00001-of-00002.safetensors with {INDEX_NAME}.",
    )


def _reason_to_leave_out(file: FileEntry, weights: list[str]) -> str | None:
    path = file.path
    if path in _NEVER:
        return "describes the files of the source, not those of the result"
    if path.startswith(_DUPLICATE_FOLDERS) or path.rsplit("/", 1)[-1].startswith("consolidated."):
        return "the same weights in another layout"
    if path.endswith(".safetensors"):
        return "not part of the checkpoint" if SHARD_NAME.fullmatch(path) else "other weights"
    if is_weights(path):
        return "weights or data in another format"
    if file.bytes > MAX_SIDE_FILE_BYTES:
        return f"larger than {format_bytes(MAX_SIDE_FILE_BYTES)}, too large for a side file"
    return None
