"""Read the small files that say which library loads a repo."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sharding.core.errors import SourceError
from sharding.core.limits import MAX_CARD_BYTES, MAX_CONFIG_BYTES, MAX_CONFIG_VALUES
from sharding.core.protocols import Files
from sharding.core.text import as_object, format_bytes, name_problem, parsed_json, values_in
from sharding.core.values import FileEntry
from sharding.formats.model_card import parse_card
from sharding.formats.names import CARD_NAME, CONFIG_NAME
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.quantization import WEIGHTS_NAMED

PIPELINE_NAME = "model_index.json"
MODULES_NAME = "modules.json"
ROUTER_NAME = "router_config.json"
OPEN_CLIP_NAME = "open_clip_config.json"
SPACY_NAME = "meta.json"

_REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_ROUTERS = ("Router", "Asym")
"""Modules of sentence-transformers (6.2) with more modules in the folders below them. `Asym` is the old name."""
_OF_TASK = {
    "CAUSAL_LM": "CausalLM", "SEQ_2_SEQ_LM": "Seq2SeqLM", "SEQ_CLS": "SequenceClassification",
    "TOKEN_CLS": "TokenClassification", "QUESTION_ANS": "QuestionAnswering", "FEATURE_EXTRACTION": "FeatureExtraction",
}  # fmt: skip
"""The end of the class of peft 0.21 for each task of an adapter. Its plain class refuses adapters that name a task."""


@dataclass(frozen=True, slots=True)
class Documents:
    """The JSON files that say which library loads a repo, None if missing. `inside` has those of single folders."""

    config: Any = None
    pipeline: Any = None
    modules: Any = None
    spacy: Any = None
    adapter: Any = None
    inside: Mapping[str, Any] = field(default_factory=dict)
    library: str = ""
    tags: frozenset[str] = frozenset()

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, or {} if it is not a JSON object."""
        return as_object(self.config)

    @property
    def architecture(self) -> str | None:
        """The class that the repo names for its pipeline, else for its model, else peft's class for its adapter."""
        for document in (as_object(self.pipeline), self.settings):
            listed = document.get("architectures")
            alone = document.get("_class_name") or document.get("architecture")  # the second is timm's
            name = listed[0] if isinstance(listed, list) and listed else alone
            if isinstance(name, str) and not name_problem(name):
                return name
        task = as_object(self.adapter).get("task_type") if self.config is None else None
        return f"AutoPeftModelFor{_OF_TASK[task]}" if isinstance(task, str) and task in _OF_TASK else None

    @property
    def weights_named(self) -> str | None:
        """The file, or index, that transformers loads instead of `model.safetensors`: `transformers_weights`."""
        name = self.settings.get(WEIGHTS_NAMED)
        return name if isinstance(name, str) else None

    @property
    def is_of_transformers(self) -> bool:
        """Whether transformers, or code for it, wrote the configuration."""
        written = {"transformers_version", "auto_map", WEIGHTS_NAMED} & self.settings.keys()
        return isinstance(self.settings.get("architectures"), list) or bool(written)

    @property
    def is_pipeline(self) -> bool:
        """Whether the repo is a diffusers pipeline."""
        return "_class_name" in as_object(self.pipeline)

    @property
    def components(self) -> dict[str, tuple[Any, Any]]:
        """Library and class of each component of a diffusers pipeline, by its folder."""
        entries = self.pipeline.items() if self.is_pipeline else ()
        named = {f"{name}/": entry for name, entry in entries if isinstance(entry, list) and any(entry)}
        return {folder: (entry[0], entry[1] if len(entry) > 1 else None) for folder, entry in named.items()}

    @property
    def sentence_modules(self) -> Iterator[tuple[str, str]]:
        """Folder and class of each module of a sentence transformer. A router comes before its own modules."""
        waiting: list[tuple[str, str]] = []
        for module in self.modules if isinstance(self.modules, list) else []:
            path, kind = map(as_object(module).get, ("path", "type"))
            if not isinstance(path, str) or not isinstance(kind, str):
                return
            waiting.append((_as_folder(path), kind))
        seen = set[str]()
        for folder, kind in waiting:  # the loop itself adds to this list
            if folder in seen:
                continue
            seen.add(folder)
            yield folder, kind
            types = as_object(as_object(self.inside.get(folder)).get("types")) if kind.endswith(_ROUTERS) else {}
            waiting += [(folder + _as_folder(name), of) for name, of in types.items() if isinstance(of, str)]


def read_documents(source: Files) -> Documents:
    """Return the documents of a source. Raises SourceError if one cannot be fetched."""
    names = (CONFIG_NAME, PIPELINE_NAME, MODULES_NAME, SPACY_NAME, ADAPTER_NAME)
    config, pipeline, modules, spacy, adapter = (read_json(source, name) for name in names)
    inside: dict[str, Any] = {}
    documents = Documents(config, pipeline, modules, spacy, adapter, inside)
    for folder, (library, _) in documents.components.items():
        if library not in ("diffusers", "transformers"):
            inside[folder] = read_json(source, folder + CONFIG_NAME)
    for folder, kind in documents.sentence_modules:
        if kind.endswith(_ROUTERS):
            name = ROUTER_NAME if folder + ROUTER_NAME in source.by_path else CONFIG_NAME
            inside[folder] = read_json(source, folder + name)
    return documents


def read_card_names(source: Files) -> tuple[str, frozenset[str]]:
    """Return the library that the model card names ("" for none), and its tags. Raises SourceError."""
    metadata = _card_metadata(source)
    library, tags = metadata.get("library_name"), metadata.get("tags")
    tags = tags if isinstance(tags, list) else [tags]
    return library if isinstance(library, str) else "", frozenset(tag for tag in tags if isinstance(tag, str))


def read_card_base(source: Files) -> str:
    """Return the repo that the model card names as the base model, "" if none or several. Raises SourceError."""
    return _repo(_card_metadata(source).get("base_model"))


def read_base(source: Files) -> str:
    """Return the base that the model card names, or else what config.json says was loaded before a training."""
    return read_card_base(source) or _repo(as_object(read_json(source, CONFIG_NAME)).get("_name_or_path"))


def _repo(named: Any) -> str:
    named = named[0] if isinstance(named, list) and len(named) == 1 else named
    return named if isinstance(named, str) and _REPO_ID.fullmatch(named) else ""


def _card_metadata(source: Files) -> Mapping[str, Any]:
    file = source.by_path.get(CARD_NAME)
    if file is None or file.bytes > MAX_CARD_BYTES:
        return {}
    return parse_card(read_small(source, file, MAX_CARD_BYTES).decode("utf-8-sig", errors="replace")).metadata


def read_small(source: Files, file: FileEntry, max_bytes: int) -> bytes:
    """Return a whole file. Raises SourceError if it has more than `max_bytes`."""
    if file.bytes > max_bytes:
        message = f"{file.path} ({format_bytes(file.bytes)}) is larger than the limit of {format_bytes(max_bytes)}."
        raise SourceError(message, "Check that it is the right file, or download it again.")
    return b"".join(source.read(file.path, 0, file.bytes))


def read_json(source: Files, path: str) -> Any:
    """Return the value in a small JSON file, or None if it is missing, too large or not valid JSON."""
    return parsed_json(config_text(source, path) or b"null")


def config_text(source: Files, path: str) -> bytes | None:
    """Return the text of a JSON file, or None if it is missing or would take far more memory than such files do."""
    file = source.by_path.get(path)
    if file is None or file.bytes > MAX_CONFIG_BYTES:
        return None
    text = b"".join(source.read(path, 0, file.bytes))
    return text if values_in(text) <= MAX_CONFIG_VALUES else None


def _as_folder(place: str) -> str:
    """Return the folder that a path in such a file names: "" for ".", and "2_Dense/" for "./2_Dense/"."""
    return "".join(f"{part}/" for part in place.split("/") if part not in ("", "."))
