"""Decide which tensors a quantized checkpoint has after it is dequantized. Pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.made import Change
from sharding.core.options import Options
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Component, Content, Finding, Tensor
from sharding.formats import quantization
from sharding.formats.quantization import OF_COMFY, method_of, quantization_of, quantized_in, without_quantization
from sharding.planning.cast import cast_tensors
from sharding.planning.draft import Draft, draft_of
from sharding.planning.order import by_folder
from sharding.planning.quantizers.bitsandbytes import OF_4_BITS, OF_8_BITS, bitsandbytes
from sharding.planning.quantizers.compressed import compressed
from sharding.planning.quantizers.floats import COMFY, FP8, GPT_OSS, NVFP4, OF_MODELOPT, fine_grained, modelopt
from sharding.planning.quantizers.format import OF_CACHE, OF_ORIGIN, Scheme, Weight, refusal, weight_of
from sharding.planning.quantizers.transposed import awq, gptq

_METHODS: Mapping[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "mxfp4": lambda _: Scheme("mxfp4, one scale for each 32 numbers", (GPT_OSS,)),
    "fp8": fine_grained,
    "mxfp8": lambda stated: fine_grained({**stated, "weight_block_size": (1, 32)}),
    "compressed-tensors": compressed,
    "modelopt": modelopt,
    "modelopt_fp4": modelopt,
    "modelopt_mixed": modelopt,
    "bitsandbytes": bitsandbytes,
    "gptq": gptq,
    "awq": awq,
}
_UNSTATED = Scheme("", (FP8, OF_MODELOPT, NVFP4, OF_4_BITS, OF_8_BITS))
"""What the names and dtypes of the tensors alone explain. ModelOpt's own file says no more either."""
_COMFY_KEY = "_quantization_metadata"  # ComfyUI's, in the metadata of a file.


def dequantized(draft: Draft) -> Draft:
    """Return `draft` with ordinary weights, computed from the quantized ones and their scales.

    With the dtype "keep" or an adapter they are bf16. Otherwise they have the dtype in which they are computed, and are
    to be cast.

    Names, shapes and order stay as in the source, except for MXFP4: it gives what the class of gpt-oss saves. The
    scales and the quantization settings in each config.json are gone.

    Raises UsageError if the checkpoint is not quantized. Raises SourceError if its method is not supported (the error
    names it), or if the weights do not match their configuration.
    """
    schemes = _schemes(draft)
    if not schemes:
        hint = "Leave out --dequantize. Use --dtype alone to cast it."
        raise UsageError("This checkpoint is not quantized.", hint, Remedy("leave_dequantize_out"))
    components = tuple(
        replace(one, metadata={key: value for key, value in one.metadata.items() if key != _COMFY_KEY})
        for one in draft.components
    )
    weights, used = _weights(draft.tensors, schemes, draft.content.notes)
    computed = {name: weight.format.make(weight) for name, weight in weights.items()}
    words = {weight.scheme.words or weight.format.words: None for weight in weights.values()}
    # A merge into what a job without it would have written.
    is_bf16 = draft.options.dtype == "keep" or draft.content.of("adapter") is not None
    made = "bf16" if is_bf16 else draft.options.dtype
    if is_bf16:
        computed = dict(zip(computed, cast_tensors(computed.values(), made, {}), strict=True))
    tensors, how = tuple(_ordinary_tensors(draft.tensors, schemes, computed, used)), "; ".join(words)
    change = Change(
        kind="dequantize",
        done=f"dequantized to {made} ({how})" if is_bf16 else f"dequantized ({how})",
        called="Dequantizing",
        how=f"Every quantized number is multiplied by its scale and rounded to {made}. The copy is as precise as the "
        "quantized original, not more.",
        then=f"It takes the memory of {made} weights.",
        changed=len(computed),
        of=len(tensors),
        keeps_size=False,
        evidence=how,
        peer=f"{next(iter(weights.values())).scheme.peer}, then save_pretrained",
    )
    after = _without_quantization(draft, schemes)
    return replace(after, tensors=tensors, components=components, made=(*draft.made, change))


def _without_quantization(draft: Draft, folders: Collection[str]) -> Draft:
    plain = {folder: without_quantization(draft.configs[folder]) for folder in folders if folder in draft.configs}
    configs, reconfigured = {**draft.configs, **plain}, draft.reconfigured.union(folders)
    return replace(draft, configs=configs, reconfigured=reconfigured)


def without_left_over(draft: Draft) -> Draft:
    """Return `draft` without entries of config.json that wrongly say "quantized", unless no numbers are computed."""
    inside = by_folder(draft.tensors, draft.configs)
    of = {place: text for place, text in draft.configs.items() if quantization.is_left_over(text, inside[place])}
    if not of:
        return draft
    methods = dict.fromkeys(method_of(quantization_of(config) or {}) for config in of.values())
    message = f"config.json says that the weights are quantized with {name_some(list(methods))}, but they are not."
    hint = "With --dtype or --dequantize, the copy's does not say it."
    if not draft.options.computing:
        finding = Finding("warning", "quantization-left-over", f"{message} Loaders may refuse them.", hint)
        return replace(draft, findings=(*draft.findings, finding))
    finding = Finding("info", "quantization-dropped", f"{message} The copy's does not say it any more.")
    # The weights are ordinary ones already.
    options = replace(draft.options, dequantize=False)
    return _without_quantization(replace(draft, findings=(*draft.findings, finding), options=options), of)


def offer(checkpoint: Content) -> tuple[str, str, str] | None:
    """Return method, size now and in bf16, such as ("fp8", "1.0 MB", "2.0 MB"); None if it is not to be dequantized."""
    after = ordinary(checkpoint)
    if after is None or not after.made:
        return None
    size = sum(tensor.bytes for tensor in after.tensors)
    return after.made[-1].evidence, format_bytes(checkpoint.total_bytes), format_bytes(size)


def ordinary(checkpoint: Content) -> Draft | None:
    """Return what a copy with ordinary weights would hold: as it is, or dequantized to bf16. None if it cannot be."""
    if checkpoint.format == "gguf":
        return None
    says_so = any(quantization_of(config) is not None for config in checkpoint.configs.values())
    is_plain = {tensor.dtype for tensor in checkpoint.tensors} <= quantization.PLAIN
    if is_plain or not (says_so or quantized_in(checkpoint.tensors)):
        return draft_of(checkpoint, Options())
    try:
        return dequantized(draft_of(checkpoint, Options(dequantize=True)))
    except (SourceError, UsageError):
        return None


def offering(checkpoint: Content) -> Content:
    """Return `checkpoint`, with a finding if its weights can be dequantized."""
    if (offered := offer(checkpoint)) is None:
        return checkpoint
    how, before, after = offered
    message = f"Its weights are quantized with {how}. They take {before} now, and {after} as ordinary bf16."
    hint = "Add --dequantize to train the model, or for tools that do not know these weights."
    return replace(checkpoint, findings=(*checkpoint.findings, Finding("info", "quantized", message, hint)))


def can_help(quantization: Mapping[str, Any] | None, tensors: Sequence[Tensor]) -> bool:
    """Return whether quantized weights among `tensors`, which a config.json explains or not, can be dequantized."""
    if quantization is None:
        scheme, by_name = _scheme_without(Component(), tensors), {tensor.name: tensor for tensor in tensors}
        return any(weight_of(tensor, scheme, by_name, {}) for tensor in tensors)
    try:
        _scheme_of(quantization)
    except SourceError:
        return False
    return True


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


def _schemes(draft: Draft) -> dict[str, Scheme]:
    stated = {folder: quantization_of(config) for folder, config in draft.configs.items()}
    schemes = {folder: _scheme_of(how) for folder, how in stated.items() if how is not None}
    for component in draft.components:
        if component.folder not in schemes:
            inside = [tensor for tensor in draft.tensors if tensor.folder == component.folder]
            if quantized_in(inside):
                schemes[component.folder] = _scheme_without(component, inside)
    return schemes


def _scheme_of(quantization: Mapping[str, Any]) -> Scheme:
    method = method_of(quantization)
    if method not in _METHODS:
        raise refusal(method)
    return _METHODS[method](quantization)


def _scheme_without(component: Component, tensors: Iterable[Tensor]) -> Scheme:
    is_comfy = _COMFY_KEY in component.metadata
    return COMFY if is_comfy or any(OF_COMFY.search(tensor.name) for tensor in tensors) else _UNSTATED


def _weights(
    tensors: Sequence[Tensor], schemes: Mapping[str, Scheme], notes: Mapping[str, bytes]
) -> tuple[dict[str, Weight], set[str]]:
    by_name = {tensor.name: tensor for tensor in tensors}
    weights: dict[str, Weight] = {}
    used: set[str] = set()
    for tensor in tensors:
        scheme = schemes.get(tensor.folder)
        if scheme and (found := weight_of(tensor, scheme, by_name, notes)):
            weights[tensor.name] = found[0]
            used |= found[1]
    if not weights:
        for scheme in schemes.values():
            if not scheme.words:
                raise _other_kind(name_some(quantized_in(tensors), 1), scheme)
        message = f"config.json says {', '.join(scheme.words for scheme in schemes.values())}, but no weight here is "
        raise SourceError(f"{message}quantized like that.", "Put the weights' own config.json beside them.")
    return weights, used


def _ordinary_tensors(
    tensors: Sequence[Tensor], schemes: Mapping[str, Scheme], computed: Mapping[str, Tensor], used: Collection[str]
) -> Iterator[Tensor]:
    for tensor in tensors:
        scheme = schemes.get(tensor.folder)
        if tensor.name in computed:
            yield computed[tensor.name]
        elif not scheme or not (tensor.name in used or tensor.name.endswith(OF_CACHE) or OF_COMFY.search(tensor.name)):
            if scheme and _is_part(tensor):
                raise _other_kind(tensor.name, scheme)
            yield tensor


def _other_kind(name: str, scheme: Scheme) -> SourceError:
    if not scheme.words:
        message = f"These weights are quantized, as {name} shows, but no config.json says how."
        return SourceError(message, "Put their own config.json beside them.")
    hint = f"This tool dequantizes only models whose weights are all of a kind that it knows. {OF_ORIGIN}"
    return SourceError(f"{name} is not quantized as config.json says ({scheme.words}).", hint)


def _is_part(tensor: Tensor) -> bool:
    is_scale = tensor.dtype == "U8" and tensor.name.endswith("_scales")
    # AWQ and ModelOpt scale activations with the last two.
    is_scale = is_scale or tensor.name.endswith((".scales", "pre_quant_scale"))
    return is_scale or quantization.is_quantized(tensor) or quantization.holds_quantized(tensor)
