"""Choose the weight files of each folder that is loaded, as its library does, and those that are copied. Pure."""

from collections.abc import Container, Iterable, Sequence

from sharding.checkpoint.documents import MODULES_NAME, PIPELINE_NAME
from sharding.checkpoint.foreign import refuse_foreign
from sharding.checkpoint.library import Layout
from sharding.checkpoint.readers import files_of_run, is_of_run
from sharding.checkpoint.side_files import weights_beside
from sharding.checkpoint.weight_sets import ONE_FILE, Folders, Loader, WeightSet, own_names, sets_by_variant
from sharding.core.errors import SourceError, VariantMissing
from sharding.core.text import name_some
from sharding.core.values import Finding, Library
from sharding.formats.names import SHARD_NAME, is_duplicate, may_be_model


def find_sets(
    inside: Folders, layout: Layout, named: str | None, variant: str
) -> tuple[list[WeightSet], frozenset[str], list[Finding], tuple[str, ...]]:
    """Return the weight sets of a repo, by `named` or in `variant` where there is that: one of each folder.

    Return also the weights that are copied unchanged, findings, and the variants that could be taken instead ("" for
    the plain weights). Raises SourceError.
    """
    sets: list[WeightSet] = []
    passed_over = set[str]()
    for folder, loader in layout.folders.items():
        files = inside.get(folder, ())
        if not folder and named and not (named not in files and files_of_run(files)):
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
        raise _no_weights([path for files in inside.values() for path in files])
    if variant and all(chosen.variant != variant for chosen in sets):
        raise _no_variant(variant, {chosen.variant for chosen in sets} | passed_over)
    taken = {path for chosen in sets for path in (chosen.single, chosen.index, *chosen.shards) if path}
    copied = weights_beside(inside, layout.folders, layout.absent) - taken
    return sets, copied, list(_remarks(layout.library, sets, passed_over, copied)), tuple(sorted(passed_over))


def _choose(variants: dict[str, WeightSet], variant: str) -> WeightSet | None:
    if variant in variants:
        return variants[variant]
    if "" in variants or not variants:
        return variants.get("")
    if len(variants) > 1:
        raise _no_variant(variant, variants)
    return next(iter(variants.values()))


def named_set(name: str, inside: Container[str]) -> WeightSet:
    """Return the set that config.json names. Raises SourceError if it is not among the files `inside` its folder."""
    if name not in inside or not name.endswith((".safetensors", ".safetensors.index.json")):
        message = f"config.json sets transformers_weights to {name[:100]!r}, but no such safetensors file is beside it."
        hint = "Download that file. If the weights are in model.safetensors, remove the entry instead."
        raise SourceError(message, hint)
    return WeightSet("", index=name) if name.endswith(".json") else WeightSet("", single=name)


def _of_other_name(library: Library, loader: Loader, folder: str, files: Sequence[str]) -> WeightSet | None:
    if ranks := [] if folder else files_of_run(files):
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
    # Else the shards of any other name, or the only safetensors file, unless another format seems to hold the model.
    others = [path for path in files if path.endswith(".safetensors") and not is_duplicate(path)]
    if shards := [path for path in others if SHARD_NAME.fullmatch(path)]:
        return WeightSet("", shards=shards)
    is_model = len(others) == 1 and not of_other_formats(files, others[0])
    return WeightSet("", single=others[0]) if is_model else None


def _refuse_without_weights(layout: Layout, folder: str, files: Sequence[str]) -> None:
    """Raise SourceError if a part of the repo is a model, or has weights in another format. No set was found for it."""
    name = folder or "The model"
    if layout.library == "diffusers" and folder and (unread := [path for path in files if may_be_model(path)]):
        message = f"{name} of the pipeline has no weights that can be streamed, only {name_some(unread)}."
        hint = "Load it once with a release of its library that reads them, and save it with save_pretrained."
        raise SourceError(message, hint)
    if folder in layout.models:
        message = f"{name} has a configuration but no weights, so no library could load it from the copy."
        hint = f"Download its weights, or remove its entry from the list of parts, {PIPELINE_NAME} or {MODULES_NAME}."
        raise SourceError(message, hint)


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


_CONVERT = (
    "Look for config.json and model.safetensors in the same repo or a related one. Otherwise, convert the weights "
    "with convert_mistral_weights_to_hf.py from `transformers`, or serve them unchanged with vLLM."
)
_RENAME = "Rename the file that holds the model to pytorch_model.bin, or diffusion_pytorch_model.bin for diffusers."
_BY_TRANSFORMERS_4 = "Convert them with transformers 4: load them with %s and call save_pretrained. Version 5 cannot."
_ELSEWHERE = {
    ".gguf": (
        "GGUF weights for llama.cpp",
        "To split or merge them, ask for the format gguf. To get safetensors, load them once with gguf_file=… in "
        "transformers and call save_pretrained.",
    ),
    ".h5": ("TensorFlow weights", _BY_TRANSFORMERS_4 % "from_tf=True"),
    ".msgpack": ("Flax weights", _BY_TRANSFORMERS_4 % "from_flax=True"),
    ".onnx": (
        "ONNX graphs",
        "Shard the repo that they were exported from. They hold a program with the weights, so they cannot be cut.",
    ),
    ".npz": ("MLX weights", "Convert them with mlx_lm's convert, which writes safetensors."),
    ".ckpt": ("a training checkpoint", "Convert it with a script from diffusers or from its trainer."),
    ".nemo": ("a NeMo archive", "Convert it with NeMo's export to Hugging Face."),
    **dict.fromkeys((".bin", ".pth", ".pt"), ("pickled weights", _RENAME)),
}


def _no_weights(paths: Sequence[str]) -> SourceError:
    refuse_foreign(paths)
    top = [path for path in paths if "/" not in path]
    if "params.json" in top and (native := [path for path in top if path.startswith("consolidated.")]):
        return SourceError(f"The weights are only in Mistral's or Meta's own layout: {name_some(native)}.", _CONVERT)
    tensors = [path for path in paths if path.endswith(".safetensors")]
    others = [path for path in tensors if "/" not in path]
    if len(others) == 1 and (elsewhere := of_other_formats(top, others[0])):
        known = (entry for suffix, entry in _ELSEWHERE.items() if any(path.endswith(suffix) for path in elsewhere))
        what, hint = next(known, ("weights in another format", "Convert them to safetensors with their own library."))
        message = f"The model is stored as {what}: {name_some(elsewhere)}. {others[0]} is only another part of it."
        return SourceError(message, hint)
    if others:
        message = f"There are {len(others)} safetensors files, but no index says which belong together: "
        return SourceError(f"{message}{name_some(others)}.", "Keep one of them, or add model.safetensors.index.json.")
    if tensors:
        hint = f"Name one of the folders as the source, such as SOURCE/{_folders(tensors)[0]}."
        return SourceError(f"The weights are in folders that no configuration names: {name_some(tensors)}.", hint)
    runs = _folders(path for path in paths if is_of_run(path.rpartition("/")[2]))
    if len(runs) > 1:
        hint = f"Name one of them as the source, such as SOURCE/{runs[0]}."
        return SourceError(f"There are the weights of several models or steps of a run: {name_some(runs)}.", hint)
    if pieces := [path for path in paths if path.endswith(".distcp")]:
        message = f"There are pieces of a training run ({name_some(pieces)}), but no .metadata, which describes them."
        return SourceError(message, "Copy that file too. Its name starts with a dot, so many programs leave it out.")
    for suffix, (what, hint) in _ELSEWHERE.items():
        if files := [path for path in paths if path.endswith(suffix)]:
            return SourceError(f"There are no safetensors weights, only {what}: {name_some(files)}.", hint)
    message = "The source has no weights."
    hint = "Use one with model.safetensors, or with an index and shards such as model-00001-of-00002.safetensors."
    return SourceError(message, hint)


def of_other_formats(inside: Iterable[str], path: str) -> list[str]:
    """Return the files of other formats that can hold the model, if the safetensors file `path` is only a part of it.

    >>> of_other_formats(["extra_head.safetensors", "tf_model.h5"], "extra_head.safetensors")
    ['tf_model.h5']
    >>> of_other_formats(["yolo.safetensors", "yolo.Q4.gguf"], "yolo.safetensors")
    []
    """
    others = [other for other in inside if may_be_model(other) and not other.endswith(".safetensors")]
    stem = path.removesuffix(".safetensors")
    same = any(other.startswith(f"{stem}.") for other in others)
    return [] if same else [other for other in others if not is_duplicate(other)]


def _folders(paths: Iterable[str]) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in paths} - {""})


def _no_variant(variant: str, there: Iterable[str]) -> VariantMissing:
    variants = tuple(sorted(there))
    names = ", ".join(repr(name) if name else "the plain weights" for name in variants)
    if variant:
        return VariantMissing(f"There is no variant {variant!r}.", f"Use one of these: {names}.", variants)
    hint = f"Available variants: {names}. Choose one with --variant."
    return VariantMissing("There are several variants but no plain weights.", hint, variants)
