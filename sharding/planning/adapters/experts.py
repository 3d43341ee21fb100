"""Decide how the updates of an adapter change the experts of a model, in one tensor or stored one by one. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations
from math import prod
from typing import Any

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_TENSORS
from sharding.core.recipe import Recipe
from sharding.core.values import Tensor
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.formats.peft_keys import PREFIX, Kind
from sharding.model_class.experts import TRANSPOSED
from sharding.planning.adapters.merging import SAVE_AGAIN, Merging, refuse_large, refuse_unusable
from sharding.recipes.laid import Box, Laid
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.stored import Stored, place_of

IN_FUSED = re.compile(r"\.experts\.(?P<number>\d+)\.(?P<part>gate_proj|up_proj|down_proj|w1|w2|w3)(?=$|\.)")
"""One of the experts that transformers 5 holds in one tensor."""

_PARTS = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}
"""What the fused tensors are made of, in order, by both sets of names."""


def refuse_some_experts(modules: Iterable[str], model: Mapping[str, Any]) -> None:
    """Raise SourceError unless all experts of a layer have the same updates, which PEFT joins to one."""
    containers: dict[str, set[tuple[int, str]]] = {}
    for module in modules:
        if match := IN_FUSED.search(module):
            containers.setdefault(module[: match.start()], set()).add((int(match["number"]), match["part"]))
    counts = (model.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    stated = next((number for number in counts if isinstance(number, int)), 0)
    for container, known in containers.items():
        parts = {part for _, part in known}
        parts |= {other for pair in _PARTS["gate_up_proj"] if parts & set(pair) for other in pair}
        most = max(min(stated, MAX_TENSORS), 1 + max(number for number, _ in known))
        missing = ((number, part) for number in range(most) for part in sorted(parts) if (number, part) not in known)
        if first := next(missing, None):
            number, part = first
            other, one = min(known)
            name = f"{PREFIX}{container}.experts.{number}.{part}.lora_A.weight"
            message = f"The adapter changes {one} of expert {other}, but {name} is missing. PEFT merges all experts at "
            raise SourceError(f"{message}once.", "Save the adapter again with all of them.")


class Experts:
    """The updates of experts, collected until all of a layer are known."""

    def __init__(self, work: Merging) -> None:
        self._work = work
        self._fused: dict[str, list[tuple[str, Tensor, Tensor]]] = {}
        self._single: dict[str, list[Update]] = {}
        self._found: dict[tuple[str, str], list[list[Tensor]]] = {}

    def take(self, module: str, kinds: Mapping[Kind, Tensor]) -> bool:
        """Take the update of `module`; return False if it belongs to no experts."""
        a, b = kinds.get("a"), kinds.get("b")
        if a is None or b is None or kinds.keys() - {"a", "b"}:
            return False
        if match := IN_FUSED.search(f"{module}."):
            return self._take_one(module[: match.start()] + ".experts", int(match["number"]), match["part"], a, b)
        container = re.sub(r"(?:\.base_layer)+$", "", module)
        if not self._parameters(container):
            return False
        _refuse_unless_matrices(a, b)
        self._fused.setdefault(container, []).append((module, a, b))
        return True

    def _take_one(self, container: str, number: int, part: str, a: Tensor, b: Tensor) -> bool:
        """Take the update of one expert, from an adapter of transformers 4, if the base has all in one tensor."""
        leaf = "down_proj" if part in ("down_proj", "w2") else "gate_up_proj"
        stored = self._stored(container, leaf)
        if not stored or len(stored.shape) != 3:
            return False
        _refuse_unless_matrices(a, b)
        rank, scale = self._work.rank_and_scale(f"{container}.{number}.{part}", a)
        half = stored.shape[1] // (2 if leaf == "gate_up_proj" else 1)
        first = number * stored.shape[1] + (half if part in ("up_proj", "w3") else 0)
        if (b.shape, a.shape[1:]) != ((half, rank), stored.shape[2:]) or not number < stored.shape[0]:
            raise self._work.other_shape(stored, a, b)
        update = Update(a.recipe, b.recipe, a.dtype, b.dtype, rank, scale, first, first + half)
        self._single.setdefault(stored.name, []).append(update)
        return True

    def recipes(self) -> Iterator[tuple[str, LowRank]]:
        """Yield the name and recipe of each stored tensor that changes. Raises SourceError if shapes do not fit."""
        for container, updates in self._fused.items():
            yield from self._of_fused(container, updates)
        for name, changes in self._single.items():
            changes.sort(key=lambda update: update.first_row)
            yield name, self._twice(self._work.tensors[name], tuple(changes), is_stacked=True)

    def _parameters(self, container: str) -> list[str]:
        """Return the tensors of a container that the configuration targets, in their order in the model."""
        leaves = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")  # as models have them
        targeted = (leaf for leaf in leaves if self._work.config.targets_parameter(f"{container}.{leaf}"))
        return [leaf for leaf in targeted if self._stored(container, leaf) or self._one_by_one(container, leaf)]

    def _stored(self, container: str, leaf: str) -> Tensor | None:
        name = self._work.names.find(f"{container}.{leaf}")
        stored = self._work.tensors[name] if name else None
        return stored if stored and len(stored.shape) in (2, 3) and prod(stored.shape) else None

    def _one_by_one(self, container: str, leaf: str) -> list[list[Tensor]]:
        """Return the tensors of each expert that make up a fused tensor, or [] if they are not stored like that."""
        if (key := (container, leaf)) in self._found:
            return self._found[key]
        found: list[list[Tensor]] = []
        for parts in _PARTS.get(leaf, ()):
            for place in (container, container.replace(".mlp.", ".block_sparse_moe.")):
                experts: list[list[Tensor]] = []
                while all(names := [self._work.names.find(f"{place}.{len(experts)}.{part}.weight") for part in parts]):
                    experts.append([self._work.tensors[name] for name in names if name])
                shapes = {tuple(part.shape for part in expert) for expert in experts}
                if not found and len(shapes) == 1 and all(len(shape) == 2 for shape in next(iter(shapes))):
                    found = experts
        return self._found.setdefault(key, found)

    def _of_fused(self, container: str, updates: list[tuple[str, Tensor, Tensor]]) -> Iterator[tuple[str, LowRank]]:
        leaves = self._parameters(container)
        # The innermost of nested updates belongs to the first parameter.
        updates = sorted(updates, key=lambda update: -update[0].count(".base_layer"))
        fitting = [
            order
            for order in permutations(leaves, len(updates))
            if all(self._fits(container, leaf, a, b) for leaf, (_, a, b) in zip(order, updates, strict=True))
        ]
        if not fitting:
            _, a, b = updates[0]
            shapes = [f"{container}.{leaf} is {self._shape(container, leaf)}" for leaf in leaves]
            message = f"{a.name} is {list(a.shape)} and its partner {list(b.shape)}. That fits no tensor of the base: "
            raise SourceError(f"{message}{'; '.join(shapes)}.", self._work.hint)
        for leaf, (_, a, b) in zip(fitting[0], updates, strict=True):
            yield from self._of_all(container, leaf, a, b)

    def _of_all(self, container: str, leaf: str, a: Tensor, b: Tensor) -> Iterator[tuple[str, LowRank]]:
        """Yield the recipes for an update of all experts, which are stored in one tensor or one by one."""
        shape = self._shape(container, leaf)
        count = shape[0] if len(shape) == 3 else 1
        rank, scale = self._work.rank_and_scale(f"{container}.{leaf}", a, count)
        grouped = count > 1 and rank > 1 and self._work.config.groups_by_expert(leaf)
        if stored := self._stored(container, leaf):
            ends, (outputs, inputs) = (b.shape[0], a.shape[1]), shape[-2:]
            swapped = ends != (outputs, inputs) or (outputs == inputs and self._work.type in TRANSPOSED)
            pair = a.recipe, b.recipe, a.dtype, b.dtype, rank, scale
            update = Update(*pair, 0, prod(shape[:-1]), count, swapped, grouped)
            yield stored.name, self._twice(stored, (update,), is_stacked=len(shape) == 3)
            return
        rows_of_a, size = _in_one_piece(a), rank * (a.bytes // a.shape[0])
        for number, parts in enumerate(self._one_by_one(container, leaf)):
            start, first = rows_of_a.start_byte + number * size, 0
            of_a = rows_of_a._replace(start_byte=start, end_byte=start + size)
            columns = (number * rank, 1) if grouped else (number, count)
            for part in parts:
                last = first + part.shape[0]
                of_b = _columns_of(b, first, last, rank, *columns)
                update = Update(of_a, of_b, a.dtype, b.dtype, rank, scale, 0, part.shape[0])
                yield part.name, self._twice(part, (update,))
                first = last

    def _twice(self, old: Tensor, updates: tuple[Update, ...], *, is_stacked: bool = False) -> LowRank:
        """Return the recipe of a parameter with updates, whose change PEFT rounds before it adds it."""
        recipe = self._work.low_rank(old, updates, is_stacked=is_stacked)
        if not recipe.is_in_turn:
            refuse_large(f"The updates of {old.name}", sum(update.memory_bytes for update in updates))
        return recipe

    def _shape(self, container: str, leaf: str) -> list[int]:
        if stored := self._stored(container, leaf):
            return list(stored.shape)
        experts = self._one_by_one(container, leaf)
        return [len(experts), sum(part.shape[0] for part in experts[0]), experts[0][0].shape[1]]

    def _fits(self, container: str, leaf: str, a: Tensor, b: Tensor) -> bool:
        shape = self._shape(container, leaf)
        count, outputs, inputs = shape if len(shape) == 3 else (1, *shape)
        is_pair = a.shape[0] % count == 0 and b.shape[1] == a.shape[0]
        ends = b.shape[0], a.shape[1]
        return is_pair and (
            ends == (outputs, inputs) or bool(self._stored(container, leaf)) and ends == (inputs, outputs)
        )


def _refuse_unless_matrices(a: Tensor, b: Tensor) -> None:
    refuse_unusable(a, b)
    if odd := next((tensor for tensor in (a, b) if len(tensor.shape) != 2), None):
        raise SourceError(f"{odd.name} is {list(odd.shape)}, but an update of experts has two matrices.", SAVE_AGAIN)


def _columns_of(b: Tensor, first: int, last: int, rank: int, start: int, step: int) -> Recipe:
    """Return the rows `[first, last)` of `b`, and of them `rank` columns from `start` on, `step` apart."""
    place, width, item = _in_one_piece(b), b.shape[1], BY_NAME[b.dtype].bits // 8
    shape = last - first, rank
    box = Box(place.file, place.start_byte + (first * width + start) * item, (0, 0), shape, (width, step), place.source)
    return Laid((box,), shape, item)


def _in_one_piece(tensor: Tensor) -> Stored:
    if tensor.recipe.place is None:
        message = f"{tensor.name} is not stored in one piece, so it cannot be split over the experts of the base."
        raise SourceError(message, f"Save the adapter as safetensors, beside its {ADAPTER_NAME}.")
    return place_of(tensor)
