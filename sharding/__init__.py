"""Re-shard a model checkpoint by streaming its bytes: never the model in memory, every tensor proved identical.

The Python API is `sharding.job`:

>>> from sharding import job
>>> for event in job.shard("./model", "./model-sharded", "200MB"):  # doctest: +SKIP
...     print(event)
"""

__version__ = "0.1.0"
