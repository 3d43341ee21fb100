"""Hostile adapters of every kind, of any number of names, and the base that each is for. Nothing is on a disk."""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, Content, FileEntry, Tensor
from sharding.planning.plan import planned
from sharding.planning.steps import NO_CLASS
from sharding.recipes.stored import Stored

_PREFIX = "base_model.model."
_CONFIG = {"peft_type": "LORA", "r": 1, "target_modules": ["q"]}
Case = tuple[dict[str, Any], list[str], list[str]]
"""The adapter's configuration, its modules, and more names of the base."""


def _layers(number: int) -> list[str]:
    return [f"model.layers.{layer}.q" for layer in range(number)]


KINDS: dict[str, Callable[[int], Case]] = {
    "updates": lambda n: ({}, _layers(n), []),
    "copies of modules": lambda n: ({"modules_to_save": ["z"]}, [f"saved:model.layers.{i}.z" for i in range(n)], []),
    "names with many dots": lambda n: ({}, [f"{'a.' * 200}{i}.q" for i in range(n // 20)], []),
    "first parts of the base's names": lambda n: ({}, _layers(n // 10), [f"top{i}.h.weight" for i in range(n)]),
    "layers_to_transform": lambda n: ({"layers_to_transform": list(range(n))}, _layers(n), []),
    "token keys": lambda n: ({"trainable_token_indices": {f"k{i}": [0] for i in range(n)}}, _layers(n), []),
    "names in target_modules": lambda n: (
        {"target_modules": [*(f"m{i}" for i in range(n)), "q"]}, _layers(n), []),
    "a rank for each layer": lambda n: ({"rank_pattern": {f"layers.{i}.q": 1 for i in range(n)}}, _layers(n), []),
    "ranks whose dots may match more": lambda n: (
        {"rank_pattern": {f"layers.{i:05}.q.x": 1 for i in range(n)}}, [f"layers_{i:05}.q.x.q" for i in range(n)], []),
    "ranks by expressions": lambda n: ({"rank_pattern": {rf"layers\.{i}\.q": 1 for i in range(n)}}, _layers(n), []),
    "a target with lookahead": lambda n: ({"target_modules": r"^(?!.*vision).*\.q$"}, _layers(n), []),
    "layer patterns": lambda n: (
        {"layers_to_transform": [1], "layers_pattern": [f"p{i}" for i in range(min(n, 100))]}, _layers(n), []),
    "wrapped experts": lambda n: (
        {"target_parameters": ["experts.gate_up_proj"]},
        [f"model.layers.{i}.mlp.experts" + ".base_layer" * (i % 8) for i in range(n)],
        [f"model.layers.{i}.mlp.experts.{e}.{part}.weight" for i in range(n // 10) for e in range(8)
         for part in ("gate_proj", "up_proj", "down_proj")]),
}  # fmt: skip


def plan_merge(checkpoint: Content) -> str:
    """Plan the merge; return how that ended."""
    try:
        planned(checkpoint, Options("1GB", adapter="a/b"), NO_CLASS)
    except SourceError as error:
        return f"refused: {error.message[:60]}…".replace("|", "¦")
    return "planned"


def build(kind: str, number: int) -> Content:
    """Return a base and its adapter of a kind, with about this `number` of names."""
    config, modules, more = KINDS[kind](number)
    names = [module.removeprefix("saved:") for module in modules]
    base = [*(f"{name}.weight" for name in dict.fromkeys(names)), *more]
    tensors = tuple(_tensors(((name, (8, 8)) for name in base), "model.safetensors", 0))
    held = tuple(_tensors(_of_adapter(modules), "adapter_model.safetensors", 1))
    lora = Place("hub", "a/b", "1" * 40, role="adapter")
    file = FileEntry("adapter_model.safetensors", 1, "0" * 64, source=1)
    adapter = Content(lora, held, (), (file,), (), (), configs={"": json.dumps(_CONFIG | config)})
    return Content(
        source=Place("hub", "a/base", "0" * 40),
        tensors=tensors,
        components=(Component(metadata={"format": "pt"}),),
        weight_files=(FileEntry("model.safetensors", 1),),
        side_files=(),
        findings=(),
        configs={"": '{"model_type": "llama", "tie_word_embeddings": false}'},
        beside=(lora,),
        others=(adapter,),
    )


def _of_adapter(modules: list[str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    for module in modules:
        if module.startswith("saved:"):
            name = module.removeprefix("saved:")
            yield f"{_PREFIX}{name}.modules_to_save.default.weight", (8, 8)
            yield f"{_PREFIX}{name}.weight", (8, 8)
        else:
            yield f"{_PREFIX}{module}.lora_A.weight", (1, 8)
            yield f"{_PREFIX}{module}.lora_B.weight", (8, 1)


def _tensors(shapes: Iterable[tuple[str, tuple[int, ...]]], file: str, source: int) -> Iterator[Tensor]:
    start = 0
    for name, shape in shapes:
        end = start + shape[0] * shape[1] * BY_NAME["F32"].bits // 8
        yield Tensor(name, "F32", shape, Stored(source, file, start, end))
        start = end
