"""Read the headers, indexes and configuration of a source, but no numbers of weights."""

import os
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

from sharding.checkpoint.adapter import head_is_copy, with_adapter, with_own_lora
from sharding.checkpoint.documents import Documents, config_text, read_card_base, read_json, read_small
from sharding.checkpoint.gguf import EVERY, holds_only_gguf, read_models
from sharding.checkpoint.library import read_layout
from sharding.checkpoint.notes import read_notes
from sharding.checkpoint.readers import reader_of
from sharding.checkpoint.readers.reader import Found
from sharding.checkpoint.readers.safetensors import refuse_long, too_many_tensors
from sharding.checkpoint.side_files import other_weights, refuse_links, refuse_unfinished, sort_files
from sharding.checkpoint.state_dict import remarks_on
from sharding.checkpoint.trained import as_trained, what_is_missing
from sharding.checkpoint.weight_files import find_sets, named_set
from sharding.checkpoint.weight_sets import WeightSet, by_folder, why_one_file
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_INDEX_BYTES, MAX_TENSORS
from sharding.core.protocols import Files, Inputs
from sharding.core.text import count, name_some, parsed_json, unreached_sentence
from sharding.core.values import Component, Content, FileEntry, Finding, Tensor
from sharding.formats.index import Index, compare_with_index, parse_index
from sharding.formats.names import CONFIG_NAME, POINTER, POINTER_BYTES, USUAL_POINTER, what_is
from sharding.formats.peft_config import named_base
from sharding.formats.quantization import WEIGHTS_NAMED, dtype_of_first, quantization_of
from sharding.recipes.laid import from_source

_TEXT = re.compile(r"(?<!tokenizer)\.json$|\.(?:jinja|jsonl|md|py|txt|yaml|yml)$")
"""Names of files that Git LFS rarely holds. Large tokenizers are often there."""


def read_inputs(
    origin: Inputs,
    variant: str = "",
    most_tensors: int = MAX_TENSORS,
    most_bytes: int | None = None,
    format: str | None = None,
) -> Content:
    """Return the checkpoint at `origin`, in its `others` the inputs that give numbers. Raises as `read_checkpoint`."""
    checkpoint = read_checkpoint(origin, variant, most_tensors, format)
    if checkpoint.format == "gguf":
        return checkpoint
    checkpoint = with_adapter(checkpoint, origin, most_bytes, most_tensors)
    for number, place in enumerate(origin.places):
        if place.role in ("like", "fill"):
            other = read_checkpoint(origin.sources[number], most_tensors=most_tensors)
            files = tuple(replace(file, source=number) for file in other.weight_files)
            other = replace(other, source=place, tensors=from_source(other.tensors, number), weight_files=files)
            checkpoint = replace(checkpoint, others=(*checkpoint.others, other))
            if place.role == "like":  # the copy has no names of wrappers, and a head as its original has it
                findings = tuple(finding for finding in checkpoint.findings if finding.code != "wrapped-names")
                is_copy = head_is_copy(checkpoint, origin, most_bytes)
                checkpoint = replace(checkpoint, findings=findings, head_is_copy=is_copy)
    return checkpoint


def read_checkpoint(
    source: Files, variant: str = "", most_tensors: int = MAX_TENSORS, format: str | None = None
) -> Content:
    """Return the tensors, side files and findings of `source`, in `variant` where there is that.

    With the `format` "gguf" these are its GGUF models, also without it if the source has no other weights. Raises
    SourceError, HeaderError for a broken weight file, and TooManyTensors before it reads so long a list.
    """
    by_path = source.by_path
    if format == "gguf" or (not format and holds_only_gguf(by_path)):
        models = read_models(source, variant, most_tensors)
        _refuse_unreadable(source, models.side_files)
        return replace(models, findings=(*describe_source(source), *models.findings))
    variant = "" if variant == EVERY else variant
    folders = by_folder(by_path)
    documents, layout = read_layout(source, folders)
    refuse_links(source.links_out, layout.folders)
    sets, copied, findings, passed_over = find_sets(folders, layout, documents.weights_named, variant)
    components = []
    weight_files: list[FileEntry] = []
    tensors: list[Tensor] = []
    for weight_set in sets:
        component, files, inside, remarks = _read_component(source, weight_set, most_tensors)
        if reason := why_one_file(layout.library, weight_set, [tensor.name for tensor in inside]):
            component, remark = _in_one_file(component, weight_set, reason)
            remarks.append(remark)
        components.append(component)
        weight_files += files
        tensors += inside
        findings += remarks
        if len(tensors) > min(most_tensors, MAX_TENSORS):
            raise too_many_tensors(source, most_tensors)
    if not tensors:
        raise SourceError("The weight files contain no tensors.", "Use a model that has weights.")
    if len({tensor.name for tensor in tensors}) < len(tensors):  # "/" in a name may look like a folder
        raise SourceError("Tensors of two folders have the same name.", "Rename one of them, and its folder.")
    findings += remarks_on(tensors)
    is_adapter = all(weight_set.stem == "adapter_model" for weight_set in sets)
    if is_adapter:
        findings += _adapter_alone(documents.adapter, str(source.folder or source.ref.name))
    of_ranks = {path for weight_set in sets for path in weight_set.ranks}
    indexes = {weight_set.index for weight_set in sets if weight_set.index and weight_set.takes_index}
    taken = {file.path for file in weight_files} | indexes | of_ranks
    refuse_unfinished(by_path, taken)
    is_run = bool(of_ranks)
    side_files, left_out = sort_files(source.files, taken, copied, layout.folders, is_trained=is_run)
    _refuse_unreadable(source, side_files)
    configs = read_configs(source, [component.folder for component in components])
    _refuse_other_names(configs, taken)
    card_base = read_card_base(source) if quantization_of(configs.get("", "")) else ""
    checkpoint = Content(
        source=source.ref,
        beside=source.places[1:],
        tensors=tuple(tensors),
        components=tuple(components),
        weight_files=tuple(replace(file, path=file.at, place="") for file in weight_files),
        side_files=side_files,
        copied_weights=tuple(file for file in side_files if file.path in copied),
        findings=(*findings, *left_out),
        architecture=documents.architecture,
        library=layout.library,
        configs=configs,
        other_variants=passed_over,
        other_weights=other_weights(source.files, taken | {file.path for file in side_files}),
        of_ranks=is_run,
        unreached=source.unreached,
        has_twice=any(finding.code == "stored-twice" for finding in findings),
        notes=read_notes(source, tensors),
        named_base=named_base(documents.adapter) if is_adapter else card_base,
    )
    first = (*describe_source(source), *what_is_missing(checkpoint))
    checkpoint = replace(checkpoint, findings=(*first, *checkpoint.findings))
    return as_trained(with_own_lora(checkpoint, source))


def _adapter_alone(config: Any, place: str) -> Iterator[Finding]:
    if isinstance(config, dict) and "peft_type" in config:
        name = named_base(config)
        message = f"This is an adapter{f' of {name}' if name else ''}, not a whole model. The copy is the same adapter."
        command = f"shard-my-repo shard {shlex.quote(name or 'BASE')} ./merged --adapter {shlex.quote(place)}"
        yield Finding("warning", "adapter-alone", message, f"To merge it: {command}")


def describe_source(source: Files) -> Iterator[Finding]:
    """Yield findings about the source itself: its commit, and its links that are left out."""
    hint = "If you do not want exactly this commit, use a branch, a tag, or a commit on one of them."
    for place in source.unreached:
        yield Finding("warning", "unreached-commit", unreached_sentence(place), hint)
    if source.links_out:
        left = name_some([link.rstrip("/") for link in source.links_out])
        message = f"Left out: {left} (a link to a folder, or to a file outside the source)."
        hint = "If the copy needs it, replace the link with the file or folder itself."
        yield Finding("warning", "link-outside", message, hint)


def _read_component(
    source: Files, weight_set: WeightSet, most_tensors: int
) -> tuple[Component, Sequence[FileEntry], list[Tensor], list[Finding]]:
    by_path, index = source.by_path, _read_index(source, weight_set, most_tensors)
    findings = weight_set.findings(set(index.weight_map.values()) if index else set())
    index = index if weight_set.takes_index else None
    paths = weight_set.ranks or weight_set.files(index, by_path)
    reader = reader_of(paths, of_run=bool(weight_set.ranks))
    found = reader.read(Found(source, weight_set, [by_path[path] for path in paths], most_tensors))
    tensors, twice = _each_once(found.tensors, index)
    disagreements = compare_with_index(index, tensors, found.tied) if index else []
    total_parameters = index.total_parameters if index and not disagreements else None
    names = weight_set.folder, weight_set.stem, weight_set.variant, weight_set.is_whole
    component = Component(*names, found.metadata, total_parameters)
    if not weight_set.ranks:
        first_file = min(file.path for file in found.files)
        first = [tensor for tensor in tensors if tensor.file == first_file]
        first = first if first_file.endswith(".bin") else sorted(first, key=lambda tensor: tensor.name)
        component = replace(component, loads_as=(index.dtype if index else "") or dtype_of_first(first))
    return component, found.files, tensors, [*findings, *disagreements, *found.findings, *twice]


def _in_one_file(component: Component, weight_set: WeightSet, reason: str) -> tuple[Component, Finding]:
    """Return a component that keeps its one file and its name in `weight_set`, and a finding that says why."""
    path = weight_set.single or ""
    if weight_set.stem == "model" and path.endswith(".safetensors") and not weight_set.variant:
        component = replace(component, stem=path.removeprefix(weight_set.folder).removesuffix(".safetensors"))
    message = f"The tensors of {path} stay in one file, because {reason}."
    return replace(component, is_whole=True), Finding("info", "kept-whole", message)


def _refuse_other_names(configs: Mapping[str, str], taken: Container[str]) -> None:
    """Raise SourceError if a part of a repo names its own weight file. Only the configuration at the top may do so."""
    for folder, config in configs.items():
        name = Documents(parsed_json(config)).weights_named if folder and WEIGHTS_NAMED in config else None
        if name and folder + name not in taken:
            message = f"{folder}{CONFIG_NAME} sets {WEIGHTS_NAMED} to {name[:100]!r}. Only the top folder may set it."
            raise SourceError(message, "Give the file its usual name, such as model.safetensors, and remove the entry.")


def named_weights(source: Files) -> list[str]:
    """Return the weight files that config.json names, not the usual ones. Raises SourceError if one is missing."""
    name = Documents(read_json(source, CONFIG_NAME)).weights_named
    if name is None:
        return []
    weight_set = named_set(name, source.by_path)
    return weight_set.files(_read_index(source, weight_set), source.by_path)


def _read_index(source: Files, weight_set: WeightSet, most_tensors: int = MAX_TENSORS) -> Index | None:
    """Return the index of a set, None if there is none. One beside a single file, as MLX writes it, may be broken."""
    if weight_set.index is None:
        return None
    file = source.by_path[weight_set.index]
    with nullcontext() if weight_set.takes_index else suppress(SourceError):
        refuse_long(source, file.bytes, most_tensors)
        return parse_index(read_small(source, file, MAX_INDEX_BYTES), file.path)
    return None


def _each_once(tensors: Sequence[Tensor], index: Index | None) -> tuple[list[Tensor], list[Finding]]:
    """Return each tensor once, from the last file that holds it. Raises SourceError if the index names another."""
    if len({tensor.name for tensor in tensors}) == len(tensors):
        return list(tensors), []
    last: dict[str, Tensor] = {}
    for tensor in tensors:
        last[tensor.name] = max(tensor, last.get(tensor.name, tensor), key=lambda one: one.file)
    twice = [tensor for tensor in tensors if tensor is not last[tensor.name]]
    for tensor in twice:
        used, named = last[tensor.name].file, index and index.weight_map.get(tensor.name)
        if named != used:
            reason, hint = "No index says which of them counts.", "Download the checkpoint again, or ask its author."
            if index:
                reason = f"The index names {named or 'neither'}, but libraries load the one in {used}."
                hint = f"If that is right, write {used} into the index. Else remove the tensor from {used}."
            raise SourceError(f"The tensor {tensor.name} is in two files: {tensor.file} and {used}. {reason}", hint)
    message = f"{count(len(twice), 'tensor')} {'is' if len(twice) == 1 else 'are'} in two files: "
    message += f"{name_some([tensor.name for tensor in twice])}. The copy has those that the index names."
    kept = [tensor for tensor in tensors if tensor is last[tensor.name]]
    return kept, [Finding("info", "stored-twice", message)]


def _refuse_unreadable(source: Files, files: Iterable[FileEntry]) -> None:
    """Raise SourceError for a file on this disk that a job could not read at its end, or a pointer of Git LFS."""
    for file in files:
        path = source.path(file.path)
        if path and not os.access(path, os.R_OK):
            hint = "Change its permissions, or remove it from the source."
            raise SourceError(f"You have no permission to read {file.path}.", hint)
        may_be_pointer = 0 < file.bytes < POINTER_BYTES
        if not path:  # on a Hub, a request for each small text would take long, and weights have a SHA-256
            may_be_pointer = file.sha256 is None and file.bytes in USUAL_POINTER and not _TEXT.search(file.path)
        start = b"".join(source.read(file.path, 0, file.bytes)) if may_be_pointer else b""
        what, hint = what_is(start)
        if what == POINTER:
            raise SourceError(f"{file.path} is {what}.", hint)


def read_configs(source: Files, folders: Iterable[str]) -> dict[str, str]:
    """Return the text of the configuration in each of `folders` that has one."""
    texts = {folder: config_text(source, folder + CONFIG_NAME) for folder in folders}
    return {folder: text.decode(errors="replace") for folder, text in texts.items() if text is not None}
