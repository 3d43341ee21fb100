"""Tensors as headers describe them, for tests."""

from sharding.core.hints import Hints
from sharding.core.options import Options
from sharding.core.values import Content, Plan, Tensor, folder_of
from sharding.planning.plan import planned
from sharding.planning.steps import NO_CLASS
from sharding.recipes.stored import Stored


def stored_tensor(name: str, dtype: str, shape: tuple[int, ...], file: str, start_byte: int, end_byte: int) -> Tensor:
    """A tensor that lies at bytes `[start_byte, end_byte)` of a file."""
    return Tensor(name, dtype, shape, Stored(0, file, start_byte, end_byte), folder_of(file))


def plan_of(content: Content, options: Options, hints: Hints | None = None) -> Plan:
    """The plan if the model class says `hints`."""
    return planned(content, options, NO_CLASS._replace(hints=lambda *_: hints or {}))
