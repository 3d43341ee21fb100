"""Predict how much memory a load takes if it cannot be measured. Pure; it does not predict time.

The prediction follows how transformers 5.23 loads. Memory-mapped weights cost page cache only. A cast makes a second
set in anonymous memory. Without mapping, each whole file passes through memory. We measured its two constants.
`bench/loading.py` prints predictions beside measurements, and a test compares them.
"""

from collections.abc import Iterable, Mapping, Sequence

from sharding.checkpoint.documents import read_json
from sharding.checkpoint.read import read_headers
from sharding.core.dtypes import BY_NAME, BY_TORCH, NUMBERS
from sharding.core.protocols import Files
from sharding.core.values import FileEntry, Tensor
from sharding.loading.costs import Prediction
from sharding.loading.measure import Load

BASE_ANON_BYTES = 275_000_000
"""Anonymous memory of Python, torch 2.13 and transformers 5.23 alone, with a small forward pass."""

BASE_FILE_BYTES = 110_000_000
"""The mapped files of these libraries."""


def predict(
    dtypes: Mapping[str, int], largest_file_bytes: int, dtype_asked: str | None, *, with_mapping: bool = True
) -> Prediction:
    """Return the predicted cost of loading a checkpoint with `dtypes` (safetensors' name to bytes).

    >>> predict({"BF16": 14_500_000_000}, 10_000_000_000, "float16").peak_anon_bytes
    14775000000
    """
    stored = sum(dtypes.values())
    cast = sum(
        size * BY_TORCH[dtype_asked].bits // BY_NAME[dtype].bits
        for dtype, size in dtypes.items()
        if dtype_asked and dtype in NUMBERS and BY_NAME[dtype].torch != dtype_asked
    )
    if with_mapping:
        return Prediction(BASE_ANON_BYTES + cast, BASE_FILE_BYTES + stored)
    return Prediction(BASE_ANON_BYTES + (cast or stored) + largest_file_bytes, BASE_FILE_BYTES)


def stored_dtypes(tensors: Iterable[Tensor]) -> dict[str, int]:
    """Return how many bytes of `tensors` each dtype has."""
    dtypes: dict[str, int] = {}
    for tensor in tensors:
        dtypes[tensor.dtype] = dtypes.get(tensor.dtype, 0) + tensor.bytes
    return dtypes


def predict_load(source: Files, files: Sequence[FileEntry], load: Load) -> Prediction:
    """Return the predicted cost of loading `files` of `source`, from headers and configuration."""
    weights = [file for file in files if file.path.endswith((".safetensors", ".bin"))]
    if weights[0].path.endswith(".bin"):
        dtypes = {_configured_dtype(source): sum(file.bytes for file in weights)}
    else:
        dtypes = stored_dtypes(tensor for header in read_headers(source, weights) for tensor in header.tensors)
    largest = max(file.bytes for file in weights)
    return predict(dtypes, largest, load.dtype, with_mapping=load.with_mapping)


def _configured_dtype(source: Files) -> str:
    config = next((file for file in source.files if file.path == "config.json"), None)
    document = read_json(source, config)
    name = (document.get("dtype") or document.get("torch_dtype")) if isinstance(document, dict) else None
    return BY_TORCH[name].name if isinstance(name, str) and name in BY_TORCH else "F32"
