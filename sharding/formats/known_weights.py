"""Say what a weight file beside a model or an adapter is likely to be. Pure."""

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
