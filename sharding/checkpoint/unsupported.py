"""Say why a repo cannot be streamed, and what helps. Pure."""

from collections.abc import Iterable, Sequence

from sharding.core.errors import SourceError, VariantMissing
from sharding.core.text import name_some
from sharding.core.values import folder_of

_CONVERT = (
    "Its other half, with config.json and model.safetensors, is usually in the same repo or in one beside it; else "
    "`transformers` has convert_mistral_weights_to_hf.py, and vLLM serves it as it is."
)
_ELSEWHERE = {
    ".gguf": (
        "only GGUF weights, for llama.cpp",
        "Its own tool gguf-split cuts them. To get safetensors, load them once with transformers' gguf_file=… "
        "and save_pretrained.",
    ),
    ".h5": (
        "only TensorFlow weights",
        "transformers 4 reads them, 5 does not: load them there once with from_tf=True and save_pretrained.",
    ),
    ".msgpack": (
        "only Flax weights",
        "transformers 4 reads them, 5 does not: load them there once with from_flax=True and save_pretrained.",
    ),
    ".onnx": (
        "only ONNX graphs",
        "They hold the program beside the weights and are not cut; shard the repo that they were exported from.",
    ),
    ".npz": ("only MLX weights", "Convert them with mlx_lm's convert, which writes safetensors."),
    ".ckpt": ("only a training checkpoint", "Convert it with diffusers' or its trainer's own script."),
    ".nemo": ("only a NeMo archive", "Convert it with NeMo's export to Hugging Face."),
    ".bin": (
        "only pickled weights",
        "Rename the file that holds the model to pytorch_model.bin, or diffusion_pytorch_model.bin for diffusers.",
    ),
}


def no_weights(paths: Sequence[str]) -> SourceError:
    """Return the refusal of a repo with files at `paths`, none of which are weights that can be streamed."""
    top = [path for path in paths if "/" not in path]
    if "params.json" in top and (native := [path for path in top if path.startswith("consolidated.")]):
        return SourceError(f"Its weights are in Mistral's or Meta's own layout only: {name_some(native)}.", _CONVERT)
    tensors = [path for path in paths if path.endswith(".safetensors")]
    if others := [path for path in tensors if "/" not in path]:
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
        if found := [path for path in paths if path.endswith(suffix)]:
            return SourceError(f"There are no safetensors weights, {what}: {name_some(found)}.", hint)
    return SourceError(
        "There are no weights in it.",
        "Weights are model.safetensors, or shards such as model-00001-of-00002.safetensors with an index.",
    )


def no_variant(variant: str, there: Iterable[str]) -> VariantMissing:
    """Return the refusal of a variant that is not among those `there`; "" is the plain weights."""
    found = tuple(sorted(there))
    names = ", ".join(repr(name) if name else "the plain weights" for name in found)
    if variant:
        return VariantMissing(f"There is no variant {variant!r}.", f"There are: {names}.", found)
    hint = f"Choose one of them (--variant): {names}."
    return VariantMissing("There are several variants and no plain weights.", hint, found)


def unreadable_weights(files: Sequence[str]) -> SourceError:
    """Return the refusal of a pipeline of which one component or more has no other weights than `files`."""
    return SourceError(
        f"Of {folder_of(files[0])} in the pipeline there are no weights that can be streamed, only {name_some(files)}.",
        "Load the pipeline once with a release of diffusers that reads them; its save_pretrained writes safetensors.",
    )
