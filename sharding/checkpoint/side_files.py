"""Decide which files and links beside the weights are copied and which are left out. Touches no files."""

import re
from collections.abc import Collection, Container, Iterable, Mapping

from sharding.checkpoint.documents import MODULES_NAME, OPEN_CLIP_NAME, PIPELINE_NAME, ROUTER_NAME, SPACY_NAME
from sharding.checkpoint.weight_sets import Folders, Loader, as_safetensors, is_found_by_name, own_names
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SIDE_FILE_BYTES, MAX_SIDE_FILES_BYTES
from sharding.core.text import format_bytes, name_some, shown_name
from sharding.core.values import FileEntry, Finding, folders_around
from sharding.formats import names

_NEVER = {".gitattributes", names.REPORT_NAME, names.DIGESTS_NAME, names.PICTURE_NAME, names.MAP_NAME}
_ELSEWHERE = (
    *("the same weights in another layout", "saved at an earlier step of training", "training state"),
    *("an unfinished download", "not part of the checkpoint", "in a folder reserved for this tool"),
)
"""Reasons to leave out weights that the copy does not lack."""
_REWRITTEN = {names.CARD_NAME, "config.json"}
"""Files that the result has in another form. No file whose name differs only in case may stand beside them."""


def sort_files(
    files: Iterable[FileEntry],
    taken: Container[str],
    copied: Container[str] = (),
    folders: Collection[str] = (),
    *,
    is_trained: bool = False,
) -> tuple[tuple[FileEntry, ...], list[Finding]]:
    """Return the files to copy beside the weights, and findings about the files that are left out.

    `taken` has the weights and their indexes, `copied` weights that are side files of any size, `folders` the parts of
    the repo. With `is_trained`, state of training is left out. Raises SourceError beyond `MAX_SIDE_FILES_BYTES`.
    """
    side, left_out = [], dict[str, list[str]]()
    for file in sorted(files, key=lambda file: file.path):
        if file.path in taken:
            continue
        is_part = not folders_around(file.path).isdisjoint(folders)
        reason = None if file.path in copied else _reason_to_leave_out(file, is_part)
        if is_trained and names.is_training_state(file.path):
            reason = "training state"
        if reason:
            left_out.setdefault(reason, []).append(file.path)
        else:
            side.append(file)
    moved = sum(file.bytes for file in side if file.xet_hash is None and file.path not in copied)
    if moved > MAX_SIDE_FILES_BYTES:
        raise SourceError(
            f"The files beside the weights ({format_bytes(moved)}) are larger than the limit of "
            f"{format_bytes(MAX_SIDE_FILES_BYTES)}. The largest is {max(side, key=lambda file: file.bytes).path}.",
            "Remove large files from the source, or use a copy without them.",
        )
    return tuple(side), [_left_out(reason, paths) for reason, paths in left_out.items()]


_UNFINISHED = (".aria2", ".crdownload", ".incomplete", ".!qb", ".!ut", ".partial", ".part", ".download", ".opdownload")
"""What programs that download add to the name of a file that is not complete, or of their list of what is missing."""


def refuse_unfinished(paths: Iterable[str], weights: Iterable[str]) -> None:
    """Raise SourceError if a file among `paths` says that the download of one of `weights` did not finish."""
    known = {path.casefold(): path for path in paths}
    marks = (path + ending for path in sorted(weights) for ending in _UNFINISHED)
    if mark := next((known[mark.casefold()] for mark in marks if mark.casefold() in known), None):
        message = f"The download of {mark.rpartition('.')[0]} is not finished: {mark} is beside it."
        raise SourceError(message, f"Finish the download. If the file is complete, remove {mark}.")


def other_weights(files: Iterable[FileEntry], used: Container[str]) -> tuple[str, ...]:
    """Return the files that hold weights, or may hold some, and are not `used`. Indexes hold none."""
    paths = sorted(file.path for file in files if file.path not in used)
    return tuple(path for path in paths if names.may_hold_weights(names.folded(path)))


def _left_out(reason: str, paths: list[str]) -> Finding:
    message = f"Left out: {name_some(paths)} ({reason})."
    if not any(map(names.may_be_missed, paths)) or reason in _ELSEWHERE:
        return Finding("info", "left-out", message)
    hint = "The copy lacks these weights. If your loader looks for them, copy the files beside it."
    return Finding("warning", "left-out", message, hint)


def _reason_to_leave_out(file: FileEntry, is_part: bool) -> str | None:
    path = names.folded(file.path)  # on some disks README.md and readme.md are one file
    is_of_other_case = file.path not in _REWRITTEN and path in map(names.folded, _REWRITTEN)
    missed = names.likely(path) if names.may_be_missed(path) else ""
    too_large = f"larger than {format_bytes(MAX_SIDE_FILE_BYTES)}, the limit for a side file"
    reasons = (
        (path in _NEVER or names.is_index(path), "describes the files of the source, not of the result"),
        (names.is_reserved(path), "in a folder reserved for this tool"),
        (path.endswith(_UNFINISHED), "an unfinished download"),
        (names.GGUF_PIECE.fullmatch(path), "a piece of a GGUF file"),
        (is_of_other_case, "differs only in case from a file that this tool writes"),
        (names.is_duplicate(path) and not is_part, "the same weights in another layout"),
        (names.is_of_earlier_step(path) and not is_part, "saved at an earlier step of training"),
        (names.SHARD_NAME.fullmatch(path), "not part of the checkpoint"),
        (missed, missed),
        (path.endswith(".safetensors"), "other weights"),
        (names.is_weights(path), "weights or data in another format"),
        (file.bytes > MAX_SIDE_FILE_BYTES, too_large),
    )
    return next((reason for applies, reason in reasons if applies), None)


def refuse_links(links: Iterable[str], folders: Iterable[str] = ("",)) -> None:
    """Raise SourceError if one of `links` is in place of weights, of what describes them, or of a folder above."""
    folders = set(folders)
    above = {place for folder in folders for place in folders_around(folder)}
    inside = (folder + name for folder in ("", *folders) for name in (names.CONFIG_NAME, ROUTER_NAME))
    documents = {PIPELINE_NAME, MODULES_NAME, OPEN_CLIP_NAME, SPACY_NAME, *inside}
    for link in links:
        if link in above:
            hint = "Replace the link with the folder itself."
            raise SourceError(f"{shown_name(link)} is a link to a folder. Such links are not followed.", hint)
        has_weights = names.is_weights(link) or link.rpartition("/")[2] == names.DCP_METADATA_NAME
        is_needed = has_weights and not (names.is_duplicate(link) or names.is_training_state(link))
        if not link.endswith("/") and (link in documents or is_needed):
            message = f"{shown_name(link)} is a link to a file outside the folder."
            hint = "Replace the link with the file itself. Links are followed only within the folder or in a Hub cache."
            raise SourceError(message, hint)


def weights_beside(
    inside: Folders, loaders: Mapping[str, Loader], absent: Container[str] = frozenset()
) -> frozenset[str]:
    """Return the weights beside a model that are copied unchanged, because a program loads them by name.

    `loaders` has the loader of each folder of the model itself, in which these are the files that a library finds by
    name. In other folders that are not `absent`, they are all adapters, heads and codecs, with their index.
    """
    weights = set[str]()
    for folder, paths in inside.items():
        passed_over = (names.is_duplicate, names.is_reserved, names.is_of_earlier_step)
        files = [path for path in paths if not any(tells(path) for tells in passed_over)]
        if folder in loaders or not folder:
            weights |= _weights_by_name(folder, files, loaders.get(folder))
        elif folder not in absent:
            weights |= _all_of(files)
    return frozenset(weights)


def _weights_by_name(folder: str, files: list[str], loader: Loader | None) -> set[str]:
    weights = {path for path in files if is_found_by_name(path.removeprefix(folder))}
    weights -= {path for path in weights if as_safetensors(path) != path and as_safetensors(path) in weights}
    if loader and loader.any_name:
        weights |= set(own_names(loader, folder, files))
    if loader and loader.may_take_more:
        weights |= _all_of(files, takes_pickles=True)
    return weights


def _all_of(files: list[str], takes_pickles: bool = False) -> set[str]:
    """Return the weights among `files`. Pickles count if nothing better is there."""
    has_config = takes_pickles or any(path.endswith(".json") and not names.is_index(path) for path in files)
    safe = {path for path in files if path.endswith(".safetensors")}
    known = set(map(_without_number, safe))
    pickled = {
        path
        for path in files
        if path.endswith((".bin", ".pt", ".pth"))
        and not names.is_training_state(path.rpartition("/")[2])
        and _without_number(as_safetensors(path)) not in known
        and (has_config or is_found_by_name(path.rpartition("/")[2]))
    }
    endings = [".safetensors."] * bool(safe) + [".bin."] * any(map(names.BIN_SHARD_NAME.fullmatch, pickled))
    indexes = {path for path in files if names.is_index(path) and any(ending in path for ending in endings)}
    return safe | pickled | indexes | {path for path in files if path.endswith((".npy", ".npz"))}


def _without_number(path: str) -> str:
    return re.sub(r"-\d{5,}-of-\d{5,}", "", path)
