"""Hold what a quantized weight is made of, and find its parts by their names. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from sharding.core.dtypes import CASTABLE
from sharding.core.errors import SourceError
from sharding.core.recipe import Recipe
from sharding.core.values import Tensor
from sharding.recipes.quantized import Codes, Grid, Scaled

Block = tuple[int, int]  # Rows and columns of numbers that share a scale; 0 means all of them.
WHOLE, OF_CHANNEL = (0, 0), (1, 0)
NUMBERS, EXPONENTS = ("F32", "BF16", "F16"), ("U8", "F8_E8M0")  # The dtypes that scales may have.
OF_ORIGIN = "Use the repo that it was quantized from. Its card usually names that repo as the base model."

DROPPED = (
    "activation_scale", "input_scale", "input_scale_ub", "input_zero_point", "input_global_scale", "output_scale",
    "output_zero_point", "scale_input", "qscale_act", "comfy_quant", "weight_format",
)  # fmt: skip
"""Tensors beside a quantized weight that only a kernel reads."""
OF_CACHE = tuple(f".{of}_{end}" for of in ("k", "v", "q", "kv") for end in ("scale", "zero_point"))
"""How the tensors of the cache of keys and values end. No weight stands beside them."""


class Format(NamedTuple):
    """A way to store a quantized weight: which tensors play which part.

    - `words` name it for people.
    - `codes`: how the name of the tensor with the codes ends. In the name of the weight, `weight` is in its place.
    - `dtypes` are those that the codes may have.
    - `needs`: the parts that there must be, each with all names that it may have. The scales come first.
    - `scales` are the dtypes that those may have.
    - `make` returns the weight. It may use the parts in `may` too.

    The name of a part is joined to that of the weight if it starts with "_" or ".", and else stands beside it.
    """

    words: str
    codes: str
    weight: str
    dtypes: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    scales: tuple[str, ...]
    make: Callable[["Weight"], Tensor]
    may: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a configuration says that the weights of a component are quantized. `words` tell people.

    `blocks` are those that FP8 and 8-bit integers may have. `integers` are the bits of packed integers, each with the
    columns that share a scale. With `rounds_to_scale`, products are rounded to the dtype of their scales. `zero` is
    what GPTQ adds to its zeros. `peer` is how transformers gets ordinary weights.
    """

    words: str
    formats: tuple[Format, ...]
    blocks: tuple[Block, ...] = (WHOLE, OF_CHANNEL, (128, 128))
    integers: tuple[tuple[int, int], ...] = ()
    rounds_to_scale: bool = False
    zero: int = 1
    peer: str = "from_pretrained with dequantize=True"


@dataclass(frozen=True, slots=True)
class Weight:
    """The parts of a quantized weight. `notes` are the bytes of those that say how it lies."""

    name: str
    format: Format
    scheme: Scheme
    codes: Tensor
    parts: Mapping[str, Tensor]  # By the first of the names that each may have.
    notes: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def scales(self) -> Tensor:
        """The tensor with the scales."""
        return self.parts[self.format.needs[0][0]]

    def recipe(self, part: str) -> Recipe | None:
        """Return how a part is made, None if it is not there."""
        return self.parts[part].recipe if part in self.parts else None

    def grid(self, shape: tuple[int, ...], *blocks: Block, times: str = "", divides: bool = False) -> Grid:
        """Return the grid of the scales, by the first of `blocks` that fits. `times` is the part with a second scale.

        Raises SourceError if none fits, or if there are several second scales.
        """
        scales, second = self.scales, self.parts.get(times)
        if second and (second.dtype != "F32" or prod(second.shape) != 1):
            raise self.odd()
        rows, columns = (1, 1, *shape)[-2:]
        is_one = prod(scales.shape) == 1
        for block in (WHOLE,) if is_one else blocks:
            height, width = block[0] or max(rows, 1), block[1] or max(columns, 1)
            cells = (*shape[:-2], -(-rows // height), -(-columns // width))
            fits = len(shape) >= 2 and scales.shape in (cells, *([cells[:-1]] if width >= columns else []))
            if is_one or fits:
                codes = Codes({"U8": "2^"}.get(scales.dtype, scales.dtype))
                return Grid(scales.recipe, codes, (height, width), times=self.recipe(times), divides=divides)
        raise self.odd()

    def made(self, recipe: Scaled) -> Tensor:
        """Return the weight."""
        return Tensor(self.name, recipe.dtype, recipe.shape, recipe, self.codes.folder)

    @property
    def rounded(self) -> str:
        """The dtype of products that are rounded to that of their scales."""
        return self.scales.dtype if self.scales.dtype in CASTABLE else "F32"

    def odd(self) -> SourceError:
        """Return the error for parts that do not fit together."""
        codes, scales = self.codes, self.scales
        message = f"{codes.name} is {codes.dtype} {list(codes.shape)}, its scales {scales.dtype} {list(scales.shape)}. "
        message += f"config.json says something else: {self.scheme.words}."
        return SourceError(message, "Download the model again, or ask the person who quantized it.")


def weight_of(
    codes: Tensor, scheme: Scheme, by_name: Mapping[str, Tensor], notes: Mapping[str, bytes]
) -> tuple[Weight, set[str]] | None:
    """Return the weight whose codes a tensor has, and the names of all that belong to it. None if it has no codes."""
    for form in scheme.formats:
        if codes.dtype not in form.dtypes or not codes.name.endswith(form.codes):
            continue
        name = codes.name[: len(codes.name) - len(form.codes)] + form.weight
        module = name[:-6] if name.endswith("weight") else f"{name}_"
        parts: dict[str, Tensor] = {}
        for names in (*form.needs, *((name,) for name in form.may)):
            full = ((name if part[0] in "._" else module) + part for part in names)
            if found := next((by_name[one] for one in full if one in by_name), None):
                parts[names[0]] = found
        if any(names[0] not in parts for names in form.needs) or parts[form.needs[0][0]].dtype not in form.scales:
            continue
        told = {part: notes[tensor.name] for part, tensor in parts.items() if tensor.name in notes}
        used = {*(tensor.name for tensor in parts.values()), *(module + end for end in DROPPED)}
        return Weight(name, form, scheme, codes, parts, told), used
    return None


_HINTS = {
    "bitsandbytes": "Load it with transformers on a GPU, then call model.dequantize() and save_pretrained. Or use the "
    "repo that it was quantized from.",
    "torchao": f"Load it with torchao and call dequantize() of each weight. Or: {OF_ORIGIN}",
    "compressed-tensors": "transformers may be able to dequantize it with CompressedTensorsConfig(dequantize=True). "
    f"Or: {OF_ORIGIN}",
    "fp8": f"transformers may be able to dequantize it with FineGrainedFP8Config(dequantize=True). Or: {OF_ORIGIN}",
}
"""The hint for each method. For all others, such as quanto, HQQ and EXL2, it is `OF_ORIGIN`."""


def refusal(what: str, method: str = "") -> SourceError:
    """Return the error for weights quantized with `what`, a kind of `method`."""
    hint = _HINTS.get(method or what, OF_ORIGIN)
    return SourceError(f"This tool cannot dequantize weights that are quantized with {what}.", hint)
