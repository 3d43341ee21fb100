"""Decide which dtype each tensor of a copy gets, and which one its config.json names. Pure."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sharding.core.dtypes import BY_OPTION, CASTABLE, NUMBERS
from sharding.core.errors import Remedy, SourceError
from sharding.core.hints import Hints, ModelHints, SavedTensor
from sharding.core.made import Change
from sharding.core.text import json_file, name_some, parsed_json
from sharding.core.values import Finding, Plan, Tensor
from sharding.formats.names import CONFIG_NAME
from sharding.formats.quantization import dtype_of_first, method_of, quantization_of, quantized_in
from sharding.planning.draft import Draft
from sharding.planning.schemes import can_help
from sharding.recipes.cast import Cast, narrows


def cast_tensors(tensors: Iterable[Tensor], dtype: str, hints: Hints) -> tuple[Tensor, ...]:
    """Return `tensors`, none of them quantized, as they are after a cast to `dtype`.

    Each gets the dtype that `from_pretrained(dtype=…)` and `save_pretrained` give it: they keep some modules in fp32. A
    tensor that `hints` do not know gets `dtype`.

    >>> from sharding.recipes.stored import Stored
    >>> [after] = cast_tensors([Tensor("w", "F32", (3,), Stored(0, "f", 8, 20))], "bf16", {})
    >>> after.dtype, after.bytes
    ('BF16', 6)
    """
    kept = {saved.name: saved.dtype for known in hints.values() for saved in known.saved}
    after = []
    for tensor in tensors:
        target = kept.get(tensor.name, "")
        target = target if target in CASTABLE else BY_OPTION[dtype].name
        if tensor.dtype in NUMBERS and target != tensor.dtype:
            recipe = Cast(tensor.recipe, tensor.dtype, target)
            tensor = Tensor(tensor.name, target, tensor.shape, recipe, tensor.folder)
        after.append(tensor)
    return tuple(after)


def keeping(tensors: Iterable[Tensor]) -> Hints:
    """Return the hints of a model class that keeps these tensors in their dtypes."""
    return {"": ModelHints(saved=tuple(SavedTensor(one.name, one.dtype, n) for n, one in enumerate(tensors)))}


def cast_change(dtype: str, changed: int, of: int) -> Change:
    """Return what a cast to `dtype` did to `changed` of `of` tensors."""
    return Change(
        kind="dtype",
        done=f"cast to {dtype}",
        called="The cast",
        how=f"Each number is that of `tensor.to(torch.{BY_OPTION[dtype].torch})`.",
        then=f"It takes the memory of {dtype} weights.",
        changed=changed,
        of=of,
        keeps_size=False,
        caveat="It did not count how many numbers became infinite in the cast.",
    )


def cast_findings(after: Iterable[Tensor], dtype: str, hints: Hints) -> tuple[Finding, ...]:
    """Return what you should know about a cast to `dtype` that gives the tensors `after`."""
    kept: dict[str, list[str]] = {}
    for tensor in after:
        names = kept.setdefault(tensor.folder, [])
        if tensor.dtype in CASTABLE and tensor.dtype != BY_OPTION[dtype].name:
            names.append(tensor.name)
    findings = []
    for folder, names in kept.items():
        known = hints.get(folder, ModelHints(unknown="there is no config.json."))
        if known.unknown:
            message = f"Every floating-point tensor{f' of {folder}' if folder else ''} is cast to {dtype}, because the "
            message += f"tensors that the model keeps in fp32 are unknown: {known.unknown}"
            hint = "Check whether the code of the model needs weights in fp32. If it does, keep the dtype."
            findings.append(Finding("warning", "cast-without-class", message, hint))
        elif names:
            message = f"{len(names)} tensors are not cast to {dtype}, because {known.class_name} keeps their dtype: "
            findings.append(Finding("info", "kept-dtype", f"{message}{name_some(names)}."))
    return tuple(findings)


def may_overflow(tensors: Iterable[Tensor]) -> bool:
    """Return whether a cast of any of `tensors` may make finite numbers infinite."""
    return any(narrows(tensor.recipe) for tensor in tensors)


def refuse_cast(draft: Draft) -> None:
    """Raise SourceError if the weights are quantized: they cannot be cast."""
    stated = [config for config in map(quantization_of, draft.configs.values()) if config is not None]
    telling = quantized_in(draft.tensors)
    if stated or telling:
        how = f" with {method_of(stated[0])}" if stated else f", as {name_some(telling, 1)} shows"
        hint, remedy = "Keep the dtype, or use the repo that it was quantized from.", Remedy("choose_dtype", "keep")
        if all(can_help(config, draft.tensors) for config in stated or (None,)):
            hint = "Keep the dtype. Or add --dequantize to compute ordinary weights with their scales."
            remedy = Remedy("dequantize")
        what = f"This checkpoint is quantized{how}."
        raise SourceError(f"{what} It cannot be cast, because its numbers mean nothing without scales.", hint, remedy)


def stated_dtypes(
    configs: Mapping[str, str], plan: Plan, written: Mapping[str, bytes]
) -> Iterator[tuple[str, bytes, Finding]]:
    """Yield each config.json that must name a dtype, and a finding: the copy would load in another one."""
    for component in plan.components:
        config = configs.get(component.folder, "")
        document: Any = parsed_json(config or "null")
        is_open = isinstance(document, dict) and "model_type" in document and not {"dtype", "torch_dtype"} & {*document}
        files = sorted((shard for shard in plan.shards if shard.folder == component.folder), key=lambda one: one.file)
        first = sorted(files[0].tensors if files else (), key=lambda tensor: tensor.name)
        if is_open and component.loads_as and component.loads_as != dtype_of_first(first):
            path = component.folder + CONFIG_NAME
            written = json.loads(written.get(path, config)) | {"dtype": component.loads_as}
            message = f"{path} names no dtype, and the original loads in {component.loads_as}. The copy's "
            message += f"{CONFIG_NAME} says so, because its first tensor has another dtype."
            yield path, json_file(written), Finding("info", "dtype-written", message)
