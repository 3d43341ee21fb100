"""Find the weights that lie beside a model and are copied as they are, because something finds them by name. Pure."""

from collections.abc import Container, Iterable, Mapping

from sharding.checkpoint.loaders import Loader, as_safetensors, is_found_by_name, is_of_earlier_step
from sharding.checkpoint.weight_sets import Folders, own_names
from sharding.formats.names import is_duplicate, is_index, is_reserved, is_training_state

_PICKLED = (".bin", ".pt", ".pth")


def weights_beside(
    inside: Folders, loaders: Mapping[str, Loader], absent: Container[str] = frozenset()
) -> frozenset[str]:
    """Return which files of a repo, that are `inside` its folders, are such weights; `loaders` are of its own folders.

    What is in an `absent` folder is no part of it.

    Other folders are copied as they are: adapters, heads and codecs, with the index that they may have; pickled ones
    only beside a configuration. In a folder of the model that is what a library finds by name.
    """
    found = set[str]()
    for folder, paths in inside.items():
        files = [path for path in paths if not (is_duplicate(path) or is_reserved(path) or is_of_earlier_step(path))]
        if folder in loaders:
            found |= _found_by_name(folder, files, loaders[folder])
        elif folder and folder not in absent:
            found |= _all_of(files)
    return frozenset(found)


def _found_by_name(folder: str, files: Iterable[str], loader: Loader) -> set[str]:
    files = set(files)
    found = {path for path in files if is_found_by_name(path.removeprefix(folder))}
    found -= {path for path in found if as_safetensors(path) in found - {path}}
    if loader.any_name:
        found |= set(own_names(loader, folder, files))
    if loader.copied:  # a module may be of the repo's own code, which takes what it wants
        found |= {path for path in files if path.endswith((".safetensors", *_PICKLED)) and not _is_state(path)}
        if f"{folder}model.safetensors" in files:
            found -= {folder + loader.copied}
    return found


def _all_of(files: Iterable[str]) -> set[str]:
    """Return the weights among `files`, pickled ones where there are no others, and arrays of numbers."""
    files = list(files)
    has_config = any(path.endswith(".json") and not is_index(path) for path in files)
    pickled = {path for path in files if has_config and path.endswith(_PICKLED) and not _is_state(path)}
    safe = {path for path in files if path.endswith(".safetensors")}
    weights, suffix = (safe, ".safetensors.") if safe else (pickled, ".bin.")
    indexes = {path for path in files if is_index(path) and suffix in path}
    return weights | indexes | {path for path in files if path.endswith((".npy", ".npz"))}


def _is_state(path: str) -> bool:
    return is_training_state(path.rpartition("/")[2])
