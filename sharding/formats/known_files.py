"""Say what a file really is: weights beside a model by their name, and a mistaken file by its first bytes. Pure."""

import re

from sharding.formats.names import is_training_state

_USUAL = re.compile(
    r"(?:pytorch_model|model|tf_model|flax_model|rust_model|diffusion_(?:pytorch|flax)_model|consolidated|weights"
    r"|open_clip\w*|adapter_model|ggml-model)(?:[._-].*)?"
)
"""Names, without their endings, of the weights of a whole model, in any format or variant."""

_LIKELY = (
    (r"(?:value|v|reward)_head", "a value head, as trl writes it"),
    (r"non_lora_trainables", "what LLaVA trained beside its LoRA"),
    (r"(?:mm_)?projector", "a projector from images to words"),
    (r"new_embeddings", "embeddings of new tokens, as vLLM reads them"),
    (r"medusa_lm_head", "Medusa heads"),
    (r"(?:vit|vision\w*|visual)", "a vision tower"),
)


def may_be_missed(path: str) -> bool:
    """Return whether a file of this name may hold weights that the model itself does not hold in another form.

    >>> may_be_missed("mm_projector.bin"), may_be_missed("pytorch_model.bin"), may_be_missed("optimizer.pt")
    (True, False, False)
    """
    stem, _, ending = path.rpartition("/")[2].rpartition(".")
    is_pickle = ending in ("bin", "pt", "pth")
    return (ending == "safetensors" or is_pickle) and not (_USUAL.fullmatch(stem) or is_training_state(path))


def likely(path: str) -> str:
    """Return what such a file is likely to be, as its name says.

    >>> likely("mm_projector.bin"), likely("extra.safetensors")
    ('a projector from images to words', 'other weights')
    """
    stem = path.rpartition("/")[2].rpartition(".")[0]
    return next((words for name, words in _LIKELY if re.fullmatch(name, stem)), "other weights")


POINTER_BYTES = 1024
"""A pointer of Git LFS is shorter (its specification, "The Pointer")."""

USUAL_POINTER = range(120, 200)
"""The bytes of a pointer with nothing but version, SHA-256 and size."""

_STARTS = (
    (
        rb"version https?://[\w.-]+/spec/",
        "a pointer of Git LFS, and not the file itself",
        "Run `git lfs pull` in its folder, or download the file.",
    ),
    (rb"GGUF", "a GGUF file", "Give it the ending .gguf. To get safetensors, use the repo that it was made from."),
    (rb"PK\x03\x04", "a file of torch.save", "Give it the ending .bin, as in pytorch_model.bin."),
    (
        rb"\s*<(?i:!doctype|html|\?xml)",
        "a web page",
        "Download the file again. Sign in, if its repo needs that.",
    ),
    (rb"\s*[{\[]", "a JSON file", "Download the weights again, or give the file its own name."),
)
"""How each kind of file starts, what it is, and what to do."""


def what_is(start: bytes, expected: str = "safetensors") -> tuple[str, str]:
    """Return what a file is that starts with these bytes, and what to do. Both are "" if it is none of these.

    A file that is `expected` to be one of torch.save is not told that it is.

    >>> what_is(b"version https://git-lfs.github.com/spec/v1\\noid sha256:00")[0]
    'a pointer of Git LFS, and not the file itself'
    """
    kinds = ((what, hint) for form, what, hint in _STARTS if re.match(form, start))
    return next((kind for kind in kinds if expected not in kind[0]), ("", ""))


def is_pointer(start: bytes) -> bool:
    """Return whether a file that starts with these bytes is a pointer of Git LFS."""
    return re.match(_STARTS[0][0], start) is not None
