"""What transformers loads from folders beside a model, and what other code loads from files beside it."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM

from tests import models
from tests.kinds.kind import Kind, State, changed, named

INDEX = "model.safetensors.index.json"
PLACE = "speech_tokenizer"
HEAD = "value_head.safetensors"


def _tokenizer() -> Any:
    return models.build("bert", torch.float32, layers=3)


def save_with_tokenizer(folder: Path) -> None:
    """Save a Llama, and a model that turns speech into tokens in a folder of its own, in shards."""
    models.build("llama", torch.float32, layers=3).save_pretrained(folder)
    _tokenizer().save_pretrained(folder / PLACE, max_shard_size="30kB")


def save_with_both(folder: Path) -> None:
    """Save the same with the model in the folder whole, beside shards of another save."""
    save_with_tokenizer(folder)
    save_file(changed(_tokenizer().state_dict()), folder / PLACE / "model.safetensors", metadata={"format": "pt"})


def save_with_head(folder: Path) -> None:
    """Save a Llama and the head that a reward model has beside it."""
    models.build("llama", torch.float32, layers=3).save_pretrained(folder)
    torch.manual_seed(4)
    head = {"summary.0.weight": torch.randn(64, 96), "summary.1.weight": torch.randn(1, 64)}
    save_file(head, folder / HEAD, metadata={"format": "pt"})


def _with_tokenizer(folder: Path) -> State:
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoModel.from_pretrained(folder, subfolder=PLACE)
    return named(model=model.state_dict(), tokenizer=tokenizer.state_dict())


def _with_head(folder: Path) -> State:
    return named(model=AutoModelForCausalLM.from_pretrained(folder).state_dict(), head=load_file(folder / HEAD))


_TRANSFORMERS = partial(Kind, library="transformers", cut=(INDEX,))

KINDS = {
    "model in a folder beside a model, shards": _TRANSFORMERS(save_with_tokenizer, _with_tokenizer),
    "model in a folder beside a model, a file and an index": _TRANSFORMERS(save_with_both, _with_tokenizer),
    "value head beside a model": _TRANSFORMERS(save_with_head, _with_head, whole=(HEAD,)),
}
