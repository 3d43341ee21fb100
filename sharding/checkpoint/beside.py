"""Find weights beside a model that are copied unchanged, because a program loads them by name. Pure."""

import re
from collections.abc import Container, Iterable, Mapping

from sharding.checkpoint.loaders import Loader, as_safetensors, is_found_by_name, is_of_earlier_step
from sharding.checkpoint.weight_sets import Folders, own_names
from sharding.formats.names import BIN_SHARD_NAME, is_duplicate, is_index, is_reserved, is_training_state

_PICKLED = (".bin", ".pt", ".pth")


def weights_beside(
    inside: Folders, loaders: Mapping[str, Loader], absent: Container[str] = frozenset()
) -> frozenset[str]:
    """Return the files of a repo that are such weights.

    `inside` lists the files of each folder. `loaders` has the loader of each folder of the model itself. Files in an
    `absent` folder are ignored.

    In a folder of the model, these are the files that a library finds by name. In other folders, they are all adapters,
    heads and codecs, with their index if there is one. There, pickled files need a configuration or a known name.
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
    """Return the weights among `files`: safetensors, arrays of numbers, and pickles without a safetensors version.

    A pickle counts if a configuration lies beside it or its name is known. With `takes_pickles`, every pickle counts.
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
