"""Predict what it would take to load a model and save it again, instead of streaming it. Pure."""

from dataclasses import dataclass

from sharding.core.dtypes import BY_OPTION
from sharding.core.values import Checkpoint, Plan
from sharding.desk.forecast import Forecast
from sharding.loading.predict import predict, stored_dtypes

CLASSIC_TIMES = 2.3
"""How many times as long loading and saving takes as streaming: 2.1 to 2.6 in bench/RESULTS.md, without a network."""


@dataclass(frozen=True, slots=True)
class ClassicForecast:
    """The predicted cost of `from_pretrained(low_cpu_mem_usage=True)` followed by `save_pretrained`.

    `mapped_bytes` are the weights in the page cache, `disk_bytes` the downloaded files and the copy.
    """

    lower_seconds: float
    upper_seconds: float
    peak_anon_bytes: int
    mapped_bytes: int
    disk_bytes: int


def classic_forecast(checkpoint: Checkpoint, plan: Plan, ours: Forecast) -> ClassicForecast | None:
    """Return the prediction for the copy that `plan` makes, beside `ours`. None if transformers alone cannot load it.

    Its time is that of our job, times the ratio of both that was measured on another machine.
    """
    if not checkpoint.is_plain_model or plan.options.dequantize:
        return None
    asked = BY_OPTION[plan.options.dtype].torch if plan.options.dtype in BY_OPTION else None
    largest = max((file.bytes for file in checkpoint.weight_files), default=0)
    predicted = predict(stored_dtypes(checkpoint.tensors), largest, asked)
    return ClassicForecast(
        ours.lower_seconds * CLASSIC_TIMES,
        ours.upper_seconds * CLASSIC_TIMES,
        predicted.peak_anon_bytes,
        checkpoint.total_bytes,
        checkpoint.total_bytes + plan.total_bytes,
    )
