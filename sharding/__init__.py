"""Re-shard a model checkpoint by streaming its bytes: never the model in memory, every tensor proved identical.

>>> import sharding
>>> for event in sharding.shard("./model", "./model-sharded", "200MB"):  # doctest: +SKIP
...     print(event)

`inspect`, `plan`, `shard` and `verify` are those of `sharding.job`, which is loaded when first asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharding.job import inspect, plan, shard, verify

__version__ = "0.1.0"
__all__ = ["__version__", "inspect", "plan", "shard", "verify"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from sharding import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
