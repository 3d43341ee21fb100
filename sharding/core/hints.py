"""What transformers knows of a model: values that a plan is made with."""

from collections.abc import Mapping
from dataclasses import dataclass

from sharding.core.bounds import Layers, Version


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """A tensor as transformers would save it. Those of one `storage` share memory, so they share a shard.

    `block` is the module around it that transformers never splits over devices, "" where there is none.
    """

    name: str
    dtype: str
    storage: int
    block: str = ""


@dataclass(frozen=True, slots=True)
class PipelineCut:
    """Where `transformers` (a version of it) cuts a model over ranks: the layers `[start, end)` of each."""

    transformers: Version
    layers: Layers


@dataclass(frozen=True, slots=True)
class ModelHints:
    """What transformers 5.23 would save of a checkpoint that it has loaded, in its order: hints for a plan.

    `tied` are groups of names, as files have them, that stand for one tensor; most checkpoints hold one of each.
    Where it cannot load the checkpoint, `unknown` says why, and `saved` and `tied` are empty.
    `pipeline` is how it cuts the model over as many ranks as were asked for, `loads` what each of these needs of the
    files; `uncut` says why it cannot.
    """

    class_name: str = ""
    saved: tuple[SavedTensor, ...] = ()
    unknown: str = ""
    tied: tuple[tuple[str, ...], ...] = ()
    pipeline: PipelineCut | None = None
    loads: tuple[frozenset[str], ...] = ()
    uncut: str = ""


Hints = Mapping[str, ModelHints]
"""What is known of each component, by its folder; empty where nothing was asked."""
