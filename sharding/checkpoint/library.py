"""Find which library loads a repo, and which of its folders have weights."""

from dataclasses import dataclass, replace

from sharding.checkpoint import weight_sets
from sharding.checkpoint.documents import OPEN_CLIP_NAME, Documents, read_card_names, read_documents
from sharding.checkpoint.readers import is_of_run
from sharding.checkpoint.weight_sets import TRANSFORMERS, Folders, Loader, has_index_alone, has_weights, own_names
from sharding.core.protocols import Files
from sharding.core.text import as_object
from sharding.core.values import Library, folders_around
from sharding.formats.names import CONFIG_NAME, is_duplicate, is_of_earlier_step, is_plain, may_be_model

_LOADED_BY_TRANSFORMERS = ("Transformer", "CLIPModel")
"""Modules of sentence-transformers (6.2) that follow an index. Every other module loads only `model.safetensors`."""
_WITHOUT_WEIGHTS = (
    *("Tokenizer", "TokenizerFast", "TokenizersBackend", "CommonBackend", "Processor", "ProcessorFast", "ProcessorPil"),
    *("FeatureExtractor", "Scheduler", "Guidance"),
)
"""Endings of class names of components that have a configuration and no weights."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which library loads a repo, and how it finds the weights in each folder ("" or ending in "/")."""

    library: Library
    folders: dict[str, Loader]
    models: frozenset[str] = frozenset()  # Folders that hold a model according to the repo. Each needs weights.
    absent: frozenset[str] = frozenset()  # Folders of components that the pipeline lists as absent.


def read_layout(source: Files, inside: Folders) -> tuple[Documents, Layout]:
    """Return the documents and the layout of a source. `inside` lists the files of each folder. Raises SourceError."""
    documents = read_documents(source)
    layout = _layout(inside, documents)
    if layout.library in ("transformers", "unknown", "diffusers") and not documents.is_pipeline:
        # A repo of PyTorchModelHubMixin can have any configuration, so its card may name another library.
        library, tags = read_card_names(source)
        documents = replace(documents, library=library, tags=tags)
        layout = _layout(inside, documents)
    return documents, layout


def _layout(inside: Folders, documents: Documents) -> Layout:
    # Rules for the parts of a repo come before rules for the whole repo.
    return (
        _pipeline(inside, documents)
        or _sentence_transformer(inside, documents)
        or _spacy(inside, documents)
        or _adapters(weight_sets.PEFT, "peft", inside)
        or _adapters(weight_sets.DIFFUSERS_ADAPTER, "diffusers", inside)
        or _one_model(inside, documents)
    )


def _pipeline(inside: Folders, documents: Documents) -> Layout | None:
    if not documents.is_pipeline:
        return None
    folders, models = dict[str, Loader](), set[str]()
    above = {place for folder in inside for place in folders_around(folder)}
    for folder, (library, kind) in documents.components.items():
        keys = as_object(documents.inside.get(folder)).keys()
        of_diffusers = library == "diffusers" or {"_class_name", "_diffusers_version"} & keys
        folders[folder] = weight_sets.DIFFUSERS if of_diffusers else TRANSFORMERS
        if str(kind).endswith(_WITHOUT_WEIGHTS):
            continue
        if folder + CONFIG_NAME in inside.get(folder, ()):
            models.add(folder)
        elif folder not in above and is_plain(folder[:-1]) and has_weights(folders[folder], "", inside):
            # The component has no folder, so diffusers looks for its weights at the top.
            folders[""] = folders[folder]
    absent = frozenset(f"{name}/" for name, entry in documents.pipeline.items() if entry == [None, None])
    return Layout("diffusers", folders, frozenset(models), absent)


def _sentence_transformer(inside: Folders, documents: Documents) -> Layout | None:
    modules = dict(documents.sentence_modules)
    by_transformers = {folder for folder, kind in modules.items() if kind.endswith(_LOADED_BY_TRANSFORMERS)}
    folders = dict.fromkeys(modules, weight_sets.SENTENCE_MODULE) | dict.fromkeys(by_transformers, TRANSFORMERS)
    models = {folder for folder in by_transformers if folder + CONFIG_NAME in inside.get(folder, ())}
    for folder in by_transformers:  # the repo may have only an adapter of the model
        if has_weights(weight_sets.PEFT, folder, inside) and not has_weights(TRANSFORMERS, folder, inside):
            folders[folder] = weight_sets.PEFT
    return Layout("sentence-transformers", folders, frozenset(models)) if folders else None


def _spacy(inside: Folders, documents: Documents) -> Layout | None:
    if "spacy_version" not in as_object(documents.spacy):
        return None
    parts = (folder for folder, paths in inside.items() if own_names(weight_sets.SPACY, folder, paths))
    return Layout("spacy", dict.fromkeys(parts, weight_sets.SPACY))


def _adapters(loader: Loader, library: Library, inside: Folders) -> Layout | None:
    """Return the folders with weights for `loader`, or None if the repo has a model of its own beside them."""
    every = {folder: loader for folder in inside if has_weights(loader, folder, inside)}
    folders = {folder: loader for folder in every if not (is_of_earlier_step(folder) or is_duplicate(folder))} or every
    top = inside.get("", ())
    if not folders or has_weights(TRANSFORMERS, "", inside) or any(map(is_of_run, top)):
        return None
    is_alone = all(weight_sets.is_found_by_name(path) or not may_be_model(path) for path in top)
    return Layout(library, folders) if "" in folders or is_alone else None


def _one_model(inside: Folders, documents: Documents) -> Layout:
    config, is_of_transformers, top = documents.settings, documents.is_of_transformers, inside.get("", ())
    has_usual, is_sharded = has_weights(TRANSFORMERS, "", inside), has_index_alone("", inside)
    if isinstance(config.get("pretrained_cfg"), dict) and not is_of_transformers:
        return Layout("timm", {"": weight_sets.TIMM})
    has_both = has_usual and has_weights(weight_sets.OPEN_CLIP_OWN, "", inside)
    if OPEN_CLIP_NAME in top and not is_sharded and not (has_both and is_of_transformers):
        return Layout("open_clip", {"": weight_sets.OPEN_CLIP})
    if documents.tags & {"model_hub_mixin", "pytorch_model_hub_mixin"} and not is_sharded:
        return Layout("pytorch_model_hub_mixin", {"": weight_sets.MIXIN})
    if "_diffusers_version" in config or ("_class_name" in config and not is_of_transformers):
        return Layout("diffusers", {"": weight_sets.DIFFUSERS})
    if documents.architecture == "HF_ColBERT":
        # sentence-transformers and ColBERT read the head from one file, so the weights stay in one.
        return Layout("transformers", {"": replace(TRANSFORMERS, is_whole=True)})
    tags = {tag.lower() for tag in documents.tags}
    is_adapter = documents.library == "diffusers" or tags & {"lora", "textual_inversion"}
    if is_adapter and not (is_of_transformers or has_usual) and own_names(weight_sets.DIFFUSERS_ADAPTER, "", top):
        return Layout("diffusers", {"": weight_sets.DIFFUSERS_ADAPTER})
    return Layout("transformers" if is_of_transformers or "model_type" in config else "unknown", {"": TRANSFORMERS})
