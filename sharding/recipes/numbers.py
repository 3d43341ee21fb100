"""View bytes as numbers, in the dtypes of numpy and ml_dtypes."""

from functools import cache
from typing import Any

from sharding.core.dtypes import BY_NAME


def numbers(data: bytes | memoryview, dtype: str) -> Any:
    """Return `data` as an array of `dtype`, a name of safetensors. Copies nothing."""
    import numpy as np

    return np.frombuffer(data, numpy_dtype(dtype))


@cache
def numpy_dtype(dtype: str) -> Any:
    """Return the numpy dtype for `dtype`, a name of safetensors."""
    import ml_dtypes
    import numpy as np

    name = BY_NAME[dtype].torch
    return np.dtype(getattr(ml_dtypes, name, name))
