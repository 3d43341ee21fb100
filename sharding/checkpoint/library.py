"""Tell from what a repo says of itself which library loads it, and which of its folders have weights. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sharding.core.text import name_problem
from sharding.core.values import Library, folder_of
from sharding.formats.names import is_duplicate, is_weights

CONFIG_NAME = "config.json"
PIPELINE_NAME = "model_index.json"
MODULES_NAME = "modules.json"
ADAPTER_FILE = "adapter_model.safetensors"

_LOADED_BY_TRANSFORMERS = ("Transformer", "CLIPModel")
"""Modules of sentence-transformers (6.2) that follow an index; every other loads `model.safetensors` alone."""


@dataclass(frozen=True, slots=True)
class Documents:
    """The JSON in `config.json`, `model_index.json` and `modules.json` of a repo; None for what is not there."""

    config: Any = None
    pipeline: Any = None
    modules: Any = None

    @property
    def architecture(self) -> str | None:
        """The class that the repo names: of its pipeline, else of its model."""
        for document in (self.pipeline, self.config):
            if isinstance(document, dict):
                listed = document.get("architectures")
                name = listed[0] if isinstance(listed, list) and listed else document.get("_class_name")
                if isinstance(name, str) and not name_problem(name):
                    return name
        return None

    @property
    def weights_named(self) -> str | None:
        """The file, or index, that transformers loads instead of `model.safetensors`: `transformers_weights`."""
        name = self.config.get("transformers_weights") if isinstance(self.config, dict) else None
        return name if isinstance(name, str) else None


@dataclass(frozen=True, slots=True)
class Layout:
    """Who loads a repo, and from which folders ("" or ending in "/"): True where that takes one file of one name."""

    library: Library
    folders: dict[str, bool]


def find_layout(paths: Sequence[str], documents: Documents) -> Layout:
    """Return the layout of a repo with files at `paths`."""
    config, pipeline, modules = documents.config, documents.pipeline, documents.modules
    if isinstance(pipeline, dict) and "_class_name" in pipeline:
        parts = [name for name, entry in pipeline.items() if isinstance(entry, list) and any(entry)]
        return Layout("diffusers", {f"{name}/": False for name in parts})
    if isinstance(modules, list) and modules and all(map(_is_module, modules)):
        folders = {}
        for module in modules:
            place = module["path"].strip("/")
            folders[f"{place}/" if place else ""] = not module["type"].endswith(_LOADED_BY_TRANSFORMERS)
        for path in paths:  # a router has modules of its own below
            if path.endswith("/model.safetensors") and not is_duplicate(path):
                folders.setdefault(folder_of(path), True)
        return Layout("sentence-transformers", folders)
    adapters = [path for path in paths if path.rsplit("/", 1)[-1] == ADAPTER_FILE]
    models = [path for path in paths if path.startswith(("model", "pytorch_model")) and is_weights(path)]
    if adapters and not any("/" not in path for path in models):
        return Layout("peft", {folder_of(path): True for path in adapters})
    is_diffusers = isinstance(config, dict) and "_diffusers_version" in config
    return Layout("diffusers" if is_diffusers else "transformers", {"": False})


def _is_module(module: Any) -> bool:
    return isinstance(module, dict) and all(isinstance(module.get(key), str) for key in ("path", "type"))
