"""Cut a queue of tensors: by size, or between blocks. Pure."""

from collections.abc import Mapping, Sequence

from huggingface_hub import split_state_dict_into_shards_factory

from sharding.core.values import Tensor

Units = Mapping[str, object]
"""Tensor name to its unit, which stays in one group. A tensor that is not in here is a unit on its own."""


def cut(queue: Sequence[Tensor], max_shard_bytes: int, units: Units) -> list[list[Tensor]]:
    """Return `queue` in groups of at most `max_shard_bytes`, as the Hub's splitter cuts it. Units stay whole."""
    by_name = {tensor.name: tensor for tensor in queue}
    sizes: dict[object, int] = {}
    for tensor in queue:
        if tensor.name in units:
            sizes[units[tensor.name]] = sizes.get(units[tensor.name], 0) + tensor.bytes
    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: sizes[units[tensor.name]] if tensor.name in units else tensor.bytes,
        get_storage_id=lambda tensor: units.get(tensor.name),
        filename_pattern="{suffix}",
        max_shard_size=max_shard_bytes,
    )
    return [[by_name[name] for name in names] for names in split.filename_to_tensors.values()]
