"""Multiply matrices as torch does, without importing it, and say how far the sums depend on their order."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

from sharding.recipes.cast import np


def product(first: Any, second: Any) -> Any:
    """Return the product of two matrices of float32, as a contiguous float32 array.

    If torch is installed for Linux, its own BLAS multiplies, with one thread. The bits are then those that PEFT gets on
    this machine (torch 2.13 with MKL; measured with one and two threads, ranks 1 to 1024). Otherwise numpy multiplies,
    which may add up in another order: with OpenBLAS's kernels for Haswell, the last bit of 3 to 5 percent of the
    numbers differs.

    A part of the rows has the same bits as in the whole product if it has a multiple of 8 rows, a part of the columns
    if it has a multiple of 64.
    """
    return _best()(first, second)


@cache
def _best() -> Callable[[Any, Any], Any]:
    try:
        library = ctypes.CDLL(str(distribution("torch").locate_file("torch/lib/libtorch_cpu.so")))
        multiply = library.sgemm_
    except (PackageNotFoundError, OSError, AttributeError):
        return _of_numpy
    multiply.restype = None
    # Each shard has its own thread already.
    single = getattr(library, "MKL_Set_Num_Threads_Local", lambda count: None)

    def of_torch(first: Any, second: Any) -> Any:
        first, second = np.ascontiguousarray(first), np.ascontiguousarray(second)
        (rows, inner), columns = first.shape, second.shape[1]
        result = np.empty((rows, columns), np.float32)
        if not result.size:
            return result
        single(1)
        # BLAS counts columns first, so it sees the transposes of all three.
        width, height, depth = (ctypes.byref(ctypes.c_int(count)) for count in (columns, rows, inner))
        one, zero = (ctypes.byref(ctypes.c_float(number)) for number in (1.0, 0.0))
        at_second, at_first, at_result = (array.ctypes.data_as(ctypes.c_void_p) for array in (second, first, result))
        multiply(b"N", b"N", width, height, depth, one, at_second, width, at_first, depth, zero, at_result, width)
        single(0)
        return result

    return of_torch


def _of_numpy(first: Any, second: Any) -> Any:
    return np.ascontiguousarray(first @ second)


_FORMATS = {"F64": (52, -1022), "F32": (23, -126), "BF16": (7, -126), "F16": (10, -14)}
"""Bits of the fraction, and the least exponent of a normal number, of each dtype that can be cast (IEEE 754)."""

MOST_UNITS = 4  # What another order of summation may explain without doubt, in units in the last place.
_UNSURE_UNITS = 64  # A usual spread of more units is worth a warning, if many numbers of a row have it.
_MANY = 0.01
_SAMPLED = 64
_TYPICAL = 2.0**-3
"""Part of the mean number of a row. A row whose usual spread is small there has few numbers to warn of."""


def last_place(numbers: Any, dtype: str) -> Any:
    """Return the unit in the last place of `dtype` at each of `numbers`, which are not negative."""
    fraction, least = _FORMATS[dtype]
    exponents = np.where(numbers > 0, np.frexp(numbers)[1] - 1, least)
    return np.ldexp(numbers.dtype.type(1), np.maximum(exponents, least) - fraction)


def _is_unsure(spread: Any, largest: Any, dtype: str) -> Any:
    return ~(spread <= _UNSURE_UNITS * last_place(largest, dtype))


@dataclass(frozen=True, slots=True)
class Spread:
    """By how much the change `left @ right * scale` of some rows may differ in another order of summation."""

    left: Any
    right: Any
    scale: float

    def _factor(self, is_usual: bool) -> float:
        """Return the factor of the sum of all absolute products within which every order of summation stays.

        Each sum has as many terms as the rank, and is rounded to float32. Two results differ by at most twice the bound
        of one (N. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). In the usual orders, those of
        libraries, roundings mostly cancel, so the bound grows with the root of the rank (N. Higham and T. Mary, A new
        approach to probabilistic rounding error analysis, 2019).
        """
        rank = len(self.right)
        return float(rank * 2**-23 * abs(self.scale)) / (math.sqrt(rank) if is_usual else 1)

    def numbers(self, *, is_usual: bool = False) -> Any:
        """Return it for each number, in any order or in a usual one. That takes as long as the change itself."""
        with np.errstate(all="ignore"):
            return product(np.abs(self.left), np.abs(self.right)) * self._factor(is_usual)

    def is_unsure(self, weight: Any, change: Any, dtype: str) -> bool:
        """Return whether many numbers of a row depend so much on the order of summation that nobody can judge them."""
        with np.errstate(all="ignore"):
            reach = np.abs(self.left) @ np.max(np.abs(self.right), axis=1, initial=0)
            reach = reach[:, None] * self._factor(is_usual=True)
            # `reach` is at least the spread of each number. With a few numbers of each row, most weights are done here.
            step = max(1, weight.shape[1] // _SAMPLED)
            sample = np.maximum(np.abs(weight[:, ::step]), np.abs(change[:, ::step]))
            if not np.any(_is_unsure(reach, np.mean(sample, axis=1, keepdims=True) * _TYPICAL, dtype)):
                return False
            largest = np.maximum(np.abs(weight), np.abs(change))
            unsure = _is_unsure(self.numbers(is_usual=True), largest, dtype)
            return bool(np.any(np.mean(unsure, axis=1) > _MANY))
