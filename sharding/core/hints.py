"""Facts about a model from transformers, as values that a plan uses."""

from collections.abc import Mapping
from dataclasses import dataclass

from sharding.core.bounds import Layers, Version


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as transformers would save it. Those with the same `storage` share memory, so they share a shard.
    `block` is the module around it that transformers never splits over devices, or ""."""

    name: str
    dtype: str
    storage: int
    block: str = ""


@dataclass(frozen=True, slots=True)
class PipelineCut:
    """Where this version of transformers cuts a model over ranks: the layers `[start, end)` of each rank."""

    transformers: Version
    layers: Layers


@dataclass(frozen=True, slots=True)
class ModelHints:
    """How transformers 5.23 would save a checkpoint that it has loaded, in its order. `tied` are groups of names in the
    files for one tensor. Most checkpoints hold one name of each. If it cannot load the checkpoint, `unknown` is the
    reason, and `saved` and `tied` are empty. `pipeline` is where it cuts the model into the requested ranks, `loads`
    the tensors that each needs, `uncut` the reason if it cannot cut it."""

    class_name: str = ""
    saved: tuple[SavedTensor, ...] = ()
    unknown: str = ""
    tied: tuple[tuple[str, ...], ...] = ()
    pipeline: PipelineCut | None = None
    loads: tuple[frozenset[str], ...] = ()
    uncut: str = ""


Hints = Mapping[str, ModelHints]  # The hints for each component, by its folder; empty if nobody asked transformers.
