"""Decide which files of a repo lie beside its weights and which are left out; read its indexes. Touches no files."""

from collections.abc import Collection, Container, Iterable

from sharding.checkpoint.loaders import is_of_earlier_step
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SIDE_FILE_BYTES, MAX_SIDE_FILES_BYTES
from sharding.core.text import format_bytes, name_some
from sharding.core.values import FileEntry, Finding, folders_around
from sharding.formats.names import (
    CARD_NAME,
    DIGESTS_NAME,
    MAP_NAME,
    PICTURE_NAME,
    REPORT_NAME,
    SHARD_NAME,
    folded,
    is_duplicate,
    is_index,
    is_reserved,
    is_training_state,
    is_weights,
)

_NEVER = {".gitattributes", REPORT_NAME, DIGESTS_NAME, PICTURE_NAME, MAP_NAME}
_REWRITTEN = {CARD_NAME, "config.json"}
"""Files of the source that the result has in another form: no second one that differs in case stands beside them."""


def sort_files(
    files: Iterable[FileEntry],
    taken: Container[str],
    copied: Container[str] = (),
    folders: Collection[str] = (),
    *,
    is_trained: bool = False,
) -> tuple[tuple[FileEntry, ...], list[Finding]]:
    """Return the files that lie beside the weights, and findings on those that are left out.

    `taken` are the weights and the indexes that they were chosen by, `copied` weights that are side files, of any size,
    `folders` those that the repo names as its parts. Of what a training run has saved (`is_trained`) its own state is
    left out. Raises SourceError where all that is left is more than anybody copies.
    """
    side, left_out = [], dict[str, list[str]]()
    for file in sorted(files, key=lambda file: file.path):
        if file.path in taken:
            continue
        is_part = not folders_around(file.path).isdisjoint(folders)
        reason = None if file.path in copied else _reason_to_leave_out(file, is_part)
        if is_trained and is_training_state(file.path):
            reason = "state of the training"
        if reason:
            left_out.setdefault(reason, []).append(file.path)
        else:
            side.append(file)
    findings = [
        Finding("info", "left-out", f"Left out: {name_some(paths)} ({reason}).") for reason, paths in left_out.items()
    ]
    moved = sum(file.bytes for file in side if file.xet_hash is None and file.path not in copied)
    if moved > MAX_SIDE_FILES_BYTES:
        raise SourceError(
            f"The files beside the weights have {format_bytes(moved)}; {format_bytes(MAX_SIDE_FILES_BYTES)} are copied "
            f"at most. The largest is {max(side, key=lambda file: file.bytes).path}.",
            "Copy a repo or a folder without them.",
        )
    return tuple(side), findings


def _reason_to_leave_out(file: FileEntry, is_part: bool) -> str | None:
    path = folded(file.path)  # on some disks README.md and readme.md are one file
    if path in _NEVER or is_index(path):
        return "describes the files of the source, not those of the result"
    if is_reserved(path):
        return "in a folder that this tool keeps for itself"
    if path.endswith(".part"):
        return "a download that was not finished"
    if file.path not in _REWRITTEN and path in map(folded, _REWRITTEN):
        return "differs only in case from a file that is written anew"
    if is_duplicate(path) and not is_part:
        return "the same weights in another layout"
    if is_of_earlier_step(path) and not is_part:
        return "saved at an earlier step of the training"
    if path.endswith(".safetensors"):
        return "not part of the checkpoint" if SHARD_NAME.fullmatch(path) else "other weights"
    if is_weights(path):
        return "weights or data in another format"
    if file.bytes > MAX_SIDE_FILE_BYTES:
        return f"larger than {format_bytes(MAX_SIDE_FILE_BYTES)}, too large for a side file"
    return None
