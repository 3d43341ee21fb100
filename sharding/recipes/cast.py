"""Cast numbers to another dtype, as `tensor.to(dtype)` of torch 2.13 does. A NaN stays a NaN."""

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from typing_extensions import override

from sharding.core.dtypes import BY_NAME, CASTABLE
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Chunk, Feed, Kept, Recipe
from sharding.core.text import count
from sharding.recipes.stored import made_by


class _Numpy:
    """numpy, imported when it is first used. That takes a while and some memory, and most jobs do without it."""

    def __getattr__(self, name: str) -> Any:
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)  # the next time, this method is not asked
        return value


np: Any = _Numpy()


def numbers(data: bytes | memoryview, dtype: str) -> Any:
    """Return `data` as an array of `dtype`, a name of safetensors. Copies nothing."""
    return np.frombuffer(data, numpy_dtype(dtype))


@cache
def numpy_dtype(dtype: str) -> Any:
    """Return the numpy dtype for `dtype`, a name of safetensors."""
    import ml_dtypes

    name = BY_NAME[dtype].torch
    return np.dtype(getattr(ml_dtypes, name, name))


PIECE_ELEMENTS = 32768  # Numbers to compute at a time. They fit into a processor's cache.


class _Fields(NamedTuple):
    of: Recipe
    stored: str
    dtype: str


class Cast(_Fields, Recipe):
    """A cast of the numbers of `of` from `stored` to `dtype`, named as in safetensors. A tuple: plans have many."""

    __slots__ = ()

    @override
    def __repr__(self) -> str:
        return f"Cast({self.of!r}, {self.stored!r}, {self.dtype!r})"

    @property
    @override
    def size_bytes(self) -> int:
        return self.of.size_bytes * BY_NAME[self.dtype].bits // BY_NAME[self.stored].bits

    @override
    def refusal(self, name: str, dtype: str, infinite: int) -> tuple[str, str]:
        message = f"{name} has {count(infinite, 'finite number')} too large for {BY_NAME[dtype].torch}. "
        instead = "Choose bf16, which has the range of fp32." if dtype == "F16" else "Keep the dtype."
        return f"{message}The cast would make {'it' if infinite == 1 else 'them'} infinite.", instead

    @override
    def make(self, inputs: Feed, kept: Kept) -> Iterator[Chunk]:
        source = made_by(self.of, inputs, kept)
        stored, dtype = BY_NAME[self.stored], CASTABLE[self.dtype]
        left = self.of.size_bytes
        at_a_time = BATCH_BYTES * 8 // max(stored.bits, dtype.bits) * stored.bits // 8
        room, counted = bytearray(), 0
        while left:
            data = source.take(min(left, at_a_time))
            left -= len(data)
            room = room or bytearray(len(data) * dtype.bits // stored.bits)
            chunk = cast(data, self.stored, self.dtype, memoryview(room)[: len(data) * dtype.bits // stored.bits])
            overflowed = chunk.overflowed + source.overflowed - counted
            counted = source.overflowed
            yield Chunk(chunk.data, overflowed, source.unchanged, source.unsure)

    def words(self, shape: tuple[int, ...]) -> str:
        """Return the cast in words.

        >>> from sharding.recipes.stored import Stored
        >>> Cast(Stored(0, "f", 8, 20), "F32", "BF16").words((3,))
        'cast(F32 [3], f bytes 8–20)'
        """
        return f"cast({self.stored} {list(shape)}, {self.of.words(shape)})"


def uncast(recipe: Recipe) -> Recipe:
    """Return what makes the numbers that a recipe casts, or the recipe if it casts none."""
    while isinstance(recipe, Cast):
        recipe = recipe.of
    return recipe


def narrows(recipe: Recipe) -> bool:
    """Return whether the dtype of a recipe cannot hold all finite numbers that it casts."""
    return isinstance(recipe, Cast) and BY_NAME[recipe.stored].largest > BY_NAME[recipe.dtype].largest


def extra_bytes(recipe: Recipe) -> int:
    """Return how many bytes a cast reads beyond those that it makes."""
    is_read = isinstance(recipe, Cast) and recipe.of.place is not None
    return max(0, recipe.of.size_bytes - recipe.size_bytes) if is_read else 0


def cast(data: memoryview, stored: str, dtype: str, room: memoryview) -> Chunk:
    """Cast `data` from `stored` to `dtype`, into `room`; return that, and how many finite numbers are infinite now."""
    before, after = numbers(data, stored), numbers(room, dtype)
    for start in range(0, len(before), PIECE_ELEMENTS):
        piece = before[start : start + PIECE_ELEMENTS]
        with np.errstate(all="ignore"):
            after[start : start + PIECE_ELEMENTS] = rounded(piece, dtype)
    return Chunk(room, settle(before, numbers(room, f"U{CASTABLE[dtype].bits}"), CASTABLE[dtype].infinity))


def rounded(before: Any, dtype: str) -> Any:
    """Return numbers that a cast to `dtype` does not round any further. numpy takes many times longer for halves."""
    if dtype == "F16":  # from double, torch goes through float, so it rounds twice
        return _halves(before.astype(np.float32, copy=False))
    return _of_halves(dtype).take(before.view(np.uint16)) if before.dtype == np.float16 else before


@cache
def _of_halves(dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(numpy_dtype(dtype))


def _halves(before: Any) -> Any:
    """Return the float16 next to each float32. Of two that are as near, it is the even one."""
    bits = before.view(np.uint32)
    sizes = bits & 0x7FFFFFFF
    found = (sizes >> 13) & 1
    found += sizes
    found += 0xFFF - (112 << 23) + (1 << 32)  # the bits that are cut off, and the other bias of exponents
    found >>= 13
    np.minimum(found, 0x7C00, out=found)
    # Below the normal numbers, an addition rounds to multiples of the smallest one.
    tiny = (sizes.view(np.float32) + np.float32(0.5)).view(np.uint32) - 0x3F000000
    np.copyto(found, tiny, where=sizes < 0x38800000)
    if sizes.max(initial=0) > 0x7F800000:
        found[sizes > 0x7F800000] = 0x7E00
    found |= bits >> 16 & 0x8000
    return found.astype(np.uint16).view(np.float16)


def settle(before: Any, bits: Any, infinity: int) -> int:
    """Give every NaN in `bits` (a cast of `before`) one pattern, as processors differ; count new infinities."""
    # Looking at the bits is many times faster than isinf.
    magnitudes = bits & (np.iinfo(bits.dtype).max >> 1)
    if magnitudes.max(initial=0) < infinity:
        return 0
    bits[magnitudes > infinity] = infinity | (infinity & -infinity) >> 1
    with np.errstate(invalid="ignore"):
        return int(((magnitudes == infinity) & np.isfinite(before)).sum())
