"""Explain why a repo cannot be streamed, with a hint. Pure."""

from collections.abc import Iterable, Sequence

from sharding.checkpoint.documents import MODULES_NAME, PIPELINE_NAME
from sharding.core.errors import SourceError, VariantMissing
from sharding.core.text import name_some
from sharding.formats.names import is_duplicate, is_of_ranks, may_be_model

_CONVERT = (
    "Look for config.json and model.safetensors in the same repo or a related one. Otherwise, convert the weights "
    "with convert_mistral_weights_to_hf.py from `transformers`, or serve them unchanged with vLLM."
)
_RENAME = "Rename the file that holds the model to pytorch_model.bin, or diffusion_pytorch_model.bin for diffusers."
_ELSEWHERE = {
    ".gguf": (
        "GGUF weights for llama.cpp",
        "To split them, use gguf-split from llama.cpp. To get safetensors, load them once with gguf_file=… in "
        "transformers and call save_pretrained.",
    ),
    ".h5": (
        "TensorFlow weights",
        "Convert them with transformers 4: load them with from_tf=True and call save_pretrained. Version 5 cannot.",
    ),
    ".msgpack": (
        "Flax weights",
        "Convert them with transformers 4: load them with from_flax=True and call save_pretrained. Version 5 cannot.",
    ),
    ".onnx": (
        "ONNX graphs",
        "Shard the repo that they were exported from. They hold a program with the weights, so they cannot be cut.",
    ),
    ".npz": ("MLX weights", "Convert them with mlx_lm's convert, which writes safetensors."),
    ".ckpt": ("a training checkpoint", "Convert it with a script from diffusers or from its trainer."),
    ".nemo": ("a NeMo archive", "Convert it with NeMo's export to Hugging Face."),
    **dict.fromkeys((".bin", ".pth", ".pt"), ("pickled weights", _RENAME)),
}


def no_weights(paths: Sequence[str]) -> SourceError:
    """Return the error for a repo with files at `paths` but without weights that can be streamed."""
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
        return SourceError(
            f"There are {len(others)} safetensors files, but no index says which belong together: {name_some(others)}.",
            "Keep one of them, or add model.safetensors.index.json.",
        )
    if tensors:
        hint = f"Name one of the folders as the source, such as SOURCE/{_folders(tensors)[0]}."
        return SourceError(f"The weights are in folders that no configuration names: {name_some(tensors)}.", hint)
    runs = _folders(path for path in paths if is_of_ranks(path.rpartition("/")[2]))
    if len(runs) > 1:
        hint = f"Name one of them as the source, such as SOURCE/{runs[0]}."
        return SourceError(f"There are the weights of several models or steps of a run: {name_some(runs)}.", hint)
    if pieces := [path for path in paths if path.endswith(".distcp")]:
        return SourceError(
            f"There are pieces of a training run ({name_some(pieces)}), but no .metadata, which says what is in them.",
            "Copy that file too. Its name starts with a dot, so many programs leave it out.",
        )
    for suffix, (what, hint) in _ELSEWHERE.items():
        if files := [path for path in paths if path.endswith(suffix)]:
            return SourceError(f"There are no safetensors weights, only {what}: {name_some(files)}.", hint)
    return SourceError(
        "The source has no weights.",
        "Use one with model.safetensors, or with an index and shards such as model-00001-of-00002.safetensors.",
    )


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


def no_variant(variant: str, there: Iterable[str]) -> VariantMissing:
    """Return the error for a `variant` that is not `there`. "" stands for the plain weights."""
    variants = tuple(sorted(there))
    names = ", ".join(repr(name) if name else "the plain weights" for name in variants)
    if variant:
        return VariantMissing(f"There is no variant {variant!r}.", f"Use one of these: {names}.", variants)
    hint = f"Available variants: {names}. Choose one with --variant."
    return VariantMissing("There are several variants but no plain weights.", hint, variants)


def component_without_weights(folder: str, others: Sequence[str]) -> SourceError:
    """Return the error for a repo with a model in `folder` that has only `others` as weights."""
    name = folder or "The model"
    if others:
        message = f"{name} of the pipeline has no weights that can be streamed, only {name_some(others)}."
        hint = "Load it once with a release of its library that reads them, and save it with save_pretrained."
        return SourceError(message, hint)
    message = f"{name} has a configuration but no weights, so no library could load it from the copy."
    hint = f"Download its weights, or remove its entry from the list of parts, {PIPELINE_NAME} or {MODULES_NAME}."
    return SourceError(message, hint)
