"""What a kind of repo is: how one is saved, and what its own library loads from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

State = Mapping[str, torch.Tensor]
"""Every weight that was loaded, by its name."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of repo.

    `save` makes one as its library does, `write` the same files without that library, and `load` returns what the
    library loads from a folder. `whole` are the files that stay what they are, under their names.
    """

    save: Callable[[Path], object]
    load: Callable[[Path], State]
    library: str
    write: Callable[[Path], object] | None = None
    whole: tuple[str, ...] = ()
    finding: str = ""
    """The code of what is said of `whole`."""
    variant: str = ""
    cut: tuple[str, ...] = ()
    """Indexes that the copy has: a proof that there was something to cut."""


def named(**states: State) -> State:
    """Return the weights of several models under the names of both."""
    return {f"{place}/{name}": tensor for place, state in states.items() for name, tensor in state.items()}


def changed(state: State) -> dict[str, torch.Tensor]:
    """Return other weights of the same names and shapes: what a loader is not to take."""
    return {name: tensor + 1 for name, tensor in state.items()}
