"""Read a checkpoint that the ranks of a training run have saved, each its pieces of every tensor."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sharding.core.errors import SourceError
from sharding.core.gathered import Gathered
from sharding.core.limits import MAX_DCP_BYTES
from sharding.core.protocols import Source
from sharding.core.text import count, format_bytes, name_some
from sharding.core.values import Checkpoint, FileEntry, Finding, Header, TensorEntry
from sharding.formats.dcp_archives import find_boxes
from sharding.formats.dcp_metadata import DcpMetadata, SavedEntry, parse_metadata
from sharding.formats.dcp_safetensors import assemble_headers, missing_names
from sharding.formats.dtypes import BY_TORCH
from sharding.formats.names import DCP_METADATA_NAME
from sharding.formats.rank_boxes import SavedBoxes, assemble
from sharding.formats.torch_globals import PickleRefused

_STATE = {
    "optimizer", "optimizers", "optim", "optimizer_state", "optimizer_state_dict", "optimizer_states", "scheduler",
    "schedulers", "lr_scheduler", "lr_schedulers", "dataloader", "train_state", "rng", "rng_state", "rng_states",
    "random_states", "extra_state", "scaler", "grad_scaler",
}  # fmt: skip
"""Keys below which trainers keep what is no weight (accelerate 1.15, torchtitan, PyTorch's own tutorials)."""

_WRAPPERS = {"app", "model", "module", "state_dict", "model_state_dict", "state"}
"""Keys below which they keep the weights."""

_WRAPPING_MODULES = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What torch.compile, FSDP and activation checkpointing put into the names of what they wrap."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The weights that ranks have saved, each tensor once, and what a person should know of them."""

    tensors: list[TensorEntry]
    gathered: list[Gathered]
    findings: list[Finding]


def read_rank_shards(files: Sequence[FileEntry], headers: Sequence[Header]) -> Trained:
    """Return what safetensors files of ranks hold together. Raises SourceError where that is no whole checkpoint."""
    tensors, gathered = assemble_headers(files, headers)
    findings = [_pieces(files, gathered)]
    if missing := missing_names(files):
        message = f"Not every rank has a file of every number: {name_some(missing)} would be there."
        hint = "No piece is missing between those that are there; whether one comes after them, only a base can tell."
        findings.append(Finding("warning", "ranks-uneven", message, hint))
    return _shortened(Trained(tensors, gathered, findings))


def read_dcp(source: Source, by_path: dict[str, FileEntry]) -> tuple[list[FileEntry], Trained]:
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
    weights = {_name(entry): entry for entry in metadata.entries if not _is_state(entry.path, entry.name)}
    if not weights:
        raise SourceError(
            "There are no weights in it, only the state of an optimizer and the like.",
            "Give the folder beside it that holds the model.",
        )
    for entry in weights.values():
        if not BY_TORCH[entry.dtype].name:
            raise SourceError(f"{entry.name} is of dtype {entry.dtype}, which safetensors has no place for.")
    boxes = find_boxes(source, list(weights.values()), by_path)
    saved = [
        SavedBoxes(name, BY_TORCH[entry.dtype].name, entry.shape, boxes[entry.name]) for name, entry in weights.items()
    ]
    named = {chunk.file for entry in weights.values() for chunk in entry.chunks}
    files = [by_path[name] for name in sorted(named)]
    tensors, gathered = assemble(saved, {file.path: file.bytes for file in files})
    findings = [_pieces(files, gathered), *_left_out(metadata, list(weights.values()))]
    taken_off = {entry.name: name for name, entry in weights.items()}
    return files, _shortened(Trained(tensors, gathered, findings), taken_off)


def what_is_missing(checkpoint: Checkpoint) -> tuple[Finding, ...]:
    """Return what a person should know of weights of a training run that have no configuration beside them."""
    if not needs_base(checkpoint):
        return ()
    message = "There is no config.json and no tokenizer: the result is weights that nothing can load by its name."
    hint = "Name the model that was trained (--base owner/name): what lies beside its weights is taken from there."
    return (Finding("warning", "no-base", message, hint),)


def needs_base(checkpoint: Checkpoint) -> bool:
    """Return whether a base could say what is missing beside the weights."""
    return checkpoint.of_ranks and not checkpoint.configs


def compare_with_base(checkpoint: Checkpoint, base: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with what tells it from `base`, the model that was trained, as findings.

    Raises SourceError where every tensor that is in pieces is shorter than there: the files of a rank are missing.
    """
    ours, theirs = ({tensor.name: tensor for tensor in one.tensors} for one in (checkpoint, base))
    _refuse_cut_short(checkpoint, ours, theirs)
    findings = []
    name = base.source.repo_id
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
    dtypes = [Counter(tensor.dtype for tensor in one.values()).most_common(1)[0][0] for one in (ours, theirs)]
    if dtypes[0] != dtypes[1]:
        message = f"The weights are {dtypes[0]}, those of {name} {dtypes[1]}; they are kept as they are."
        findings.append(Finding("info", "base-dtype", message, "Choose a dtype (--dtype) to have them as there."))
    return replace(checkpoint, base=base.source, findings=(*checkpoint.findings, *findings))


def _refuse_cut_short(checkpoint: Checkpoint, ours: dict[str, TensorEntry], theirs: dict[str, TensorEntry]) -> None:
    at = {(tensor.file, tensor.start_byte): name for name, tensor in ours.items()}
    cut = {at[part.file, part.start_byte]: part for part in checkpoint.gathered if len(part.boxes) > 1}
    short = []
    for name, part in cut.items():
        wanted = theirs[name].shape if name in theirs else part.shape
        along = [axis for axis in range(len(part.shape)) if len({box.offsets[axis] for box in part.boxes}) > 1]
        is_short = len(wanted) == len(part.shape) and all(
            here == there or (here < there and axis in along)
            for axis, (here, there) in enumerate(zip(part.shape, wanted, strict=True))
        )
        if is_short and wanted != part.shape:
            short.append(name)
    if short and len(short) == len(cut):
        first = short[0]
        raise SourceError(
            f"The files of a rank are missing: {first} has {list(ours[first].shape)} of {list(theirs[first].shape)}, "
            "and so has every tensor that is in pieces.",
            "Copy the files of all ranks into one folder.",
        )


def _name(entry: SavedEntry) -> str:
    """Return what the model itself calls a tensor, as far as the keys on the way to it tell."""
    containers = list(entry.path[:-1])
    if not entry.path or not containers:
        return entry.name
    while containers and containers[0] in _WRAPPERS:
        del containers[0]
    return ".".join((*containers, entry.path[-1]))


def _is_state(path: Sequence[str], name: str) -> bool:
    containers = path[:-1] if len(path) > 1 else name.split(".")[:1]
    return not _STATE.isdisjoint(containers[:3])


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return what each of `names` is without what wrappers have put before it or into it.

    >>> short_names(["model.model.norm.weight", "model.lm_head.weight"])
    {'model.model.norm.weight': 'model.norm.weight', 'model.lm_head.weight': 'lm_head.weight'}
    >>> short_names(["model.norm.weight", "model.layers.0._orig_mod.mlp.weight"])
    {'model.norm.weight': 'model.norm.weight', 'model.layers.0._orig_mod.mlp.weight': 'model.layers.0.mlp.weight'}
    """
    names = list(names)
    short = names
    for module in _WRAPPING_MODULES:
        short = [name.replace(module, "") for name in short]
    while prefix := next((prefix for prefix in ("module.", "state_dict.", "model.") if _is_wrapped(short, prefix)), ""):
        short = [name.removeprefix(prefix) for name in short]
    return dict(zip(names, short, strict=True))


def _is_wrapped(names: Sequence[str], prefix: str) -> bool:
    if not names or not all(name.startswith(prefix) for name in names):
        return False
    # Most models call their own body "model": only a second one, or a head inside it, tells that this is another's.
    return prefix != "model." or any(name.startswith(("model.model.", "model.lm_head.")) for name in names)


def _shortened(trained: Trained, saved_as: dict[str, str] | None = None) -> Trained:
    """Return it with the names that the model has; `saved_as` maps those in the files to those given."""
    short = short_names(tensor.name for tensor in trained.tensors)
    tensors = [tensor._replace(name=short[tensor.name]) for tensor in trained.tensors]
    whole = saved_as or {name: name for name in short}
    if not (changed := [name for name, given in whole.items() if name != short[given]]):
        return trained
    example = f"{changed[0]} is {short[whole[changed[0]]]}"
    message = f"What the trainer put before names is taken off {len(changed)} of them: {example}."
    return replace(trained, tensors=tensors, findings=[*trained.findings, Finding("info", "names", message)])


def _pieces(files: Sequence[FileEntry], gathered: Sequence[Gathered]) -> Finding:
    message = f"The weights are as a training run has saved them, in {count(len(files), 'file')} of its ranks"
    message += f": {count(len(gathered), 'tensor')} lie in pieces, put together as they are read." if gathered else "."
    return Finding("info", "ranks", message)


def _left_out(metadata: DcpMetadata, weights: Sequence[SavedEntry]) -> Iterable[Finding]:
    kept = {entry.name for entry in weights}
    state = [entry for entry in metadata.entries if entry.name not in kept]
    if not state and not metadata.others:
        return
    size = format_bytes(sum(chunk.bytes for entry in state for chunk in entry.chunks))
    told = (
        [f"{len(state)} tensors of its state ({size}; {name_some([entry.name for entry in state], 1)})"]
        if state
        else []
    )
    told += [f"{len(metadata.others)} entries that are no tensors ({name_some(metadata.others, 1)})"] * bool(
        metadata.others
    )
    yield Finding("info", "training-state", f"Of the training, these are left out: {' and '.join(told)}.")
