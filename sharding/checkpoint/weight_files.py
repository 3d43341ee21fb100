"""Choose one set of weight files from each folder that is loaded, and those that are copied as they are. Pure.

The choice follows the library that loads them: see `loaders`. Later, the index is compared with the headers. If they
disagree, the headers win.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharding.checkpoint.library import Layout
from sharding.checkpoint.loaders import ONE_FILE, Loader, as_safetensors, is_found_by_name, is_of_earlier_step
from sharding.checkpoint.unsupported import component_without_weights, no_variant, no_weights, of_other_formats
from sharding.checkpoint.weight_sets import Folders, WeightSet, own_names, sets_by_variant
from sharding.core.errors import SourceError
from sharding.core.text import name_some
from sharding.core.values import Finding, Library
from sharding.formats.names import (
    BIN_SHARD_NAME,
    DCP_METADATA_NAME,
    RANK_SHARD_NAME,
    SHARD_NAME,
    is_duplicate,
    is_index,
    is_reserved,
    is_training_state,
    may_be_model,
)


@dataclass(frozen=True, slots=True)
class Selection:
    """The sets of a repo (one per folder), the weights that are copied unchanged, and findings."""

    library: Library
    sets: tuple[WeightSet, ...]
    copied: frozenset[str]
    findings: tuple[Finding, ...]
    passed_over: tuple[str, ...] = ()
    """Variants that could be taken instead, "" for the plain weights."""


def find_sets(inside: Folders, layout: Layout, named: str | None = None, variant: str = "") -> Selection:
    """Return the weight sets of a repo with `layout`. A folder that has `variant` gives that variant.

    `named` is the weight file that config.json names. Raises SourceError if there are no weights that can be streamed,
    a component has none, or the variant does not exist.
    """
    sets: list[WeightSet] = []
    passed_over = set[str]()
    for folder, loader in layout.folders.items():
        files = inside.get(folder, ())
        if not folder and named and not (named not in files and _of_ranks(files)):
            # The library loads the named file for every variant. Beside files of ranks, the base's file may be named.
            sets.append(named_set(named, files))
            continue
        variants = sets_by_variant(loader, folder, files)
        chosen = _choose(variants, variant) or _of_other_name(layout.library, loader, folder, files)
        if chosen:
            sets.append(chosen)
            passed_over |= variants.keys() - {chosen.variant}
        else:
            _refuse_without_weights(layout, folder, files)
    if not sets:
        raise no_weights([path for files in inside.values() for path in files])
    if variant and all(chosen.variant != variant for chosen in sets):
        raise no_variant(variant, {chosen.variant for chosen in sets} | passed_over)
    taken = {path for chosen in sets for path in (chosen.single, chosen.index, *chosen.shards) if path}
    copied = weights_beside(inside, layout.folders, layout.absent) - taken
    findings = tuple(_remarks(layout.library, sets, passed_over, copied))
    return Selection(layout.library, tuple(sets), copied, findings, tuple(sorted(passed_over)))


def _choose(variants: dict[str, WeightSet], variant: str) -> WeightSet | None:
    if variant in variants:
        return variants[variant]
    if "" in variants or not variants:
        return variants.get("")
    if len(variants) > 1:
        raise no_variant(variant, variants)
    return next(iter(variants.values()))


def named_set(name: str, inside: Container[str]) -> WeightSet:
    """Return the set that config.json names. Raises SourceError if it is not among the files `inside` its folder."""
    if name not in inside or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise SourceError(
            f"config.json sets transformers_weights to {name[:100]!r}, but no such safetensors file is beside it.",
            "Download that file. If the weights are in model.safetensors, remove the entry instead.",
        )
    return WeightSet("", index=name) if name.endswith(".json") else WeightSet("", single=name)


def _of_other_name(library: Library, loader: Loader, folder: str, files: Sequence[str]) -> WeightSet | None:
    """Return the weight set of a folder if no file has a name that `loader` looks for."""
    if ranks := [] if folder else _of_ranks(files):
        stem = loader.stems[0] if loader.is_whole and loader.stems else "model"
        return WeightSet("", stem, is_whole=loader.is_whole, ranks=ranks)
    if loader.any_name:
        names = own_names(loader, folder, files)
        if not names or (loader.pickled and of_other_formats(files, names[0])):
            return None
        stem = names[0].removeprefix(folder).removesuffix(".safetensors")
        return WeightSet(folder, stem, is_whole=True, single=names[0])
    if folder or loader.is_whole or library not in ("transformers", "unknown"):
        return None
    return _unnamed(files)


def _of_ranks(inside: Sequence[str]) -> list[str]:
    """Return the files that the ranks of a training run saved, or the metadata file that locates their pieces."""
    ranks = sorted(path for path in inside if RANK_SHARD_NAME.fullmatch(path))
    if not ranks and DCP_METADATA_NAME in inside:
        ranks = [DCP_METADATA_NAME]
    counts = {match["count"] for path in ranks if (match := RANK_SHARD_NAME.fullmatch(path))}
    if len(counts) > 1:
        raise SourceError(
            f"The folder has rank files of several saves, with {' and '.join(sorted(counts))} files each.",
            "Keep the files of each save in their own folder.",
        )
    return ranks


def _unnamed(inside: Sequence[str]) -> WeightSet | None:
    """Return the shards of any other name, or the only safetensors file.

    If weights in another format with another name lie beside that file, it does not hold the model.
    """
    others = [path for path in inside if path.endswith(".safetensors") and not is_duplicate(path)]
    shards = [path for path in others if SHARD_NAME.fullmatch(path)]
    if shards:
        return WeightSet("", shards=shards)
    if len(others) != 1 or of_other_formats(inside, others[0]):
        return None
    return WeightSet("", single=others[0])


def _refuse_without_weights(layout: Layout, folder: str, files: Sequence[str]) -> None:
    """Raise SourceError if a part of the repo is a model, or has weights in another format. No set was found for it."""
    unread = [path for path in files if may_be_model(path)] if layout.library == "diffusers" and folder else []
    if unread or folder in layout.models:
        raise component_without_weights(folder, unread)


def _remarks(
    library: Library, sets: Sequence[WeightSet], passed_over: set[str], copied: Iterable[str]
) -> Iterable[Finding]:
    if names := sorted(name for name in passed_over if name):
        message = f"Other variants are left out: {', '.join(names)}."
        hint = f"To re-shard one of them instead, add --variant {names[0]}."
        yield Finding("info", "variants", message, hint)
    for name in sorted({weight_set.variant for weight_set in sets} - {""}):
        yield Finding("info", "variant", f"The variant {name} is used.", f'Load the result with variant="{name}".')
    whole = sorted(weight_set.single or weight_set.folder for weight_set in sets if weight_set.is_whole)
    if library in ONE_FILE and whole:
        message = f"{ONE_FILE[library]} loads one file and follows no index, so {name_some(whole)} stays one file. "
        message += "The shard limit does not apply to it."
        yield Finding("info", "one-file-loader", message)
        whole = []
    if whole := sorted([*whole, *copied]):
        message = f"Kept whole, because their libraries find them by name and not by an index: {name_some(whole)}."
        yield Finding("info", "kept-whole", message)
    if library == "unknown":
        message = "No loader is known: the source does not say which library loads these weights."
        hint = "They are cut as for transformers. If your loader reads only one file, add --single-file."
        yield Finding("warning", "no-known-loader", message, hint)


_PICKLED = (".bin", ".pt", ".pth")


def weights_beside(
    inside: Folders, loaders: Mapping[str, Loader], absent: Container[str] = frozenset()
) -> frozenset[str]:
    """Return the weights beside a model that are copied unchanged, because a program loads them by name.

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
        if path.endswith(_PICKLED)
        and not is_training_state(path.rpartition("/")[2])
        and _without_number(as_safetensors(path)) not in known
        if has_config or is_found_by_name(path.rpartition("/")[2])
    }
    endings = [".safetensors."] * bool(safe) + [".bin."] * any(map(BIN_SHARD_NAME.fullmatch, pickled))
    indexes = {path for path in files if is_index(path) and any(ending in path for ending in endings)}
    return safe | pickled | indexes | {path for path in files if path.endswith((".npy", ".npz"))}


def _without_number(path: str) -> str:
    return re.sub(r"-\d{5,}-of-\d{5,}", "", path)
