"""Complete a checkpoint from a training run: what it lacks, and how it differs from the model that was trained."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from sharding.core.errors import SourceError
from sharding.core.text import count, name_some
from sharding.core.values import Content, Finding, Tensor
from sharding.formats import quantization
from sharding.formats.quantization import quantization_of
from sharding.model_class.class_table import HEADS
from sharding.recipes.laid import Laid


def what_is_missing(checkpoint: Content) -> tuple[Finding, ...]:
    """Return a finding if weights of a training run have no configuration beside them."""
    if not needs_base(checkpoint):
        return ()
    message = "There is no config.json and no tokenizer, so no library can load the result by its name."
    hint = "The model from which the training started can supply these files. Name it with --base owner/name."
    return (Finding("warning", "no-base", message, hint),)


def needs_base(checkpoint: Content) -> bool:
    """Return whether the files beside the weights are missing, so that a base could supply them."""
    return checkpoint.of_ranks and not checkpoint.configs


def as_trained(checkpoint: Content) -> Content:
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


def compare_with_base(checkpoint: Content, base: Content, ordinary: Sequence[Tensor] | None) -> Content:
    """Return `checkpoint` with findings about its differences from `base`, the model that was trained.

    `ordinary` are its tensors without quantization, None if unknown. Raises SourceError if names or pieces do not fit.
    """
    name = base.source.words
    if any(quantization_of(config) is not None for config in checkpoint.configs.values()):
        ordinary = base.tensors  # both are quantized
    if ordinary is None:
        message = f"The weights of {name} are quantized, but these are not. Names and shapes are not compared."
        hint = "To compare them, use an unquantized version as the base."
        finding = Finding("info", "base-quantized", message, hint)
        return replace(checkpoint, findings=(*checkpoint.findings, finding))
    ours, theirs = ({tensor.name: tensor for tensor in tensors} for tensors in (checkpoint.tensors, ordinary))
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
        hint = "Change config.json of the result to match, such as vocab_size. If it is the wrong base, name another."
        findings.append(Finding("warning", "base-shapes", message, hint))
    dtypes = [Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0] for tensors in (ours, theirs)]
    if dtypes[0] != dtypes[1]:
        message = f"The weights are {dtypes[0]} here and {dtypes[1]} in {name}. They stay {dtypes[0]}."
        findings.append(Finding("info", "base-dtype", message, "To convert them, choose a --dtype."))
    return replace(checkpoint, findings=(*checkpoint.findings, *findings))


def _refuse_other_names(ours: Collection[str], theirs: Collection[str], base: str) -> None:
    """Raise SourceError if no class would load the names of the run. A head may be new, or tied under a second name."""
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
