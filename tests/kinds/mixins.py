"""What loads one file of its own: a PyTorch class with the mixin of huggingface_hub, and spaCy."""

import json
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from safetensors.torch import load_file, save_file
from torch import nn

from tests.kinds.kind import Kind, State

WEIGHTS = "model.safetensors"
SPACY_WEIGHTS = "tok2vec.safetensors"


class Classifier(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """A class of a person's own, as the mixin is meant for."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)
        self.register_buffer("scale", torch.ones(width))


def save_mixin(folder: Path) -> None:
    """Save a model and the card that `push_to_hub` sends with it."""
    torch.manual_seed(0)
    model = Classifier(64)
    model.save_pretrained(folder)
    model.generate_model_card().save(folder / "README.md")


def _mixin(folder: Path) -> State:
    torch.manual_seed(1)  # what it loads into differs: it says nothing of what a file lacks
    return Classifier.from_pretrained(folder).state_dict()  # type: ignore[no-any-return]


def save_spacy(folder: Path) -> None:
    """Write what spaCy says of a pipeline, and one file that a component of it reads."""
    folder.mkdir(parents=True, exist_ok=True)
    meta = {
        "lang": "en",
        "name": "tiny",
        "version": "1.0.0",
        "spacy_version": ">=3.8.0,<3.9.0",
        "pipeline": ["tok2vec"],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "config.cfg").write_text('[nlp]\nlang = "en"\npipeline = ["tok2vec"]\n')
    torch.manual_seed(0)
    weights = {f"layers.{n}.weight": torch.randn(64, 64) for n in range(3)}
    save_file(weights, folder / SPACY_WEIGHTS)


def _spacy(folder: Path) -> State:
    return load_file(folder / SPACY_WEIGHTS)


KINDS = {
    "PyTorchModelHubMixin": Kind(save_mixin, _mixin, "huggingface_hub", whole=(WEIGHTS,), finding="one-file-loader"),
    "spaCy": Kind(save_spacy, _spacy, "", whole=(SPACY_WEIGHTS,), finding="one-file-loader"),
}
