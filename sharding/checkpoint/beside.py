"""Find the weights that lie beside a model and are copied as they are, because something finds them by name. Pure."""

import re
from collections.abc import Container, Iterable, Mapping

from sharding.checkpoint.loaders import Loader, as_safetensors, is_found_by_name, is_of_earlier_step
from sharding.checkpoint.weight_sets import Folders, own_names
from sharding.formats.names import BIN_SHARD_NAME, is_duplicate, is_index, is_reserved, is_training_state

_PICKLED = (".bin", ".pt", ".pth")


def weights_beside(
    inside: Folders, loaders: Mapping[str, Loader], absent: Container[str] = frozenset()
) -> frozenset[str]:
    """Return which files of a repo, that are `inside` its folders, are such weights; `loaders` are of its own folders.

    What is in an `absent` folder is no part of it.

    Other folders are copied as they are: adapters, heads and codecs, with the index that they may have; pickled ones
    only beside a configuration. In a folder of the model that is what a library finds by name.
    """
    weights = set[str]()
    for folder, paths in inside.items():
        files = [path for path in paths if not (is_duplicate(path) or is_reserved(path) or is_of_earlier_step(path))]
        if folder in loaders or not folder:
            weights |= _weights_by_name(folder, files, loaders.get(folder))
        elif folder not in absent:
            weights |= _all_of(files)
    return frozenset(weights)


def _weights_by_name(folder: str, files: Iterable[str], loader: Loader | None) -> set[str]:
    files = set(files)
    weights = {path for path in files if is_found_by_name(path.removeprefix(folder))}
    weights -= {path for path in weights if as_safetensors(path) != path and as_safetensors(path) in weights}
    if loader and loader.any_name:
        weights |= set(own_names(loader, folder, files))
    if loader and loader.may_take_more:
        weights |= _all_of(files, takes_pickles=True)
    return weights


def _all_of(files: Iterable[str], takes_pickles: bool = False) -> set[str]:
    """Return the weights among `files`, pickled ones where they are not there as safetensors, and arrays of numbers.

    Pickles are taken beside a configuration, or where they have a name that is known, unless `takes_pickles` anyway.
    """
    files = list(files)
    has_config = takes_pickles or any(path.endswith(".json") and not is_index(path) for path in files)
    safe = {path for path in files if path.endswith(".safetensors")}
    known = set(map(_without_number, safe))
    pickled = {
        path
        for path in files
        if path.endswith(_PICKLED) and not _is_state(path) and _without_number(as_safetensors(path)) not in known
        if has_config or is_found_by_name(path.rpartition("/")[2])
    }
    endings = [".safetensors."] * bool(safe) + [".bin."] * any(map(BIN_SHARD_NAME.fullmatch, pickled))
    indexes = {path for path in files if is_index(path) and any(ending in path for ending in endings)}
    return safe | pickled | indexes | {path for path in files if path.endswith((".npy", ".npz"))}


def _without_number(path: str) -> str:
    return re.sub(r"-\d{5,}-of-\d{5,}", "", path)


def _is_state(path: str) -> bool:
    return is_training_state(path.rpartition("/")[2])
