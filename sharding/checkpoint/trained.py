"""Read a checkpoint that the ranks of a training run have saved, each its pieces of every tensor."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sharding.checkpoint.state_dict import clashes, model_names, short_names, state_in
from sharding.core.dtypes import BY_TORCH
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.protocols import Files
from sharding.core.text import count, format_bytes, name_some, source_name
from sharding.core.values import Checkpoint, FileEntry, Finding, Header, Tensor
from sharding.formats.dcp_archives import find_boxes
from sharding.formats.dcp_metadata import parse_metadata
from sharding.formats.dcp_safetensors import assemble_headers, missing_names
from sharding.formats.names import DCP_METADATA_NAME
from sharding.formats.quantization import (
    QUANTIZERS_FILES,
    holds_quantized,
    method_of,
    quantization_of,
    without_quantization,
)
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.formats.torch_globals import PickleRefused
from sharding.recipes.laid import Laid
from sharding.recipes.stored import Stored


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights that ranks have saved, each tensor once, and what a person should know of them."""

    tensors: list[Tensor]
    findings: list[Finding]


def read_rank_shards(files: Sequence[FileEntry], headers: Sequence[Header]) -> Trained:
    """Return what safetensors files of ranks hold together. Raises SourceError where that is no whole checkpoint."""
    stored = dict.fromkeys(tensor.name for header in headers for tensor in header.tensors)
    # As keys of one flat dictionary: a wrapper cannot be told from a module of that name.
    state = state_in({name: (name,) for name in stored})
    names = _final_names({name: name for name in stored if name not in state}, state)
    left_out = Counter[str]()
    of_model = []
    for header in headers:
        of_model.append(replace(header, tensors=tuple(tensor for tensor in header.tensors if tensor.name in names)))
        for tensor in header.tensors:
            if tensor.name in state:
                left_out[tensor.name] += tensor.bytes
    tensors = [tensor._replace(name=names[tensor.name]) for tensor in assemble_headers(files, of_model)]
    findings = [_pieces(files, tensors), *_left_out(left_out, ()), *_renamed(names)]
    missing, number = missing_names(files)
    if number:
        message = f"Not every rank has a file of every number: {name_some(missing, total=number)} would be there."
        hint = "No piece is missing between those that are there; whether one comes after them, only a base can tell."
        findings.append(Finding("warning", "ranks-uneven", message, hint))
    return Trained(tensors, findings)


def read_dcp(source: Files, by_path: dict[str, FileEntry]) -> tuple[list[FileEntry], Trained]:
    """Return the files of a checkpoint with `.metadata`, and the weights in it; what is no weight is left out.

    Raises SourceError where a file is missing, or something else than `.metadata` says.
    """
    listed = by_path[DCP_METADATA_NAME]
    if listed.bytes > MAX_DCP_BYTES:
        raise SourceError(
            f"{listed.path} has {format_bytes(listed.bytes)}; {format_bytes(MAX_DCP_BYTES)} are read of it.",
            "Save the model without its optimizer, which has two thirds of that, or by fewer ranks.",
        )
    try:
        metadata = parse_metadata(b"".join(source.read(listed.path, 0, listed.bytes)))
    except PickleRefused as error:
        raise SourceError(f"{listed.path} is not read: {error}.", "Ask its author to save it again.") from error
    state = state_in({entry.name: entry.path for entry in metadata.entries})
    weights = [entry for entry in metadata.entries if entry.name not in state]
    names = _final_names(model_names({entry.name: entry.path for entry in weights}), state or metadata.others)
    for entry in weights:
        if not BY_TORCH[entry.dtype].name:
            raise SourceError(f"{entry.name} is of dtype {entry.dtype}, which safetensors has no place for.")
    boxes = find_boxes(source, weights, by_path)
    saved = [
        SavedBoxes(names[entry.name], BY_TORCH[entry.dtype].name, entry.shape, boxes[entry.name]) for entry in weights
    ]
    named = {chunk.file for entry in weights for chunk in entry.chunks}
    files = [by_path[name] for name in sorted(named)]
    tensors = assemble(saved)
    left_out = {
        entry.name: sum(chunk.bytes for chunk in entry.chunks) for entry in metadata.entries if entry.name in state
    }
    findings = [_pieces(files, tensors), *_left_out(left_out, metadata.others), *_renamed(names)]
    return files, Trained(tensors, findings)


def what_is_missing(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return what a person should know of weights of a training run that have no configuration beside them."""
    if not needs_base(checkpoint):
        return ()
    message = "There is no config.json and no tokenizer: the result is weights that nothing can load by its name."
    hint = "What lies beside its weights is taken from the model that was trained. Name it with --base owner/name."
    return (Finding("warning", "no-base", message, hint),)


def needs_base(checkpoint: Checkpoint) -> bool:
    """Return whether a base could say what is missing beside the weights."""
    return checkpoint.of_ranks and not checkpoint.configs


def as_trained(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` without what says that its weights are quantized, where ranks have saved ordinary ones.

    Training a quantized model usually makes ordinary weights; its configuration still describes the quantized ones.
    """
    if not checkpoint.of_ranks or any(map(holds_quantized, checkpoint.tensors)):
        return checkpoint
    configs, unfit, findings = dict(checkpoint.configs), set(QUANTIZERS_FILES), []
    for folder, config in checkpoint.configs.items():
        if (quantization := quantization_of(config)) is not None:
            configs[folder] = without_quantization(config)
            unfit.add("recipe.yaml")  # llm-compressor's; without such an entry it may be the trainer's own
            message = f"config.json says that the weights are quantized with {method_of(quantization)}, and no weight "
            message += "here is quantized: the entry is left out of the result's."
            findings.append(Finding("info", "quantization-dropped", message))
    if paths := [file.path for file in checkpoint.side_files if file.path in unfit]:
        message = f"Left out: {name_some(paths, len(paths))} (describes how other weights are quantized)."
        findings.append(Finding("info", "left-out", message))
    return replace(
        checkpoint,
        configs=configs,
        reconfigured=frozenset(folder for folder in configs if configs[folder] != checkpoint.configs[folder]),
        side_files=tuple(file for file in checkpoint.side_files if file.path not in unfit),
        findings=(*checkpoint.findings, *findings),
    )


def compare_with_base(checkpoint: Checkpoint, base: Checkpoint, ordinary: Checkpoint | None) -> Checkpoint:
    """Return `checkpoint` with what tells it from `base`, the model that was trained, as findings.

    `ordinary` is that model with weights that are not quantized, None where it cannot be had.
    Raises SourceError where every tensor that is in pieces is shorter than there: the files of a rank are missing.
    """
    name = source_name(base.source.kind, base.source.repo_id)
    if any(quantization_of(config) is not None for config in checkpoint.configs.values()):
        ordinary = base  # both are quantized
    if ordinary is None:
        message = f"The weights of {name} are quantized and these are not: names and shapes are not compared."
        finding = Finding("info", "base-quantized", message)
        return replace(checkpoint, base=base.source, findings=(*checkpoint.findings, finding))
    ours, theirs = ({tensor.name: tensor for tensor in model.tensors} for model in (checkpoint, ordinary))
    _refuse_cut_short(ours, theirs)
    findings = []
    if absent := [name for name in theirs if name not in ours]:
        message = f"{len(absent)} of the {len(theirs)} tensors of {name} are not here: {name_some(absent)}."
        hint = "Tied weights may stand under one name; else the model that is loaded lacks them."
        findings.append(Finding("warning", "base-lacks", message, hint))
    if added := [name for name in ours if name not in theirs]:
        message = f"{len(added)} tensors are not in {name}: {name_some(added)}."
        hint = "Another head, or tied weights under a second name; if it is all of them, another trainer's names."
        findings.append(Finding("warning" if len(added) == len(ours) else "info", "base-adds", message, hint))
    if other := [name for name in ours if name in theirs and ours[name].shape != theirs[name].shape]:
        first = other[0]
        shapes = f"{first} is {list(ours[first].shape)} and there {list(theirs[first].shape)}"
        message = f"{len(other)} tensors have another shape than in {name}: {shapes}."
        hint = "Change config.json of the result (vocab_size, for example) to what was trained."
        findings.append(Finding("warning", "base-shapes", message, hint))
    dtypes = [Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0] for tensors in (ours, theirs)]
    if dtypes[0] != dtypes[1]:
        message = f"The weights are {dtypes[0]}, those of {name} {dtypes[1]}; they are kept as they are."
        findings.append(Finding("info", "base-dtype", message, "To have them as there, choose a --dtype."))
    return replace(checkpoint, base=base.source, findings=(*checkpoint.findings, *findings))


def _refuse_cut_short(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    cut = {name: tensor.recipe for name, tensor in ours.items() if isinstance(tensor.recipe, Laid)}
    cut = {name: recipe for name, recipe in cut.items() if len(recipe.boxes) > 1}
    short = []
    for name, recipe in cut.items():
        shape = recipe.shape
        wanted = theirs[name].shape if name in theirs else shape
        along = [axis for axis in range(len(shape)) if len({box.offsets[axis] for box in recipe.boxes}) > 1]
        is_short = len(wanted) == len(shape) and all(
            here == there or (here < there and axis in along)
            for axis, (here, there) in enumerate(zip(shape, wanted, strict=True))
        )
        if is_short and wanted != shape:
            short.append(name)
    if short and len(short) == len(cut):
        first = short[0]
        raise SourceError(
            f"The files of a rank are missing: {first} has {list(ours[first].shape)} of {list(theirs[first].shape)}, "
            "and so has every tensor that is in pieces.",
            "Copy the files of all ranks into one folder.",
        )


def _final_names(names: Mapping[str, str], state: Collection[str]) -> dict[str, str]:
    """Return the names that tensors get in the result, by those in the files; `names` are without wrappers' keys.

    Raises SourceError where there is only `state` of the training, or two would get the same name.
    """
    if state and not names:
        raise SourceError(
            "There are no weights in it, only the state of an optimizer and the like.",
            "Give the folder beside it that holds the model.",
        )
    # Where some are below a wrapper's key, no other tells what that wrapper has put into their names.
    wrapped = {saved: name for saved, name in names.items() if saved != name} or names
    short = short_names(wrapped.values())
    final_names = {saved: short[name] if saved in wrapped else name for saved, name in names.items()}
    for first, second, name in clashes(final_names):
        raise SourceError(
            f"{first} and {second} would both be called {name} in the result, and nothing tells which one is meant.",
            "Save only the one that you want, or each by itself, in a folder of its own.",
        )
    return final_names


def _renamed(names: Mapping[str, str]) -> Iterable[Finding]:
    if changed := [saved for saved, name in names.items() if saved != name]:
        example = f"{changed[0]} is {names[changed[0]]}"
        message = f"What the trainer put before names is taken off {len(changed)} of them: {example}."
        yield Finding("info", "names", message)


def _pieces(files: Sequence[FileEntry], tensors: Iterable[Tensor]) -> Finding:
    number = sum(not isinstance(tensor.recipe, Stored) for tensor in tensors)
    message = f"The weights are as a training run has saved them, in {count(len(files), 'file')} of its ranks"
    message += f": {count(number, 'tensor')} lie in pieces, put together as they are read." if number else "."
    return Finding("info", "ranks", message)


def _left_out(state: Mapping[str, int], others: Sequence[str]) -> Iterable[Finding]:
    """Yield what is said of the tensors of the training's state, and their bytes, and of what is no tensor."""
    parts = []
    if state:
        size = format_bytes(sum(state.values()))
        parts.append(f"{len(state)} tensors of its state ({size}; {name_some(list(state), 1)})")
    if others:
        parts.append(f"{len(others)} entries that are no tensors ({name_some(others, 1)})")
    if parts:
        yield Finding("info", "training-state", f"Of the training, these are left out: {' and '.join(parts)}.")
