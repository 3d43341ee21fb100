"""Decide which dtype every tensor of a copy has, and where its bytes lie after the cast. Pure."""

from collections.abc import Iterable, Sequence

from sharding.core.errors import SourceError
from sharding.core.hints import Hints, ModelHints
from sharding.core.text import name_some
from sharding.core.values import Checkpoint, Finding, TensorEntry, folder_of
from sharding.formats.dtypes import BY_NAME, BY_OPTION, CASTABLE, tensor_bytes
from sharding.formats.quantization import is_packed, method_of, quantization_of
from sharding.planning.recipe import can_help

_NO_CONFIG = ModelHints(unknown="there is no config.json.")


def cast_tensors(tensors: Sequence[TensorEntry], dtype: str, hints: Hints) -> tuple[TensorEntry, ...]:
    """Return `tensors` as they are after a cast to `dtype`, file for file one after another from byte 0.

    A tensor gets the dtype that `from_pretrained(dtype=…)` and `save_pretrained` give it, which keep some modules
    in fp32; one that `hints` do not know gets `dtype`.

    >>> [after] = cast_tensors([TensorEntry("w", "F32", (3,), "f", 8, 20)], "bf16", {})
    >>> after.dtype, after.start_byte, after.end_byte
    ('BF16', 0, 6)
    """
    kept = {saved.name: saved.dtype for known in hints.values() for saved in known.saved}
    ends: dict[str, int] = {}
    after = []
    for tensor in tensors:
        target = tensor.dtype
        if target in CASTABLE:
            target = kept.get(tensor.name, "")
            target = target if target in CASTABLE else BY_OPTION[dtype].name
        start = ends.get(tensor.file, 0)
        end = ends[tensor.file] = start + tensor_bytes(target, tensor.shape)
        after.append(TensorEntry(tensor.name, target, tensor.shape, tensor.file, start, end))
    return tuple(after)


def cast_findings(after: Iterable[TensorEntry], dtype: str, hints: Hints) -> tuple[Finding, ...]:
    """Return what a person should know of a cast whose outcome is `after`."""
    kept: dict[str, list[str]] = {}
    for tensor in after:
        names = kept.setdefault(folder_of(tensor.file), [])
        if tensor.dtype in CASTABLE and tensor.dtype != BY_OPTION[dtype].name:
            names.append(tensor.name)
    findings = []
    for folder, names in kept.items():
        known = hints.get(folder, _NO_CONFIG)
        if known.unknown:
            message = (
                f"Every floating-point tensor{f' of {folder}' if folder else ''} is cast to {dtype}, as it is not "
            )
            message += f"known what the model keeps in fp32: {known.unknown}"
            hint = "Check that the code of the model needs no weights in fp32."
            findings.append(Finding("warning", "cast-without-class", message, hint))
        elif names:
            message = f"{len(names)} tensors are in another dtype than {dtype}, as {known.class_name} keeps them: "
            findings.append(Finding("info", "kept-dtype", f"{message}{name_some(names)}."))
    return tuple(findings)


def may_overflow(stored: Iterable[TensorEntry], after: Iterable[TensorEntry]) -> bool:
    """Return whether a cast of the tensors `stored` to `after`, in any order, may make finite numbers infinite.

    >>> may_overflow([TensorEntry("w", "BF16", (3,), "f", 0, 6)], [TensorEntry("w", "F16", (3,), "f", 0, 6)])
    True
    """
    before = {tensor.name: tensor.dtype for tensor in stored}
    return any(
        BY_NAME[before[tensor.name]].largest > BY_NAME[tensor.dtype].largest
        for tensor in after
        if tensor.dtype != before[tensor.name]
    )


def refuse_cast(checkpoint: Checkpoint) -> None:
    """Raise SourceError where a checkpoint is quantized, so that it cannot be cast."""
    stated = [config for config in map(quantization_of, checkpoint.configs.values()) if config is not None]
    telling = [tensor.name for tensor in checkpoint.tensors if is_packed(tensor)]
    if stated or telling:
        how = f" with {method_of(stated[0])}" if stated else f", as {name_some(telling, 1)} tells"
        hint = "Keep the dtype, or take the repo that it was quantized from."
        if stated and all(map(can_help, stated)):
            hint = "--dequantize computes them with their scales. Or keep the dtype."
        raise SourceError(
            f"This checkpoint is quantized{how}: its numbers mean nothing without their scales, so it is not cast.",
            hint,
        )
