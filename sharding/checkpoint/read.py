"""Read the headers, indexes and configuration of a source, but no tensor bytes."""

import os
import re
import shlex
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from threading import Lock
from typing import Any

from sharding.checkpoint.documents import Documents, config_text, read_card_base, read_json, read_small
from sharding.checkpoint.library import read_layout
from sharding.checkpoint.side_files import describe_links, other_weights, refuse_links, refuse_unfinished, sort_files
from sharding.checkpoint.state_dict import remarks_on
from sharding.checkpoint.trained import as_trained, read_dcp, read_rank_shards, what_is_missing
from sharding.checkpoint.weight_files import find_sets, named_set
from sharding.checkpoint.weight_sets import WeightSet, by_folder, why_one_file
from sharding.core.errors import HeaderError, SourceError, TooManyTensors
from sharding.core.limits import MAX_INDEX_BYTES, MAX_TENSORS
from sharding.core.protocols import Files
from sharding.core.text import count, name_some, parsed_json, unreached_sentence
from sharding.core.threads import readers
from sharding.core.values import Checkpoint, Component, FileEntry, Finding, Tensor
from sharding.formats.index import Index, compare_with_index, parse_index
from sharding.formats.names import CONFIG_NAME, DCP_METADATA_NAME, POINTER_BYTES, USUAL_POINTER, is_pointer, what_is
from sharding.formats.peft_config import named_base
from sharding.formats.quantization import WEIGHTS_NAMED, dtype_of_first, quantization_of
from sharding.formats.rank_boxes import without_dcp
from sharding.formats.safetensors_file import LENGTH_BYTES, Header, header_end, parse_header
from sharding.formats.torch_checkpoint import describe_archives, read_archives
from sharding.model_class.class_table import ties
from sharding.recipes.stored import Stored, place_of

TENSOR_DESCRIPTION_BYTES = 160
"""Upper estimate of what a header or an index holds for each tensor. A header has about 110 bytes, an index 130."""


_TEXT = re.compile(r"(?<!tokenizer)\.json$|\.(?:jinja|jsonl|md|py|txt|yaml|yml)$")
"""Names of files that Git LFS rarely holds. Large tokenizers are often there."""
_LONG = Lock()
_LONG_BYTES = 2_000_000
"""Longer headers are parsed one at a time. Threads would not be faster, and parsing takes ten times the memory."""
_FIRST_READ_BYTES = 64 << 10  # Most headers are shorter. A longer one takes a second read.


def read_checkpoint(source: Files, variant: str = "", most_tensors: int = MAX_TENSORS) -> Checkpoint:
    """Return the tensors, side files and findings of `source`. A component that has `variant` is read in that variant.

    Raises SourceError if there is no checkpoint that can be streamed, or a tensor is there twice. Raises HeaderError if
    a weight file breaks the format. Raises TooManyTensors if there are more than `most_tensors`. An index or a header
    too long for that many tensors is not read.
    """
    by_path = {file.path: file for file in source.files}
    folders = by_folder(by_path)
    documents, layout = read_layout(source, by_path, folders)
    refuse_links(source.links_out, layout.folders)
    selection = find_sets(folders, layout, documents.weights_named, variant)
    components, findings = [], list(selection.findings)
    weight_files: list[FileEntry] = []
    tensors: list[Tensor] = []
    for weight_set in selection.sets:
        component, files, inside, remarks = _read_component(source, by_path, weight_set, most_tensors)
        if reason := why_one_file(selection.library, weight_set, [tensor.name for tensor in inside]):
            component, remark = _in_one_file(component, weight_set, reason)
            remarks.append(remark)
        components.append(component)
        weight_files += files
        tensors += inside
        findings += remarks
        if len(tensors) > min(most_tensors, MAX_TENSORS):
            raise _too_many_tensors(source, most_tensors)
    _refuse_unusable(tensors)
    findings += remarks_on(tensors)
    if all(weight_set.stem == "adapter_model" for weight_set in selection.sets):
        findings += _adapter_alone(documents.adapter, str(source.folder or source.ref.name))
    of_ranks = {path for weight_set in selection.sets for path in weight_set.ranks}
    indexes = {weight_set.index for weight_set in selection.sets if weight_set.index and weight_set.takes_index}
    taken = {file.path for file in weight_files} | indexes | of_ranks
    refuse_unfinished(by_path, taken)
    side_files, left_out = sort_files(
        source.files, taken, selection.copied, layout.folders.keys(), is_trained=bool(of_ranks)
    )
    _refuse_unreadable(source, side_files)
    configs = read_configs(source, by_path, [component.folder for component in components])
    _refuse_other_names(configs, taken)
    checkpoint = Checkpoint(
        source=source.ref,
        beside=source.places[1:],
        tensors=tuple(tensors),
        components=tuple(components),
        weight_files=tuple(replace(file, path=file.at, place="") for file in weight_files),
        side_files=side_files,
        copied_weights=tuple(file for file in side_files if file.path in selection.copied),
        findings=(*findings, *left_out),
        architecture=documents.architecture,
        library=selection.library,
        configs=configs,
        other_variants=selection.passed_over,
        other_weights=other_weights(source.files, taken | {file.path for file in side_files}),
        of_ranks=bool(of_ranks),
        unreached=source.unreached,
        has_twice=any(finding.code == "stored-twice" for finding in findings),
        card_base=read_card_base(source, by_path) if quantization_of(configs.get("", "")) else "",
    )
    first = (*describe_source(source), *what_is_missing(checkpoint))
    return as_trained(replace(checkpoint, findings=(*first, *checkpoint.findings)))


def _adapter_alone(config: Any, place: str) -> Iterator[Finding]:
    """Yield the warning for a source at `place` that is only an adapter. `config` is its adapter_config.json."""
    if isinstance(config, dict) and "peft_type" in config:
        name = named_base(config)
        message = f"This is an adapter{f' of {name}' if name else ''}, not a whole model. The copy is the same adapter."
        command = f"shard-my-repo shard {shlex.quote(name or 'BASE')} ./merged --adapter {shlex.quote(place)}"
        yield Finding("warning", "adapter-alone", message, f"To merge it: {command}")


def describe_source(source: Files) -> tuple[Finding, ...]:
    """Return findings about the source itself: its commit and its links."""
    hint = "If you do not want exactly this commit, use a branch, a tag, or a commit on one of them."
    places = map(unreached_sentence, source.unreached)
    unreached = (Finding("warning", "unreached-commit", sentence, hint) for sentence in places)
    return (*unreached, *describe_links(source.links_out))


_Read = tuple[Component, list[FileEntry], list[Tensor], list[Finding]]


def _read_component(source: Files, by_path: dict[str, FileEntry], weight_set: WeightSet, most_tensors: int) -> _Read:
    if weight_set.ranks:
        return _read_ranks(source, by_path, weight_set, most_tensors)
    findings = weight_set.findings(_listed(source, by_path, weight_set))
    index = _read_index(source, by_path, weight_set, most_tensors)
    files = [by_path[path] for path in weight_set.files(index, by_path)]
    pickled = [file for file in files if file.path.endswith(".bin")]
    # A tied name may be left out only if the loader fills it in again. transformers does; others do not.
    is_tied = bool(pickled) and ties(read_json(source, by_path.get(weight_set.folder + CONFIG_NAME))) is True
    is_tied = is_tied and weight_set.stem == "model" and not weight_set.is_whole
    archives = read_archives(source, pickled, unites_tied=is_tied)
    headers = read_headers(source, [file for file in files if not file.path.endswith(".bin")], most_tensors)
    tensors = [tensor for header in headers for tensor in header.tensors]
    tensors += [tensor for archive in archives for tensor in archive.tensors]
    tensors, twice = _each_once(tensors, index)
    tied = [name for archive in archives for name in archive.tied]
    disagreements = compare_with_index(index, tensors, tied) if index else []
    metadata, conflicts = merge_metadata(headers)
    total_parameters = index.total_parameters if index and not disagreements else None
    names = weight_set.folder, weight_set.stem, weight_set.variant, weight_set.is_whole
    first_file = min(file.path for file in files)
    first = [tensor for tensor in tensors if tensor.file == first_file]
    first = first if first_file.endswith(".bin") else sorted(first, key=lambda tensor: tensor.name)
    loads_as = (index.dtype if index else "") or dtype_of_first(first)
    component = Component(*names, metadata, total_parameters, loads_as)
    findings += [*disagreements, *conflicts, *describe_archives(files, archives), *twice]
    return component, files, tensors, findings


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


def _read_ranks(source: Files, by_path: dict[str, FileEntry], weight_set: WeightSet, most_tensors: int) -> _Read:
    """Return the same as `_read_component` for files that the ranks of a training run saved."""
    if weight_set.ranks == [DCP_METADATA_NAME]:
        _refuse_long(source, by_path[DCP_METADATA_NAME].bytes, most_tensors)
        component = Component(stem=weight_set.stem, is_whole=weight_set.is_whole)
        return component, *read_dcp(source, by_path)
    files = [by_path[path] for path in weight_set.ranks]
    headers = read_headers(source, files, most_tensors)
    tensors, findings = read_rank_shards(files, headers)
    metadata, conflicts = merge_metadata(replace(header, metadata=without_dcp(header.metadata)) for header in headers)
    component = Component(stem=weight_set.stem, is_whole=weight_set.is_whole, metadata=metadata)
    return component, files, tensors, [*findings, *conflicts]


def named_weights(source: Files) -> list[str]:
    """Return the weight files that config.json names instead of the usual ones, or [] if it names none.

    Raises SourceError if one of them is missing.
    """
    by_path = {file.path: file for file in source.files}
    name = Documents(read_json(source, by_path.get(CONFIG_NAME))).weights_named
    if name is None:
        return []
    weight_set = named_set(name, by_path)
    return weight_set.files(_read_index(source, by_path, weight_set), by_path)


def _read_index(
    source: Files, by_path: dict[str, FileEntry], weight_set: WeightSet, most_tensors: int = MAX_TENSORS
) -> Index | None:
    if not weight_set.takes_index or weight_set.index is None:
        return None
    _refuse_long(source, by_path[weight_set.index].bytes, most_tensors)
    return parse_index(read_small(source, by_path[weight_set.index], MAX_INDEX_BYTES), weight_set.index)


def _listed(source: Files, by_path: dict[str, FileEntry], weight_set: WeightSet) -> frozenset[str]:
    """Return the files in the index beside a single file. MLX and others write one for a single file too."""
    with suppress(SourceError):
        if weight_set.single and (file := by_path.get(weight_set.index or "")):
            return frozenset(parse_index(read_small(source, file, MAX_INDEX_BYTES), file.path).weight_map.values())
    return frozenset()


def read_headers(source: Files, files: Iterable[FileEntry], most_tensors: int = MAX_TENSORS) -> list[Header]:
    """Return the parsed headers of `files`, in order. Raises SourceError, HeaderError, TooManyTensors."""
    headers, seen = [], 0
    with readers(source.ranges_at_once) as pool:
        for header in pool.map(lambda file: _read_header(source, file, most_tensors), files):
            headers.append(header)
            seen += len(header.tensors)
            if seen > most_tensors:
                raise _too_many_tensors(source, most_tensors)
    return headers


def _read_header(source: Files, file: FileEntry, most_tensors: int) -> Header:
    first = b"".join(source.read(file.path, 0, min(file.bytes, _FIRST_READ_BYTES)))
    try:
        end = header_end(first[:LENGTH_BYTES], file.bytes, file.path)
    except HeaderError as error:
        what, hint = what_is(first)
        raise (HeaderError(f"{file.path} is {what}.", hint) if what else error) from error
    if end > len(first):
        _refuse_long(source, end, most_tensors)
        first += b"".join(source.read(file.path, len(first), end))
    with _LONG if end > _LONG_BYTES else nullcontext():
        header = parse_header(first, file.bytes, file.path)
    if (at := (file.source, file.at)) == (0, file.path):
        return header
    # The file has another name in the source than in the repo.
    places = ((tensor, place_of(tensor)) for tensor in header.tensors)
    moved = (tensor._replace(recipe=Stored(*at, place.start_byte, place.end_byte)) for tensor, place in places)
    return replace(header, tensors=tuple(moved))


def _refuse_long(source: Files, description_bytes: int, most_tensors: int) -> None:
    if most_tensors < MAX_TENSORS and description_bytes > most_tensors * TENSOR_DESCRIPTION_BYTES:
        raise _too_many_tensors(source, most_tensors)


def _too_many_tensors(source: Files, most_tensors: int) -> TooManyTensors:
    many = f"{source.ref.repo_id} has more than {most_tensors:,} tensors"
    if most_tensors >= MAX_TENSORS:
        return TooManyTensors(f"{many}, which no single model has.", "Shard its models one by one.")
    hint = "Shard it with the command `shard-my-repo` on your own machine."
    return TooManyTensors(f"{many}, too many for the page.", hint)


def _each_once(tensors: Sequence[Tensor], index: Index | None) -> tuple[list[Tensor], list[Finding]]:
    """Return each tensor once, as transformers and diffusers load it: from the last of the files that hold it.

    Raises SourceError if the index names another of them.
    """
    if index is None or len({tensor.name for tensor in tensors}) == len(tensors):
        return list(tensors), []
    last: dict[str, Tensor] = {}
    for tensor in tensors:
        last[tensor.name] = max(tensor, last.get(tensor.name, tensor), key=lambda one: one.file)
    twice = [tensor for tensor in tensors if tensor is not last[tensor.name]]
    for tensor in twice:
        used, named = last[tensor.name].file, index.weight_map.get(tensor.name)
        if named != used:
            raise SourceError(
                f"The tensor {tensor.name} is in two files: {tensor.file} and {used}. The index names "
                f"{named or 'neither'}, but libraries load the one in {used}.",
                f"If that is right, write {used} into the index. Else remove the tensor from {used}.",
            )
    message = f"{count(len(twice), 'tensor')} {'is' if len(twice) == 1 else 'are'} in two files: "
    message += f"{name_some([tensor.name for tensor in twice])}. The copy has those that the index names."
    kept = [tensor for tensor in tensors if tensor is last[tensor.name]]
    return kept, [Finding("info", "stored-twice", message)]


def _refuse_unusable(tensors: Iterable[Tensor]) -> None:
    seen: dict[str, str] = {}
    for tensor in tensors:
        if tensor.name in seen:
            message = f"The tensor {tensor.name} is in two files: {seen[tensor.name]} and {tensor.file}."
            hint = "No index says which of them counts. Download the checkpoint again, or ask its author."
            raise SourceError(message, hint)
        seen[tensor.name] = tensor.file
    if not seen:
        raise SourceError("The weight files contain no tensors.", "Use a model that has weights.")


def _refuse_unreadable(source: Files, files: Iterable[FileEntry]) -> None:
    """Raise SourceError if one of `files` on this disk is not readable, or if one is only a pointer of Git LFS.

    Otherwise a job would fail only at its end, or copy the pointer. The headers of weights are read anyway.
    """
    for file in files:
        path = source.path(file.path)
        if path and not os.access(path, os.R_OK):
            hint = "Change its permissions, or remove it from the source."
            raise SourceError(f"You have no permission to read {file.path}.", hint)
        may_be_pointer = 0 < file.bytes < POINTER_BYTES
        if not path:  # on a Hub, a request for each small text would take long, and weights have a SHA-256
            may_be_pointer = file.sha256 is None and file.bytes in USUAL_POINTER and not _TEXT.search(file.path)
        start = b"".join(source.read(file.path, 0, file.bytes)) if may_be_pointer else b""
        if is_pointer(start):
            what, hint = what_is(start)
            raise SourceError(f"{file.path} is {what}.", hint)


def merge_metadata(headers: Iterable[Header]) -> tuple[dict[str, str], list[Finding]]:
    """Return the metadata for every shard, and a finding if the headers disagree on it."""
    merged, conflicts = dict[str, str](), dict[str, str]()
    for header in headers:
        for key, text in (header.metadata or {}).items():
            if merged.setdefault(key, text) != text:
                conflicts.setdefault(key, f"{key} is {merged[key][:50]!r} in one file and {text[:50]!r} in another")
    # accelerate 1.15 refuses a file whose metadata does not name the framework that wrote it.
    merged.setdefault("format", "pt")
    if not conflicts:
        return merged, []
    differing = name_some([conflicts[key] for key in sorted(conflicts)])
    message = f"The headers have different metadata: {differing}. The first value is kept."
    hint = "If that is wrong, the shards may be of different saves."
    return merged, [Finding("warning", "metadata-conflict", message, hint)]


def read_configs(source: Files, by_path: dict[str, FileEntry], folders: Iterable[str]) -> dict[str, str]:
    """Return the text of the configuration in each of `folders` that has one."""
    texts = {folder: config_text(source, by_path.get(folder + CONFIG_NAME)) for folder in folders}
    return {folder: text.decode(errors="replace") for folder, text in texts.items() if text is not None}
