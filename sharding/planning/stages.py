"""Find the blocks of tensors that should stay in one file, and the pipeline stages of a model. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.hints import ModelHints
from sharding.core.values import Shard, Stage, Tensor, TiedTensor


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
    fitting = {name: [block for block in blocks if sizes[block] <= limit_bytes] for name, (_, blocks) in around.items()}
    return {name: blocks[0] for name, blocks in fitting.items() if blocks}


def with_files(stages: Iterable[Stage], counts: Iterable[int], shards: Sequence[Shard]) -> Iterator[Stage]:
    """Yield the stages with their files. `counts` says how many of `shards` each stage has."""
    file_of = {tensor.name: shard.file for shard in shards for tensor in shard.tensors}
    start = 0
    for stage, count in zip(stages, counts, strict=False):
        files = tuple(shard.file for shard in shards[start : start + count])
        start += count
        needs = tuple(replace(need, file=file_of[need.tensor]) for need in stage.also_needs)
        yield replace(stage, files=files, also_needs=needs)


def cut_ranks(
    tensors: Sequence[Tensor], hints: ModelHints | None, known: Mapping[str, str]
) -> list[tuple[Stage, list[list[Tensor]]]]:
    """Return the stage of each rank of the pipeline in `hints`, and its tensors in parts. No file holds two parts.

    A tensor that several ranks load is stored with the first of them, in a separate file. `tensors` are in natural
    order. `known` is tensor name to block. The stages have no files yet. Raises SourceError if transformers cannot cut
    the model, UsageError if a rank would have no layer.
    """
    loads = _loads(hints)
    ranks_of = {tensor.name: _ranks_of(tensor.name, loads) for tensor in tensors}
    stages = []
    for rank in range(len(loads)):
        own = [tensor for tensor in tensors if ranks_of[tensor.name] == (rank,)]
        shared = [tensor for tensor in tensors if len(ranks_of[tensor.name]) > 1 and ranks_of[tensor.name][0] == rank]
        block_of = {tensor.name: _layer_around(tensor.name, known) for tensor in (*shared, *own)}
        needs = []
        for name in (tensor.name for tensor in tensors if rank in ranks_of[tensor.name][1:]):
            group = next((names for names in hints.tied if name in names), ()) if hints else ()
            needs.append(TiedTensor(name, "", tuple(other for other in group if other not in ranks_of) or (name,)))
        blocks = tuple(dict.fromkeys(filter(None, block_of.values())))
        others = tuple(name for name, block in block_of.items() if not block)
        size = sum(tensor.bytes for tensor in (*shared, *own))
        stages.append((Stage(blocks, others, (), size, tuple(needs)), [part for part in (shared, own) if part]))
    return stages


def of_rank(tensors: Iterable[Tensor], hints: ModelHints | None, rank: int) -> tuple[Tensor, ...]:
    """Return the tensors that `rank` loads. Raises as `cut_ranks` does."""
    loads = _loads(hints)
    return tuple(tensor for tensor in tensors if rank in _ranks_of(tensor.name, loads))


def _loads(hints: ModelHints | None) -> tuple[frozenset[str], ...]:
    if hints is None or hints.unknown or not hints.pipeline:
        reason = (hints.unknown or f"{hints.uncut}.") if hints else "There is no config.json, so the model is unknown."
        message = f"transformers cannot load this model as a pipeline: {reason}"
        raise SourceError(message, "Choose --strategy blocks to cut between layers.", Remedy("cut_between_layers"))
    if any(start == end for start, end in hints.pipeline.layers):
        layers = hints.pipeline.layers[-1][1]
        message = f"{len(hints.loads)} ranks need at least as many layers, but this {hints.class_name} has {layers}."
        raise UsageError(message, "Choose fewer ranks.")
    return hints.loads


def _layer_around(name: str, known: Mapping[str, str]) -> str:
    """Return the outermost block around a tensor, "" if that block has no number: embeddings may be a block too."""
    blocks = blocks_around(name, known)
    return blocks[0] if blocks and blocks[0].rpartition(".")[2].isdecimal() else ""


def _ranks_of(name: str, loads: Sequence[frozenset[str]]) -> tuple[int, ...]:
    """Return the ranks that load a tensor: all of them if transformers names none."""
    return tuple(rank for rank, names in enumerate(loads) if name in names) or tuple(range(len(loads)))
