"""Load one checkpoint in a process of its own and report the cost. Imports few other modules of the package.

`python -m sharding.loading.probe FOLDER` prints one JSON object. The cost includes a forward pass, because a
memory-mapped load reads nothing until then.
"""
