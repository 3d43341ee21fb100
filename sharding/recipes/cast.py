"""Cast numbers to another dtype, bit for bit as `tensor.to(dtype)` of torch 2.13 does in one thread."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Extent, Inputs, Kept, Recipe
from sharding.recipes.feed import made_by

_PIECE_ELEMENTS = 32768
"""What torch 2.13 converts in the thread that asks (`at::internal::GRAIN_SIZE`): more would start as many as cores.
What is cast at a time is a multiple of it: torch converts what is left at the end of a run another way, which shows in
the payloads of NaNs (fp16 to fp32)."""


class _Fields(NamedTuple):
    of: Recipe
    stored: str
    dtype: str
    may_overflow: bool = False


class Cast(_Fields, Recipe):
    """What `of` makes, of dtype `stored`, as `dtype`, both named as in safetensors.

    `may_overflow` says that finite numbers may become infinite. A tuple, as a plan makes a hundred thousand of them.
    """

    __slots__ = ()

    @property
    @override
    def size_bytes(self) -> int:
        return self.of.size_bytes * BY_NAME[self.dtype].bits // BY_NAME[self.stored].bits

    @override
    def reads(self) -> Iterator[Extent]:
        return self.of.reads()

    @override
    def keeps(self) -> Iterator[Extent]:
        return self.of.keeps()

    @override
    def make(self, inputs: Inputs, kept: Kept) -> Iterator[Chunk]:
        source = made_by(self.of, inputs, kept)
        stored, dtype = CASTABLE[self.stored], CASTABLE[self.dtype]
        left = self.of.size_bytes
        at_a_time = BATCH_BYTES * 8 // max(stored.bits, dtype.bits) * stored.bits // 8
        room = bytearray()
        while left:
            data = source.take(min(left, at_a_time))
            left -= len(data)
            room = room or bytearray(len(data) * dtype.bits // stored.bits)
            yield cast(data, self.stored, self.dtype, memoryview(room)[: len(data) * dtype.bits // stored.bits])

    def words(self, shape: tuple[int, ...]) -> str:
        """Return what is cast.

        >>> from sharding.recipes.stored import Stored
        >>> Cast(Stored(0, "f", 8, 20), "F32", "BF16").words((3,))
        'cast(F32 [3], f bytes 8–20)'
        """
        return f"cast({self.stored} {list(shape)}, {self.of.words(shape)})"

    @override
    def key(self) -> bytes:
        return f"c{self.stored} {self.dtype} ".encode() + self.of.key()

    @override
    def needs(self) -> tuple[str, tuple[str, ...]]:
        own = f"A cast to {CASTABLE[self.dtype].option}", ("torch", "numpy")
        inner = self.of.needs()
        return inner if inner and "torch" in inner[1] else own


def cast(data: memoryview, stored: str, dtype: str, room: memoryview) -> Chunk:
    """Return the elements in `data`, of dtype `stored`, as `dtype`, in `room`, and how many have become infinite."""
    import torch

    before = torch.frombuffer(data, dtype=getattr(torch, CASTABLE[stored].torch))
    after = torch.frombuffer(room, dtype=getattr(torch, CASTABLE[dtype].torch))
    for source, piece in zip(before.split(_PIECE_ELEMENTS), after.split(_PIECE_ELEMENTS), strict=True):
        # By way of float32 torch is twice as quick, and gives the same bits: every bfloat16 is one.
        piece.copy_(source.float() if (stored, dtype) == ("BF16", "F16") else source)
    overflowed = int((after.isinf() & before.isfinite()).sum()) if _has_infinity(after, dtype) else 0
    return Chunk(room, overflowed)


def _has_infinity(piece: Any, dtype: str) -> bool:
    import torch

    # Asked of the bits by numpy, which is many times quicker than torch.isinf.
    width = CASTABLE[dtype].bits
    bits = piece.view(getattr(torch, f"int{width}")).numpy()
    all_but_the_sign = (1 << width - 1) - 1
    return bool(((bits & all_but_the_sign) == CASTABLE[dtype].infinity).any())
