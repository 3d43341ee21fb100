"""Re-shard model checkpoints by streaming: the model is never in memory, and every tensor is checked.

Start with the Python API, `sharding.job`:

>>> from sharding import job
>>> for event in job.shard("./model", "./model-sharded", "200MB"):  # doctest: +SKIP
...     print(event)
"""

__version__ = "0.1.0"
