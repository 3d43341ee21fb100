"""Multiply matrices as torch does, without importing it."""

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

_LIBRARY = "torch/lib/libtorch_cpu.so"

_Product = Callable[[Any, Any], Any]


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
def _best() -> _Product:
    try:
        library = ctypes.CDLL(str(distribution("torch").locate_file(_LIBRARY)))
        multiply = library.sgemm_
    except (PackageNotFoundError, OSError, AttributeError):
        return _of_numpy
    multiply.restype = None
    # Each shard has its own thread already.
    single = getattr(library, "MKL_Set_Num_Threads_Local", lambda count: None)

    def of_torch(first: Any, second: Any) -> Any:
        import numpy as np

        first, second = np.ascontiguousarray(first), np.ascontiguousarray(second)
        (rows, inner), columns = first.shape, second.shape[1]
        result = np.empty((rows, columns), np.float32)
        if not result.size:
            return result
        single(1)
        # BLAS counts columns first, so it sees the transposes of all three.
        multiply(
            *(b"N", b"N", _int(columns), _int(rows), _int(inner), _float(1.0), _at(second), _int(columns)),
            *(_at(first), _int(inner), _float(0.0), _at(result), _int(columns)),
        )
        single(0)
        return result

    return of_torch


def _of_numpy(first: Any, second: Any) -> Any:
    import numpy as np

    return np.ascontiguousarray(first @ second)


def _int(number: int) -> Any:
    return ctypes.byref(ctypes.c_int(number))


def _float(number: float) -> Any:
    return ctypes.byref(ctypes.c_float(number))


def _at(array: Any) -> Any:
    return array.ctypes.data_as(ctypes.c_void_p)
