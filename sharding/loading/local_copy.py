"""Lay a checkpoint out in a folder so that a library can load it: links to what is here, downloads of the rest."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from sharding.checkpoint.links import refuse_links
from sharding.checkpoint.read import named_weights
from sharding.core.errors import SourceError
from sharding.core.limits import DISK_FLOOR_BYTES
from sharding.core.protocols import Source
from sharding.core.text import format_bytes
from sharding.core.values import FileEntry
from sharding.formats.names import RANK_SHARD_NAME, SHARD_NAME, SINGLE_NAME

_BIN_NAME = "pytorch_model.bin"
_WEIGHTS = (".safetensors", ".bin")
_TEXTS = (".json", ".model", ".txt", ".jinja")
"""Configuration and tokenizer."""


def loadable_files(source: Source) -> list[FileEntry]:
    """Return the files of `source` that loading takes: weights of one format, configuration, tokenizer; no subfolders.

    Raises SourceError where there are no weights, or one of them is a link that is not followed.
    """
    refuse_links(source.links_out)
    # What one rank has saved is called like a shard.
    top = [file for file in source.files if "/" not in file.path and not RANK_SHARD_NAME.fullmatch(file.path)]
    names = {file.path for file in top}
    suffix, named = ".safetensors", set(named_weights(source))
    if not (named or SINGLE_NAME in names or any(SHARD_NAME.fullmatch(name) for name in names)):
        suffix = ".bin"
    single = SINGLE_NAME if suffix == ".safetensors" else _BIN_NAME
    usual = {name for name in names if name.endswith(suffix) and (name == single or single not in names)}
    weights = [file for file in top if file.path in (named or usual)]
    if not weights:
        raise SourceError(
            "There are no weights in it that transformers loads.", "Give a folder with model.safetensors."
        )
    other = ".bin.index.json" if suffix == ".safetensors" else ".safetensors.index.json"
    return weights + [file for file in top if file.path.endswith(_TEXTS) and not file.path.endswith(other)]


def download_bytes(source: Source, files: Iterable[FileEntry]) -> int:
    """Return how many bytes `lay_out` would download."""
    return sum(file.bytes for file in files if source.path(file.path) is None)


def refuse_without_room(folder: Path, needed_bytes: int) -> None:
    """Raise SourceError where the disk of `folder` lacks `needed_bytes`."""
    free_bytes = shutil.disk_usage(folder).free - DISK_FLOOR_BYTES
    if needed_bytes > free_bytes:
        raise SourceError(
            f"{format_bytes(needed_bytes)} would have to be downloaded; the disk has {format_bytes(free_bytes)} free.",
            "Free some room, or compare folders that are here already.",
        )


def lay_out(
    source: Source, files: Iterable[FileEntry], folder: Path, written: Mapping[str, bytes] | None = None
) -> Path:
    """Fill the new `folder` with `files` of `source`, and with `written` (name to content); return it.

    Raises SourceError where they cannot be had, or are not those whose hash the Hub states.
    """
    folder.mkdir()
    for file in files:
        if path := source.path(file.path):
            (folder / file.path).symlink_to(path)
        else:
            with open(folder / file.path, "wb") as out:
                out.writelines(source.read(file.path, 0, file.bytes))
    for name, data in (written or {}).items():
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(data)
    return folder
