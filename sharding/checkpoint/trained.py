"""Read a checkpoint from a training run in which each rank saved its own pieces of the tensors."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from sharding.checkpoint.state_dict import model_names, short_names, state_in
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.protocols import Files
from sharding.core.text import count, format_bytes, name_some
from sharding.core.values import Checkpoint, FileEntry, Finding, Tensor
from sharding.formats import quantization
from sharding.formats.dcp_archives import find_boxes
from sharding.formats.dcp_metadata import parse_metadata
from sharding.formats.names import DCP_METADATA_NAME
from sharding.formats.quantization import quantization_of
from sharding.formats.rank_boxes import SavedBoxes, assemble, assemble_headers, missing_names
from sharding.formats.safetensors_file import Header
from sharding.formats.torch_checkpoint import HEADS
from sharding.formats.torch_globals import PickleRefused
from sharding.recipes.laid import Laid
from sharding.recipes.stored import Stored

_OF_LORA = re.compile(r"\.(?:lora_(?:A|B|embedding_A|embedding_B|magnitude_vector)|base_layer)(?:\.|$)")
"""Parts of names that PEFT gives to what it wraps."""


def read_rank_shards(files: Sequence[FileEntry], headers: Sequence[Header]) -> tuple[list[Tensor], list[Finding]]:
    """Return the weights in the safetensors files of all ranks, each tensor once, and findings about them.

    Raises SourceError if they are incomplete.
    """
    stored = dict.fromkeys(tensor.name for header in headers for tensor in header.tensors)
    # Each name is one key of a flat dictionary, because a wrapper and a module of that name look the same.
    state = state_in({name: (name,) for name in stored})
    names = _final_names({name: name for name in stored if name not in state}, state)
    left_out, of_model = Counter[str](), []
    for header in headers:
        of_model.append(replace(header, tensors=tuple(tensor for tensor in header.tensors if tensor.name in names)))
        left_out.update({tensor.name: tensor.bytes for tensor in header.tensors if tensor.name in state})
    tensors = [tensor._replace(name=names[tensor.name]) for tensor in assemble_headers(files, of_model)]
    findings = [_pieces(files, tensors), *_left_out(left_out, ()), *_renamed(names)]
    missing, number = missing_names(files)
    if number:
        message = f"Some ranks saved fewer files than others. Missing files: {name_some(missing, total=number)}."
        hint = "No piece is missing in the middle. One may be missing at the end. To check that, add --base owner/name."
        findings.append(Finding("warning", "ranks-uneven", message, hint))
    return tensors, findings


def read_dcp(source: Files, by_path: dict[str, FileEntry]) -> tuple[list[FileEntry], list[Tensor], list[Finding]]:
    """Return the files of a checkpoint with `.metadata`, the weights in them, and findings about what is left out.

    Raises SourceError if a file is missing, or does not match `.metadata`.
    """
    listed = by_path[DCP_METADATA_NAME]
    if listed.bytes > MAX_DCP_BYTES:
        raise SourceError(
            f"{listed.path}, the list of all saved pieces, has {format_bytes(listed.bytes)}. The limit is "
            f"{format_bytes(MAX_DCP_BYTES)}.",
            "Save the model without its optimizer, which takes two thirds of it, or from fewer ranks.",
        )
    try:
        metadata = parse_metadata(b"".join(source.read(listed.path, 0, listed.bytes)))
    except PickleRefused as error:
        message = f"{listed.path}, the list of all saved pieces, cannot be read: {error}."
        raise SourceError(message, "Copy it again, or ask its author to save the checkpoint again.") from error
    state = state_in({entry.name: entry.path for entry in metadata.entries})
    weights = [entry for entry in metadata.entries if entry.name not in state]
    names = _final_names(model_names({entry.name: entry.path for entry in weights}), state or metadata.others)
    for entry in weights:
        if not BY_TORCH[entry.dtype].name:
            message = f"{entry.name} has the dtype {entry.dtype}, which safetensors does not support."
            raise SourceError(message, "Save it again in another dtype.")
    boxes = find_boxes(source, weights, by_path)
    tensors = assemble(
        SavedBoxes(names[entry.name], BY_TORCH[entry.dtype].name, entry.shape, boxes[entry.name]) for entry in weights
    )
    files = [by_path[name] for name in sorted({chunk.file for entry in weights for chunk in entry.chunks})]
    sizes = {entry.name: sum(chunk.bytes for chunk in entry.chunks) for entry in metadata.entries}
    left_out = {name: size for name, size in sizes.items() if name in state}
    findings = [_pieces(files, tensors), *_left_out(left_out, metadata.others), *_renamed(names)]
    return files, tensors, findings


def what_is_missing(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return a finding if weights of a training run have no configuration beside them."""
    if not needs_base(checkpoint):
        return ()
    message = "There is no config.json and no tokenizer, so no library can load the result by its name."
    hint = "The model from which the training started can supply these files. Name it with --base owner/name."
    return (Finding("warning", "no-base", message, hint),)


def needs_base(checkpoint: Checkpoint) -> bool:
    """Return whether the files beside the weights are missing, so that a base could supply them."""
    return checkpoint.of_ranks and not checkpoint.configs


def as_trained(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` without the description of quantization, if training made its weights ordinary ones."""
    if not checkpoint.of_ranks or any(map(quantization.holds_quantized, checkpoint.tensors)):
        return checkpoint
    configs, unfit, findings = dict(checkpoint.configs), set(quantization.QUANTIZERS_FILES), []
    for folder, config in checkpoint.configs.items():
        if (entry := quantization_of(config)) is not None:
            configs[folder] = quantization.without_quantization(config)
            unfit.add("recipe.yaml")  # llm-compressor writes it. Without such an entry, it may be the trainer's own.
            method = quantization.method_of(entry)
            message = f"config.json says that the weights are quantized with {method}, but none are. "
            message += "The config.json of the result leaves this entry out."
            hint = "This is normal after training. Otherwise, check that config.json belongs to these weights."
            findings.append(Finding("info", "quantization-dropped", message, hint))
    if paths := [file.path for file in checkpoint.side_files if file.path in unfit]:
        message = f"Left out: {name_some(paths, len(paths))} (describes the quantization of other weights)."
        findings.append(Finding("info", "left-out", message))
    return replace(
        checkpoint,
        configs=configs,
        reconfigured=frozenset(folder for folder in configs if configs[folder] != checkpoint.configs[folder]),
        side_files=tuple(file for file in checkpoint.side_files if file.path not in unfit),
        findings=(*checkpoint.findings, *findings),
    )


def compare_with_base(checkpoint: Checkpoint, base: Checkpoint, ordinary: Checkpoint | None) -> Checkpoint:
    """Return `checkpoint` with findings about its differences from `base`, the model that was trained.

    `ordinary` is that model without quantization, or None if it is not available. Raises SourceError if every tensor in
    pieces is shorter than in the base, because then the files of a rank are missing.
    """
    name = base.source.words
    if any(quantization_of(config) is not None for config in checkpoint.configs.values()):
        ordinary = base  # both are quantized
    if ordinary is None:
        message = f"The weights of {name} are quantized, but these are not. Names and shapes are not compared."
        hint = "To compare them, use an unquantized version as the base."
        finding = Finding("info", "base-quantized", message, hint)
        return replace(checkpoint, findings=(*checkpoint.findings, finding))
    ours, theirs = ({tensor.name: tensor for tensor in model.tensors} for model in (checkpoint, ordinary))
    _refuse_cut_short(ours, theirs)
    _refuse_other_names(ours, theirs, name)
    findings = []
    if absent := [name for name in theirs if name not in ours]:
        message = f"{len(absent)} of the {len(theirs)} tensors of {name} are missing: {name_some(absent)}."
        hint = "This is normal for tied weights that have one name. Otherwise, the loaded model lacks them."
        findings.append(Finding("warning", "base-lacks", message, hint))
    if added := [name for name in ours if name not in theirs]:
        message = f"{name} does not have {count(len(added), 'tensor')} of this checkpoint: {name_some(added)}."
        hint = "They may be a new head, or tied weights under a second name."
        findings.append(Finding("info", "base-adds", message, hint))
    if other := [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]:
        first = other[0]
        shapes = f"{first} is {list(ours[first].shape)} here and {list(theirs[first].shape)} there"
        message = f"The shape of {count(len(other), 'tensor')} differs from {name}. For example, {shapes}."
        hint = (
            "Change config.json of the result to match, for example vocab_size. If it is the wrong base, name another."
        )
        findings.append(Finding("warning", "base-shapes", message, hint))
    dtypes = [Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0] for tensors in (ours, theirs)]
    if dtypes[0] != dtypes[1]:
        message = f"The weights are {dtypes[0]} here and {dtypes[1]} in {name}. They stay {dtypes[0]}."
        findings.append(Finding("info", "base-dtype", message, "To convert them, choose a --dtype."))
    return replace(checkpoint, findings=(*checkpoint.findings, *findings))


def _refuse_other_names(ours: Collection[str], theirs: Collection[str], base: str) -> None:
    """Raise SourceError if tensors of the run have names that the base does not have, and lack names that it has.

    No class would load such tensors. It would fill in random numbers. A head may be new, or tied under a second name.
    """
    added = [name for name in ours if name not in theirs and not HEADS.search(name)]
    absent = [name for name in theirs if name not in ours and not HEADS.search(name)]
    if added and absent:
        raise SourceError(
            f"{len(added)} of the {count(len(ours), 'tensor')} have names that {base} does not have, such as "
            f"{added[0]}. {base} has {absent[0]} instead, so no class would load them.",
            "Check that this is the model that was trained. If the trainer renamed the tensors, use its own export.",
        )


def _refuse_cut_short(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    cut = {name: tensor.recipe for name, tensor in ours.items() if isinstance(tensor.recipe, Laid)}
    cut = {name: recipe for name, recipe in cut.items() if len(recipe.boxes) > 1}
    short = []
    for name, recipe in cut.items():
        wanted = theirs[name].shape if name in theirs else recipe.shape
        if len(wanted) != len(recipe.shape) or wanted == recipe.shape:
            continue
        is_cut = [len(set(offsets)) > 1 for offsets in zip(*(box.offsets for box in recipe.boxes), strict=True)]
        lengths = zip(recipe.shape, wanted, is_cut, strict=True)
        if all(here == there or (here < there and cut_here) for here, there, cut_here in lengths):
            short.append(name)
    if short and len(short) == len(cut):
        first = short[0]
        raise SourceError(
            f"The files of a rank are missing. {first} is {list(ours[first].shape)} here and "
            f"{list(theirs[first].shape)} in the base. Every other tensor in pieces is too short as well.",
            "Copy the files of all ranks into one folder.",
        )


def _final_names(names: Mapping[str, str], state: Collection[str]) -> dict[str, str]:
    """Return the names of tensors in the result, by their names in the files. `names` has them without wrappers' keys.

    Raises SourceError if there is only training state, or two tensors would get the same name.
    """
    if found := next((name for name in names if _OF_LORA.search(name)), None):  # no class loads them beside a base
        message = f"The run holds the weights of a LoRA, such as {found}. This tool cannot collect them from a run."
        raise SourceError(message, "Export the adapter with the trainer, then merge it into its base.")
    if state and not names:
        message = "The source has no weights, only training state such as that of an optimizer."
        raise SourceError(message, "Use the folder beside it that holds the model.")
    # If some tensors lie under a wrapper's key, only their names can show the prefixes that this wrapper added.
    wrapped = {saved: name for saved, name in names.items() if saved != name} or names
    short = short_names(wrapped.values())
    final_names = {saved: short[name] if saved in wrapped else name for saved, name in names.items()}
    seen: dict[str, str] = {}
    for saved, name in final_names.items():
        if (first := seen.setdefault(name, saved)) != saved:
            message = f"{first} and {saved} would both be called {name} in the result."
            raise SourceError(message, "Save only the one that you want, or save each in its own folder.")
    return final_names


def _renamed(names: Mapping[str, str]) -> Iterable[Finding]:
    if changed := [saved for saved, name in names.items() if saved != name]:
        example = f"{changed[0]} becomes {names[changed[0]]}"
        message = f"Prefixes that the trainer added are removed from {count(len(changed), 'name')}: {example}."
        yield Finding("info", "names", message)


def _pieces(files: Sequence[FileEntry], tensors: Iterable[Tensor]) -> Finding:
    number = sum(not isinstance(tensor.recipe, Stored) for tensor in tensors)
    message = f"The ranks of a training run saved these weights in {count(len(files), 'file')}."
    message += f" The pieces of {count(number, 'tensor')} are joined while they are read." if number else ""
    return Finding("info", "ranks", message)


def _left_out(state: Mapping[str, int], others: Sequence[str]) -> Iterable[Finding]:
    """Yield a finding about tensors of the training state (name to bytes) and about entries that are not tensors."""
    parts = []
    if state:
        size = format_bytes(sum(state.values()))
        parts.append(f"{count(len(state), 'tensor')} of training state ({size}; {name_some(list(state), 1)})")
    if others:
        entries = count(len(others), "entry that is not a tensor", "entries that are not tensors")
        parts.append(f"{entries} ({name_some(others, 1)})")
    if parts:
        yield Finding("info", "training-state", f"Left out: {' and '.join(parts)}.")
