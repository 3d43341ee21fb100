"""Show the output of a training run as a repo: its weights at the top, beside the other files of the trained model."""

from collections.abc import Iterator
from dataclasses import replace

from sharding.checkpoint.weight_sets import is_found_by_name
from sharding.core.protocols import Source
from sharding.core.repo import Repo
from sharding.core.values import FileEntry
from sharding.formats.names import is_duplicate, is_training_state, is_weights


def trained_repo(source: Source, folder: str, base: Source | None) -> Repo:
    """Return a repo whose top is `folder` of `source`, with the files that `base` has beside its weights.

    Files of `source` outside `folder` stay where they are.
    """
    files: dict[str, FileEntry] = {}
    links = [link.removeprefix(folder) for link in source.links_out]
    if base:
        files |= {file.path: replace(file, source=1) for file in base.files if _is_beside(file.path)}
        links += filter(_is_beside, base.links_out)
    files |= {file.path: file for file in source.files if not (folder and file.path.startswith(folder))}
    files |= {file.path: file for file in _at_the_top(source, folder)}
    return Repo([source, *([base] if base else [])], (files[path] for path in sorted(files)), links)


def _at_the_top(source: Source, folder: str) -> Iterator[FileEntry]:
    for file in source.files:
        if folder and file.path.startswith(folder):
            # Without the store's hash: a file that gets a new name is not copied on the server.
            yield replace(file, path=file.path.removeprefix(folder), place=file.path, xet_hash=None)


def _is_beside(path: str) -> bool:
    """Return whether to take a file of a base: it is not part of its model or of the state of its training."""
    is_model = is_weights(path) and "/" not in path and not is_found_by_name(path)
    return not (is_model or is_duplicate(path) or is_training_state(path))
