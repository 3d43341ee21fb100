"""Decide which tensors a quantized checkpoint has once its weights are ordinary ones again. Pure.

The weights that are computed lie beyond the end of their file, where `transfer.dequantize_source` reads them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from sharding.core.computed import Computed, Numbers
from sharding.core.errors import SourceError, UsageError
from sharding.core.gathered import Box, Gathered, in_one_piece, strides_of
from sharding.core.options import Options
from sharding.core.text import format_bytes, name_some
from sharding.core.values import Checkpoint, Finding, TensorEntry, folder_of
from sharding.formats.dtypes import CASTABLE, tensor_bytes
from sharding.formats.quantization import is_quantized, may_be_quantized, quantization_of, without_quantization
from sharding.planning.cast import cast_tensors
from sharding.planning.recipe import Recipe, recipe_of, refusal

MOST_ROWS = 65_536
"""Of a matrix in FP4, which is transposed: 32 of its columns are computed at a time. The largest known has 5,760."""

_SCALES = ("F32", "BF16", "F16", "F8_E8M0")
_GROUP = 32
_GROUP_BYTES = 16


def dequantized(checkpoint: Checkpoint, options: Options) -> Checkpoint:
    """Return `checkpoint` as it is once its weights are computed, or as it is where `options` do not ask for that.

    Names, shapes and order are those of the source, but for MXFP4, which gives what the class of gpt-oss saves; scales
    are gone, and what the configurations say of quantization. Raises UsageError where nothing is quantized, SourceError
    for another method, named, and for weights that are not as their configuration says.
    """
    if not options.dequantize:
        return checkpoint
    schemes = {folder: quantization_of(config) for folder, config in checkpoint.configs.items()}
    recipes = {folder: recipe_of(scheme) for folder, scheme in schemes.items() if scheme is not None}
    if not recipes:
        _refuse_unknown(checkpoint)
    result = _Ordinary(checkpoint, recipes)
    configs = {
        folder: without_quantization(config) if folder in recipes else config
        for folder, config in checkpoint.configs.items()
    }
    components = [
        replace(component, total_parameters=None) if component.folder in recipes else component
        for component in checkpoint.components
    ]
    return replace(
        checkpoint,
        tensors=tuple(result.tensors),
        components=tuple(components),
        gathered=(*checkpoint.gathered, *result.gathered),
        computed=tuple(result.computed),
        configs=configs,
        dequantized="; ".join(dict.fromkeys(recipe.words for recipe in recipes.values())),
    )


@dataclass(frozen=True, slots=True)
class Offer:
    """What dequantizing would make of a checkpoint: how it is quantized, and its bytes before and after, in bf16."""

    words: str
    bytes_before: int
    bytes_after: int


def offer(checkpoint: Checkpoint) -> Offer | None:
    """Return what dequantizing would make of a checkpoint, None where it is not for it."""
    after = ordinary(checkpoint)
    return Offer(after.dequantized, checkpoint.total_bytes, after.total_bytes) if after and after.dequantized else None


def ordinary(checkpoint: Checkpoint) -> Checkpoint | None:
    """Return a checkpoint with ordinary weights: as it is, or dequantized to bf16; None where it is not for that."""
    says_so = any(quantization_of(config) is not None for config in checkpoint.configs.values())
    if not says_so or not any(map(may_be_quantized, checkpoint.tensors)):
        return checkpoint
    try:
        after = dequantized(checkpoint, Options(dequantize=True))
    except (SourceError, UsageError):
        return None
    return replace(after, tensors=cast_tensors(after.tensors, "bf16", {}))


def offering(checkpoint: Checkpoint) -> Checkpoint:
    """Return `checkpoint` with a finding that says so where its weights can be dequantized."""
    offered = offer(checkpoint)
    if offered is None:
        return checkpoint
    message = (
        f"Its weights are quantized with {offered.words}: {format_bytes(offered.bytes_before)}, "
        f"or {format_bytes(offered.bytes_after)} once they are ordinary bf16 again."
    )
    hint = "--dequantize computes them for tools that know no such weights, or to train them."
    return replace(checkpoint, findings=(*checkpoint.findings, Finding("info", "quantized", message, hint)))


def _refuse_unknown(checkpoint: Checkpoint) -> None:
    """Raise what is due where no configuration says that anything is quantized."""
    if telling := [tensor.name for tensor in checkpoint.tensors if is_quantized(tensor)]:
        raise SourceError(
            f"These weights are quantized, as {name_some(telling, 1)} tells, and no config.json says how.",
            "Put the config.json beside them that belongs to them.",
        )
    raise UsageError("This checkpoint is not quantized.", "Leave out --dequantize; --dtype alone casts it.")


class _Ordinary:
    """The tensors of a checkpoint after all, and what of them is computed and gathered."""

    def __init__(self, checkpoint: Checkpoint, recipes: Mapping[str, Recipe]) -> None:
        self.tensors: list[TensorEntry] = []
        self.computed: list[Computed] = []
        self.gathered: list[Gathered] = []
        self._there = {(part.file, part.start_byte): part for part in checkpoint.gathered}
        self._ends = {file.path: file.bytes for file in checkpoint.weight_files}
        for part in checkpoint.gathered:
            self._ends[part.file] = max(self._ends.get(part.file, 0), part.end_byte)
        by_name = {tensor.name: tensor for tensor in checkpoint.tensors}
        kinds: list[tuple[TensorEntry, TensorEntry, Recipe] | TensorEntry] = []
        used: set[str] = set()
        for tensor in checkpoint.tensors:
            recipe = recipes.get(folder_of(tensor.file))
            scales = by_name.get(_scales_of(tensor.name, recipe)) if recipe and _is_weight(tensor, recipe) else None
            if recipe is None or scales is None:
                kinds.append(tensor)
                continue
            kinds.append((tensor, scales, recipe))
            used |= {scales.name, *_beside(tensor.name, recipe)}
        # What is gathered lies before what is computed: it is read through the view below.
        pairs = [kind for kind in kinds if not isinstance(kind, TensorEntry)]
        if not pairs:
            words = ", ".join(recipe.words for recipe in recipes.values())
            raise SourceError(
                f"config.json says {words}, and no weight here is.", "Put the config.json beside it that belongs to it."
            )
        laid = {packed.name: self._numbers(packed, scales, recipe) for packed, scales, recipe in pairs}
        for kind in kinds:
            if not isinstance(kind, TensorEntry):
                packed, _, recipe = kind
                self._compute(packed, *laid[packed.name], recipe)
            elif kind.name not in used:
                rule = recipes.get(folder_of(kind.file))
                if rule and _is_dropped(kind.name, rule):
                    continue
                if rule and (is_quantized(kind) or _is_half(kind, rule)):
                    raise SourceError(
                        f"{kind.name} is not quantized as config.json says, which is {rule.words}.",
                        "Weights that are quantized in several ways are not dequantized here.",
                    )
                self.tensors.append(kind)

    def _numbers(self, packed: TensorEntry, scales: TensorEntry, recipe: Recipe) -> tuple[Numbers, Numbers]:
        """Return where the numbers of a weight and its scales lie in order. Raises SourceError."""
        if recipe.encoding == "fp8":
            return _numbers(packed), _numbers(scales)
        expected = packed.shape[:-1]
        if (
            (packed.dtype, scales.dtype) != ("U8", "U8")
            or len(packed.shape) != 4
            or packed.shape[-1] != _GROUP_BYTES
            or scales.shape != expected
            or packed.shape[1] > MOST_ROWS
        ):
            raise _odd(packed, scales, recipe)
        return self._transposed(packed), self._transposed(scales)

    def _transposed(self, tensor: TensorEntry) -> Numbers:
        """Return where a tensor of bytes (experts, rows, groups, …) is (experts, groups, rows, …), gathered so."""
        experts, rows, groups, *rest = tensor.shape
        known = self._there.get((tensor.file, tensor.start_byte))
        boxes = known.boxes if known else in_one_piece(tensor.file, tensor.start_byte, tensor.shape, _strides(tensor))
        start = at = self._ends[tensor.file]
        size = rows * groups * prod(rest)
        for expert in range(experts):  # each by itself, so that what is laid in order at a time is small
            self.gathered.append(
                Gathered(tensor.file, at, at + size, 1, (groups, rows, *rest), tuple(_of_expert(boxes, expert)))
            )
            at += size
        self._ends[tensor.file] = at
        return Numbers(tensor.file, start, tensor.dtype, (experts, groups, rows, *rest))

    def _compute(self, packed: TensorEntry, numbers: Numbers, scales: Numbers, recipe: Recipe) -> None:
        shape, dtype, block = packed.shape, "F32", (1, 1)
        if recipe.encoding == "fp4":
            experts, groups, rows, _ = numbers.shape
            shape = (experts, groups * _GROUP, rows)
        else:
            dtype, block = _product_dtype(packed, scales, recipe), _block_of(packed, scales, recipe)
        name = packed.name.removesuffix(recipe.packed)
        start = self._ends[packed.file]
        end = self._ends[packed.file] = start + tensor_bytes(dtype, shape)
        self.tensors.append(TensorEntry(name, dtype, shape, packed.file, start, end))
        self.computed.append(Computed(packed.file, start, end, dtype, shape, recipe.encoding, numbers, scales, block))


def _is_weight(tensor: TensorEntry, recipe: Recipe) -> bool:
    return tensor.name.endswith(recipe.packed) if recipe.packed else tensor.dtype == "F8_E4M3"


def _is_half(tensor: TensorEntry, recipe: Recipe) -> bool:
    """Return whether a tensor is packed numbers without scales, or scales without numbers."""
    return bool(recipe.packed) and tensor.dtype == "U8" and tensor.name.endswith((recipe.packed, recipe.scale))


def _scales_of(name: str, recipe: Recipe) -> str:
    return name.removesuffix(recipe.packed) + recipe.scale


def _beside(name: str, recipe: Recipe) -> Iterator[str]:
    """Yield the names that what a kernel reads beside a weight would have: x.input_scale, x_input_scale."""
    stem = name.removesuffix("weight")
    for ending in recipe.dropped:
        yield f"{stem}{ending}" if stem != name else f"{name}_{ending}"


def _is_dropped(name: str, recipe: Recipe) -> bool:
    """Return whether a tensor is of the cache of keys and values, which no weight stands beside."""
    return name.endswith(tuple(f".{ending}" for ending in recipe.dropped if ending[:2] in ("k_", "v_", "q_")))


def _numbers(tensor: TensorEntry) -> Numbers:
    return Numbers(tensor.file, tensor.start_byte, tensor.dtype, tensor.shape)


def _strides(tensor: TensorEntry) -> tuple[int, ...]:
    return strides_of(tensor.shape)


def _of_expert(boxes: tuple[Box, ...], expert: int) -> Iterator[Box]:
    """Yield what `boxes` hold of one expert, the two dimensions after that exchanged."""
    for box in boxes:
        inside = expert - box.offsets[0]
        if 0 <= inside < box.shape[0]:
            moved = [(of[2], of[1], *of[3:]) for of in (box.offsets, box.shape, box.strides)]
            yield Box(box.file, box.origin + inside * box.strides[0], *moved)


def _product_dtype(packed: TensorEntry, scales: Numbers, recipe: Recipe) -> str:
    """Return the dtype that products are rounded to before they get that of the copy.

    Fine-grained FP8 is multiplied in float32. compressed-tensors multiplies in the dtype of its scales, but for the
    experts that transformers 5.23 unites, which are multiplied in float32 (`CompressedTensorsDequantize`).
    """
    return scales.dtype if recipe.rounds_to_scale and ".experts." not in packed.name else "F32"


def _block_of(packed: TensorEntry, scales: Numbers, recipe: Recipe) -> tuple[int, int]:
    """Return how many rows and columns of a weight share a scale. Raises SourceError where they do not fit."""
    if scales.dtype == "U8":
        raise refusal("mxfp8")
    if scales.dtype not in _SCALES or (recipe.rounds_to_scale and scales.dtype not in CASTABLE):
        raise _odd(packed, scales, recipe)
    rows, columns = (1, 1, *packed.shape)[-2:]
    if prod(scales.shape) == 1:
        return max(rows, 1), max(columns, 1)
    for block in recipe.blocks:
        height, width = block[0] or max(rows, 1), block[1] or max(columns, 1)
        grid = (*packed.shape[:-2], -(-rows // height), -(-columns // width))
        if len(packed.shape) >= 2 and scales.shape in (grid, *([grid[:-1]] if width >= columns else [])):
            return height, width
    raise _odd(packed, scales, recipe)


def _odd(packed: TensorEntry, scales: TensorEntry | Numbers, recipe: Recipe) -> SourceError:
    what_is = f"{packed.name} is {packed.dtype} {list(packed.shape)} and its scales {scales.dtype} {list(scales.shape)}"
    return SourceError(
        f"{what_is}, which is not what config.json says: {recipe.words}.", "Download it again, or ask who quantized it."
    )
