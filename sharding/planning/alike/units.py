"""Bring a checkpoint into *units*: one kind of weight of all experts of a layer, or another tensor. Pure."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sharding.core.errors import Remedy, SourceError
from sharding.core.values import Tensor
from sharding.recipes.laid import Laid, joined, laid_of, stacked

_SINGLE = re.compile(r"(?P<of>.*\bexperts)\.(?P<number>\d+)\.(?P<part>gate_proj|up_proj|down_proj|w[123])\.weight")
_FUSED = re.compile(r"(?P<of>.*\bexperts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)")
_JOINED = re.compile(r"(?P<of>.*\.)gate_up_proj\.weight")
_WRAPPERS = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|base_layer)\.")
"""What torch.compile, FSDP, activation checkpointing and PEFT put into the names of modules."""

PARTS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
"""The matrices of an expert, and what Mixtral and its kin call them."""

_PART_OF = {short: part for part, short in PARTS.items()}


class Unit(NamedTuple):
    """A weight, as it is stored: whole in a tensor, one expert a tensor, or a half of a tensor.

    `shape` is as if all experts were stacked, outputs before inputs. `half` is 0 for gate, 1 for up, None for all of a
    tensor. `is_turned`: inputs come before outputs in the file. `is_single`: each expert has a tensor of its own.
    """

    name: str
    shape: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    half: int | None = None
    is_turned: bool = False
    is_single: bool = False

    @property
    def is_of_experts(self) -> bool:
        """Whether it is a weight of all experts of a layer."""
        return ".*." in self.name

    def laid(self) -> Laid:
        """Return it in one piece: [experts, outputs, inputs], or its own shape. Raises SourceError."""
        if self.is_single:
            return stacked([laid_of(tensor) for tensor in self.tensors])
        whole = laid_of(self.tensors[0])
        whole = whole.turned() if self.is_turned else whole
        if self.half is None:
            return whole
        length = whole.shape[-2] // 2
        return whole.part(-2, self.half * length, (self.half + 1) * length)


FORMS: Mapping[str, Callable[[Unit, Unit], bool]] = {
    "fused": lambda mine, other: mine.is_single and not other.is_single,
    "separated": lambda mine, other: other.is_single and not mine.is_single,
    "turned": lambda mine, other: not (mine.is_single or other.is_single) and mine.is_turned is not other.is_turned,
    "joined": lambda mine, other: not mine.is_single and mine.half is None and other.half is not None,
    "parted": lambda mine, other: not other.is_single and other.half is None and mine.half is not None,
}
"""What becomes of the form of a weight."""
TOLD = ("unwrapped", "prefix", *FORMS)
"""What becomes of names and forms."""


class Slot(NamedTuple):
    """A tensor that is to be made, of which `expert`, and the units that it consists of: one, or gate and up."""

    tensor: Tensor
    units: tuple[str, ...]
    expert: int | None = None
    is_turned: bool = False

    def made_of(self, given: Sequence[Unit]) -> Tensor:
        """Return the tensor, made of units of another checkpoint. Raises SourceError."""
        first = given[0]
        if self.expert is not None and first.is_single:
            return first.tensors[self.expert]._replace(name=self.tensor.name)
        is_all = [unit.half for unit in given] in ([None], [0, 1]) and len({unit.tensors for unit in given}) == 1
        if is_all and self.expert is None and not first.is_single and first.is_turned == self.is_turned:
            return first.tensors[0]._replace(name=self.tensor.name)
        if odd := next((unit for unit in given if unit.tensors[0].dtype != first.tensors[0].dtype), None):
            message = f"{odd.tensors[0].name} and {first.tensors[0].name} have different dtypes, so they cannot be one."
            raise SourceError(message, "Cast them in a copy of its own first.")
        parts = [unit.laid() for unit in given]
        if self.expert is not None:
            parts = [part.row(self.expert) for part in parts]
        laid = joined(parts, -2)
        laid = laid.turned() if self.is_turned else laid
        return Tensor(self.tensor.name, first.tensors[0].dtype, laid.shape, laid.recipe())


def plain_name(name: str) -> str:
    """Return the name of a tensor without what wrappers of a trainer put into it.

    >>> plain_name("_orig_mod.model.layers.0._fsdp_wrapped_module.mlp.up_proj.weight")
    'model.layers.0.mlp.up_proj.weight'
    """
    return _WRAPPERS.sub("", name) if "._" in name or name[:1] == "_" or ".base_layer." in name else name


def slots_of(tensors: Iterable[Tensor]) -> Iterator[Slot]:
    """Yield every tensor with the units that it consists of."""
    tensors = list(tensors)
    fused = dict[str, dict[str, Tensor]]()
    for tensor in tensors:
        if len(tensor.shape) == 3 and (match := _FUSED.fullmatch(in_memory(tensor.name))):
            fused.setdefault(match["of"], {})[match["part"]] = tensor
    for tensor in tensors:
        name = in_memory(tensor.name)
        if len(tensor.shape) == 2 and ".experts." in name and (match := _SINGLE.fullmatch(name)):
            part = _PART_OF.get(match["part"], match["part"])
            yield Slot(tensor, (f"{match['of']}.*.{part}",), int(match["number"]))
        elif len(tensor.shape) == 3 and (match := _FUSED.fullmatch(name)):
            turned = _are_turned(fused[match["of"]])
            parts = ("gate_proj", "up_proj") if match["part"] == "gate_up_proj" else (match["part"],)
            known = turned is not None
            units = tuple(f"{match['of']}.*.{part}" for part in parts) if known else (name,)
            yield Slot(tensor, units, None, bool(turned))
        elif len(tensor.shape) == 2 and (match := _JOINED.fullmatch(name)):
            yield Slot(tensor, tuple(f"{match['of']}{part}.weight" for part in ("gate_proj", "up_proj")))
        else:
            yield Slot(tensor, (name,))


def units_of(slots: Iterable[Slot]) -> dict[str, Unit]:
    """Return the units of a checkpoint by name. Raises SourceError for two of one name, and experts that do not fit."""
    single = dict[str, dict[int, Tensor]]()
    units, seen = dict[str, Unit](), dict[tuple[str, int | None], Tensor]()
    for slot in slots:
        tensor = slot.tensor
        for name in slot.units:
            if (other := seen.setdefault((name, slot.expert), tensor)) is tensor:
                continue
            message = f"{other.name} and {tensor.name} are one weight under two names."
            raise SourceError(message, "Leave one of them out, with --drop in a copy of its own.", Remedy("by_hand"))
        if slot.expert is not None:
            single.setdefault(slot.units[0], {})[slot.expert] = tensor
            continue
        shape = (*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2]) if slot.is_turned else tensor.shape
        has_halves = len(slot.units) > 1
        shape = (*shape[:-2], shape[-2] // 2, shape[-1]) if has_halves else shape
        for half, name in enumerate(slot.units):
            units[name] = Unit(name, shape, (tensor,), half if has_halves else None, slot.is_turned)
    for name, experts in single.items():
        absent = next((number for number in range(len(experts)) if number not in experts), None)
        first = experts[min(experts)]
        if absent is not None:
            message = f"{first.name} is there, but the same weight of expert {absent} is missing."
            raise SourceError(message, "It looks like a half-saved checkpoint. Save or download it again.")
        ordered = tuple(experts[number] for number in range(len(experts)))
        if odd := next((one for one in ordered if (one.shape, one.dtype) != (first.shape, first.dtype)), None):
            message = f"{odd.name} is {odd.dtype} {list(odd.shape)}, but {first.name} is {first.dtype} "
            raise SourceError(f"{message}{list(first.shape)}.", "The experts of a layer have one shape and dtype.")
        units[name] = Unit(name, (len(ordered), *first.shape), ordered, is_single=True)
    return units


def in_memory(name: str) -> str:
    """Return the name of a tensor without wrappers, and as transformers 5 calls Mixtral's blocks and BERT's norms."""
    name = plain_name(name)
    if "LayerNorm." in name:  # as BERT was published
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return name.replace(".block_sparse_moe.", ".mlp.") if ".block_sparse_moe." in name else name


def _are_turned(fused: Mapping[str, Tensor]) -> bool | None:
    """Return whether fused experts have inputs before outputs, as their shapes tell; None if they do not."""
    down, first = fused.get("down_proj"), fused.get("gate_up_proj") or fused.get("up_proj")
    if down is None or first is None:
        return None
    times = 2 if "gate_up_proj" in fused else 1
    if (first.shape[1], first.shape[2]) == (times * down.shape[2], down.shape[1]):
        return False
    return True if (first.shape[2], first.shape[1]) == (times * down.shape[1], down.shape[2]) else None
