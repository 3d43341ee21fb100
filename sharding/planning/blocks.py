"""Find the blocks of tensors that should stay in one file. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

from sharding.core.hints import ModelHints
from sharding.core.values import Tensor


def known_blocks(hints: ModelHints | None) -> dict[str, str]:
    """Return tensor name to block for the blocks that transformers knows."""
    return {saved.name: saved.block for saved in hints.saved if saved.block} if hints else {}


def blocks_around(name: str, known: Mapping[str, str]) -> list[str]:
    """Return the blocks around a tensor, the outermost first: its `known` block, then the numbered modules inside it.

    >>> blocks_around("model.layers.2.mlp.experts.7.up_proj.weight", {})
    ['model.layers.2', 'model.layers.2.mlp.experts.7']
    """
    modules = name.split(".")
    numbered = [".".join(modules[: depth + 1]) for depth, module in enumerate(modules[:-1]) if module.isdecimal()]
    if name not in known:
        return numbered
    return [known[name], *(block for block in numbered if block.startswith(f"{known[name]}."))]


def whole_blocks(tensors: Iterable[Tensor], limit_bytes: int, known: Mapping[str, str]) -> dict[str, str]:
    """Return tensor name to the largest block around it that fits into `limit_bytes`. Leaves out tensors without one.

    >>> from sharding.recipes.stored import Stored
    >>> layers = [Tensor(f"h.0.{n}.w", "U8", (6,), Stored(0, "f", 0, 6)) for n in range(2)]
    >>> whole_blocks(layers, 12, {}), whole_blocks(layers, 6, {})
    ({'h.0.0.w': 'h.0', 'h.0.1.w': 'h.0'}, {'h.0.0.w': 'h.0.0', 'h.0.1.w': 'h.0.1'})
    """
    around = {tensor.name: (tensor.bytes, blocks_around(tensor.name, known)) for tensor in tensors}
    sizes: Counter[str] = Counter()
    for size, blocks in around.values():
        sizes.update(dict.fromkeys(blocks, size))
    fitting = {
        name: next((block for block in blocks if sizes[block] <= limit_bytes), None)
        for name, (_, blocks) in around.items()
    }
    return {name: block for name, block in fitting.items() if block}
