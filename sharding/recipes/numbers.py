"""See bytes as numbers, in the dtypes of numpy and ml_dtypes."""

from functools import cache
from typing import Any

from sharding.core.dtypes import BY_NAME


def numbers(data: bytes | memoryview, dtype: str) -> Any:
    """Return `data` as an array of numbers of safetensors' `dtype`, without a copy."""
    import numpy as np

    return np.frombuffer(data, numpy_dtype(dtype))


@cache
def numpy_dtype(dtype: str) -> Any:
    """Return the numpy dtype for safetensors' `dtype`."""
    import ml_dtypes
    import numpy as np

    name = BY_NAME[dtype].torch
    return np.dtype(getattr(ml_dtypes, name, name))
