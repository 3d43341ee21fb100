"""Load one checkpoint in a process of its own and say what that cost. Imports no room of ours.

`python -m sharding.loading.probe FOLDER` prints one JSON object. A load is judged together with a forward pass, as a
memory-mapped load has paid for nothing yet when it returns.
"""
