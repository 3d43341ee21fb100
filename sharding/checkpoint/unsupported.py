"""Say why a repo cannot be streamed, and what helps. Pure."""

from collections.abc import Iterable, Sequence

from sharding.core.errors import SourceError, VariantMissing
from sharding.core.text import name_some
from sharding.formats.names import is_duplicate, may_be_model

_CONVERT = (
    "Its other half, with config.json and model.safetensors, is usually in the same repo or in one beside it; else "
    "`transformers` has convert_mistral_weights_to_hf.py, and vLLM serves it as it is."
)
_RENAME = "Rename the file that holds the model to pytorch_model.bin, or diffusion_pytorch_model.bin for diffusers."
_ELSEWHERE = {
    ".gguf": (
        "GGUF weights, for llama.cpp",
        "Its own tool gguf-split cuts them. To get safetensors, load them once with transformers' gguf_file=… "
        "and save_pretrained.",
    ),
    ".h5": (
        "TensorFlow weights",
        "transformers 4 reads them, 5 does not: load them there once with from_tf=True and save_pretrained.",
    ),
    ".msgpack": (
        "Flax weights",
        "transformers 4 reads them, 5 does not: load them there once with from_flax=True and save_pretrained.",
    ),
    ".onnx": (
        "ONNX graphs",
        "They hold the program beside the weights and are not cut; shard the repo that they were exported from.",
    ),
    ".npz": ("MLX weights", "Convert them with mlx_lm's convert, which writes safetensors."),
    ".ckpt": ("a training checkpoint", "Convert it with diffusers' or its trainer's own script."),
    ".nemo": ("a NeMo archive", "Convert it with NeMo's export to Hugging Face."),
    **dict.fromkeys((".bin", ".pth", ".pt"), ("pickled weights", _RENAME)),
}


def _format_and_hint(files: Sequence[str]) -> tuple[str, str]:
    """Return what weights in other formats than safetensors are, and what helps."""
    known = (entry for suffix, entry in _ELSEWHERE.items() if any(path.endswith(suffix) for path in files))
    return next(known, ("weights in another format", "Convert them to safetensors with the library that they are of."))


def no_weights(paths: Sequence[str]) -> SourceError:
    """Return the refusal of a repo with files at `paths`, none of which are weights that can be streamed."""
    top = [path for path in paths if "/" not in path]
    if "params.json" in top and (native := [path for path in top if path.startswith("consolidated.")]):
        return SourceError(f"Its weights are in Mistral's or Meta's own layout only: {name_some(native)}.", _CONVERT)
    tensors = [path for path in paths if path.endswith(".safetensors")]
    others = [path for path in tensors if "/" not in path]
    if len(others) == 1 and (elsewhere := of_other_formats(top, others[0])):
        what, hint = _format_and_hint(elsewhere)
        message = f"The model is in {what}: {name_some(elsewhere)}. {others[0]} beside it is another part."
        return SourceError(message, hint)
    if others:
        return SourceError(
            f"There are {len(others)} safetensors files and no index to say which go together: {name_some(others)}.",
            "Keep one, or add model.safetensors.index.json.",
        )
    if tensors:
        return SourceError(
            f"The weights are in folders that no configuration names: {name_some(tensors)}.",
            "Download one of the folders and give its path.",
        )
    for suffix, (what, hint) in _ELSEWHERE.items():
        if files := [path for path in paths if path.endswith(suffix)]:
            return SourceError(f"There are no safetensors weights, only {what}: {name_some(files)}.", hint)
    return SourceError(
        "There are no weights in it.",
        "Weights are model.safetensors, or shards such as model-00001-of-00002.safetensors with an index.",
    )


def of_other_formats(inside: Iterable[str], path: str) -> list[str]:
    """Return the files that can hold the model of which safetensors file `path` is only a part, or nothing.

    >>> of_other_formats(["extra_head.safetensors", "tf_model.h5"], "extra_head.safetensors")
    ['tf_model.h5']
    >>> of_other_formats(["yolo.safetensors", "yolo.Q4.gguf"], "yolo.safetensors")
    []
    """
    others = [other for other in inside if may_be_model(other) and not other.endswith(".safetensors")]
    stem = path.removesuffix(".safetensors")
    same = any(other.startswith(f"{stem}.") for other in others)
    return [] if same else [other for other in others if not is_duplicate(other)]


def no_variant(variant: str, there: Iterable[str]) -> VariantMissing:
    """Return the refusal of a variant that is not among those `there`; "" is the plain weights."""
    variants = tuple(sorted(there))
    names = ", ".join(repr(name) if name else "the plain weights" for name in variants)
    if variant:
        return VariantMissing(f"There is no variant {variant!r}.", f"There are: {names}.", variants)
    hint = f"There are: {names}. Choose one with --variant."
    return VariantMissing("There are several variants and no plain weights.", hint, variants)


def component_without_weights(folder: str, others: Sequence[str]) -> SourceError:
    """Return the refusal of a repo whose part in `folder` is a model and has no other weights than `others`."""
    name = folder or "The model"
    if others:
        message = f"Of {name} in the pipeline there are no weights that can be streamed, only {name_some(others)}."
        hint = "Load it once with a release of its library that reads them; its save_pretrained writes safetensors."
        return SourceError(message, hint)
    message = f"{name} has a configuration and no weights: nothing could load it from the copy."
    return SourceError(message, "Download its weights, or take the entry for it out of what names the parts.")
