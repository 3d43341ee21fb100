"""Repos written by hand, file by file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

from tests.conftest import listing

LARGE = {f"layers.{n}.weight": np.full(9000, n, np.float32) for n in range(3)}
LORA = {f"unet.{n}.lora_A.weight": np.full(9000, n, np.float32) for n in range(3)}
PICKLED = {name: torch.from_numpy(array) for name, array in LARGE.items()}
BERT = {"architectures": ["BertModel"], "model_type": "bert", "transformers_version": "5.0"}
PICKLES = (".bin", ".pth", ".pt")


def repo(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files: arrays as safetensors, pickles as torch has them, texts and bytes as they are, the rest as JSON."""
    for path, content in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes | str):
            place.write_bytes(content if isinstance(content, bytes) else content.encode())
        elif path.endswith(".safetensors"):
            save_file(content, place)
        elif path.endswith(PICKLES):
            torch.save(content, place)
        else:
            place.write_text(json.dumps(content))
    return folder


def ones(*names: str) -> dict[str, np.ndarray]:
    """Tensors of 3.6 kB each."""
    return {name: np.ones(900, np.float32) for name in names}


def modules(kinds: Mapping[str, str]) -> dict[str, Any]:
    """What lists the modules of a sentence transformer, each with its kind or with a class of another package."""
    types = {path: kind if "." in kind else f"sentence_transformers.models.{kind}" for path, kind in kinds.items()}
    return {"modules.json": [{"path": path, "type": kind} for path, kind in types.items()]}


def pipeline(**components: tuple[str, str]) -> dict[str, Any]:
    """What lists the components of a pipeline, each with its library and its class."""
    return {"model_index.json": {"_class_name": "P", **components}}


def weights_of(folder: Path) -> set[str]:
    """The files of `folder` that hold weights."""
    return {path for path in listing(folder) if path.endswith((".safetensors", ".pkl", *PICKLES))}
