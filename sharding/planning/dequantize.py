"""Decide which tensors a quantized checkpoint has after it is dequantized. Pure."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from sharding.core.dtypes import CASTABLE
from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.limits import MAX_EXPERT_BYTES
from sharding.core.made import Change
from sharding.core.options import Options
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Content, Finding, Tensor
from sharding.formats import quantization
from sharding.formats.quantization import is_left_over, method_of, quantization_of, quantized_in, without_quantization
from sharding.planning.cast import cast_tensors
from sharding.planning.draft import Draft, draft_of
from sharding.planning.order import by_folder
from sharding.planning.schemes import OF_ORIGIN, Scheme, refusal, scheme_of
from sharding.recipes.quantized import GROUP, GROUP_BYTES, Fp8, Mxfp4

_SCALES = ("F32", "BF16", "F16", "F8_E8M0")


def dequantized(draft: Draft) -> Draft:
    """Return `draft` with ordinary weights, computed from the quantized ones and their scales.

    With the dtype "keep" they are bf16. Otherwise they have the dtype in which they are computed, and are to be cast.

    Names, shapes and order stay as in the source, except for MXFP4: it gives what the class of gpt-oss saves. The
    scales and the quantization settings in each config.json are gone.

    Raises UsageError if the checkpoint is not quantized. Raises SourceError if its method is not supported (the error
    names it), or if the weights do not match their configuration.
    """
    stated = {folder: quantization_of(config) for folder, config in draft.configs.items()}
    schemes = {folder: scheme_of(how) for folder, how in stated.items() if how is not None}
    if not schemes and (telling := quantized_in(draft.tensors)):
        message = f"These weights are quantized, as {name_some(telling, 1)} shows, but no config.json says how."
        raise SourceError(message, "Put their own config.json beside them.")
    if not schemes:
        hint = "Leave out --dequantize. Use --dtype alone to cast it."
        raise UsageError("This checkpoint is not quantized.", hint, Remedy("leave_dequantize_out"))
    components = (
        replace(component, total_parameters=None) if component.folder in schemes else component
        for component in draft.components
    )
    tensors = tuple(_ordinary_tensors(draft.tensors, schemes))
    words = {scheme.words: None for scheme in schemes.values()}
    dtype, made = draft.options.dtype, draft.options.dtype_made
    before, how = {tensor.name: tensor for tensor in draft.tensors}, "; ".join(words)
    change = Change(
        kind="dequantize",
        done=f"dequantized to {made} ({how})" if dtype == "keep" else f"dequantized ({how})",
        called="Dequantizing",
        how=f"Every quantized number is multiplied by its scale and rounded to {made}. The copy is as precise as the "
        "quantized original, not more.",
        then=f"It takes the memory of {made} weights.",
        changed=sum(before.get(tensor.name) != tensor for tensor in tensors),
        of=len(tensors),
        keeps_size=False,
        evidence=how,
        peer="from_pretrained with dequantize=True, then save_pretrained",
    )
    if dtype == "keep":
        computed = iter(cast_tensors([tensor for tensor in tensors if before.get(tensor.name) != tensor], "bf16", {}))
        tensors = tuple(tensor if before.get(tensor.name) == tensor else next(computed) for tensor in tensors)
    after = _without_quantization(draft, schemes)
    return replace(after, tensors=tensors, components=tuple(components), made=(*draft.made, change))


def _without_quantization(draft: Draft, folders: Collection[str]) -> Draft:
    plain = {folder: without_quantization(draft.configs[folder]) for folder in folders}
    configs, reconfigured = {**draft.configs, **plain}, draft.reconfigured.union(folders)
    return replace(draft, configs=configs, reconfigured=reconfigured)


def without_left_over(draft: Draft) -> Draft:
    """Return `draft` without entries in a config.json that say "quantized" of weights that are not.

    A finding names them. If no numbers are computed, they stay.
    """
    inside = by_folder(draft.tensors, draft.configs)
    of = {folder: config for folder, config in draft.configs.items() if is_left_over(config, inside[folder])}
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


@dataclass(frozen=True, slots=True)
class Offer:
    """What dequantizing a checkpoint would give. `words` say how it is quantized; `bytes_after` are in bf16."""

    words: str
    bytes_before: int
    bytes_after: int


def offer(checkpoint: Content) -> Offer | None:
    """Return what dequantizing a checkpoint would give, None if it cannot be dequantized or need not."""
    after = ordinary(checkpoint)
    if after is None or not after.made:
        return None
    return Offer(after.made[-1].evidence, checkpoint.total_bytes, sum(tensor.bytes for tensor in after.tensors))


def ordinary(checkpoint: Content) -> Draft | None:
    """Return what a copy with ordinary weights would hold: as it is, or dequantized to bf16. None if it cannot be."""
    says_so = any(quantization_of(config) is not None for config in checkpoint.configs.values())
    of_bytes = any(tensor.dtype in ("U8", "I8") for tensor in checkpoint.tensors)  # as MXFP4 and others store numbers
    if not says_so or not (of_bytes or any(map(quantization.is_quantized, checkpoint.tensors))):
        return draft_of(checkpoint, Options())
    try:
        return dequantized(draft_of(checkpoint, Options(dequantize=True)))
    except (SourceError, UsageError):
        return None


def offering(checkpoint: Content) -> Content:
    """Return `checkpoint`, with a finding if its weights can be dequantized."""
    offered = offer(checkpoint)
    if offered is None:
        return checkpoint
    message = f"Its weights are quantized with {offered.words}. They take {format_bytes(offered.bytes_before)} now, "
    message += f"and {format_bytes(offered.bytes_after)} as ordinary bf16."
    hint = "Add --dequantize to train the model, or for tools that do not know these weights."
    return replace(checkpoint, findings=(*checkpoint.findings, Finding("info", "quantized", message, hint)))


def _ordinary_tensors(tensors: Sequence[Tensor], schemes: Mapping[str, Scheme]) -> Iterator[Tensor]:
    """Yield `tensors` after they are dequantized. Raises SourceError."""
    by_name = {tensor.name: tensor for tensor in tensors}
    pairs: dict[str, tuple[Tensor, Scheme]] = {}
    used: set[str] = set()
    for tensor in tensors:
        scheme = schemes.get(tensor.folder)
        if not scheme or not (tensor.name.endswith(scheme.packed) if scheme.packed else tensor.dtype == "F8_E4M3"):
            continue
        if scales := by_name.get(tensor.name.removesuffix(scheme.packed) + scheme.scale):
            pairs[tensor.name] = scales, scheme
            # Beside the weight are tensors that only a kernel reads: x.input_scale, x_input_scale.
            stem = tensor.name[:-6] if tensor.name.endswith("weight") else f"{tensor.name}_"
            used |= {scales.name, *(stem + ending for ending in scheme.dropped)}
    if not pairs:
        message = f"config.json says {', '.join(scheme.words for scheme in schemes.values())}, but no weight here is "
        raise SourceError(f"{message}quantized like that.", "Put the weights' own config.json beside them.")
    for tensor in tensors:
        scheme = schemes.get(tensor.folder)
        # Tensors of the cache of keys and values. No weight stands beside those.
        of_cache = tuple(f".{end}" for end in (scheme.dropped if scheme else ()) if end[:2] in ("k_", "v_", "q_"))
        if tensor.name in pairs:
            yield _computed(tensor, *pairs[tensor.name])
        elif tensor.name not in used and not tensor.name.endswith(of_cache):
            halves = (scheme.packed, scheme.scale) if scheme and scheme.packed and tensor.dtype == "U8" else ()
            if scheme and (quantization.is_quantized(tensor) or tensor.name.endswith(halves)):
                hint = f"This tool dequantizes only models with one kind of quantization. {OF_ORIGIN}"
                raise SourceError(f"{tensor.name} is not quantized as config.json says ({scheme.words}).", hint)
            yield tensor


def _computed(packed: Tensor, scales: Tensor, scheme: Scheme) -> Tensor:
    """Return the weight that quantized numbers and their scales give. Raises SourceError."""
    name = packed.name.removesuffix(scheme.packed)
    if scheme.encoding == "fp8":
        # Fine-grained FP8 multiplies in float32, compressed-tensors in the dtype of its scales. The exception is the
        # experts that transformers 5.23 unites: it multiplies those in float32 (`CompressedTensorsDequantize`).
        dtype = scales.dtype if scheme.rounds_to_scale and ".experts." not in packed.name else "F32"
        block = _block_of(packed, scales, scheme)
        product = Fp8(packed.recipe, scales.recipe, scales.dtype, packed.shape, block, dtype)
        return Tensor(name, dtype, packed.shape, product, packed.folder)
    fits = (packed.dtype, scales.dtype) == ("U8", "U8") and (*scales.shape, GROUP_BYTES) == packed.shape
    if not fits or len(packed.shape) != 4 or prod(scales.shape[1:]) > MAX_EXPERT_BYTES:
        raise _odd(packed, scales, scheme)
    experts, rows, groups, _ = packed.shape
    recipe = Mxfp4(packed.recipe, scales.recipe, experts, rows, groups)
    return Tensor(name, "F32", (experts, groups * GROUP, rows), recipe, packed.folder)


def _block_of(packed: Tensor, scales: Tensor, scheme: Scheme) -> tuple[int, int]:
    """Return how many rows and columns of a weight share a scale. Raises SourceError if shapes or dtypes do not fit."""
    if scales.dtype == "U8":
        raise refusal("mxfp8")
    if scales.dtype not in _SCALES or (scheme.rounds_to_scale and scales.dtype not in CASTABLE):
        raise _odd(packed, scales, scheme)
    rows, columns = (1, 1, *packed.shape)[-2:]
    if prod(scales.shape) == 1:
        return max(rows, 1), max(columns, 1)
    for block in scheme.blocks:
        height, width = block[0] or max(rows, 1), block[1] or max(columns, 1)
        grid = (*packed.shape[:-2], -(-rows // height), -(-columns // width))
        if len(packed.shape) >= 2 and scales.shape in (grid, *([grid[:-1]] if width >= columns else [])):
            return height, width
    raise _odd(packed, scales, scheme)


def _odd(packed: Tensor, scales: Tensor, scheme: Scheme) -> SourceError:
    message = f"{packed.name} is {packed.dtype} {list(packed.shape)}, its scales {scales.dtype} {list(scales.shape)}. "
    message += f"config.json says something else: {scheme.words}."
    return SourceError(message, "Download the model again, or ask the person who quantized it.")
