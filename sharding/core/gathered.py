"""Say where the pieces of a tensor lie that does not lie in order, in one file or in several. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Box:
    """A piece of a tensor. Its first element is element `offsets` of the tensor, and lies at byte `origin` of `file`.

    Element `i, j, …` lies `item_bytes * (i * strides[0] + j * strides[1] + …)` bytes further on.
    """

    file: str
    origin: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gathered:
    """A tensor that is put together of `boxes`, at `[start_byte, end_byte)` of `file`: there, beyond the file's end.

    Every element is in exactly one box.
    """

    file: str
    start_byte: int
    end_byte: int
    item_bytes: int
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of a tensor whose elements lie one after another.

    >>> strides_of((2, 3, 4))
    (12, 4, 1)
    """
    strides = [1]
    for length in reversed(shape[1:]):
        strides.append(strides[-1] * length)
    return tuple(reversed(strides[: len(shape)]))


def in_one_piece(file: str, origin: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[Box, ...]:
    """Return the boxes of a tensor that is in one piece."""
    return (Box(file, origin, (0,) * len(shape), shape, strides),)
