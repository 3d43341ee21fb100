"""Sort tensors, and find those that belong together: companions, blocks, the stages of a pipeline. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from sharding.core.errors import Remedy, SourceError, UsageError
from sharding.core.hints import ModelHints, SavedTensor
from sharding.core.text import count, name_some
from sharding.core.values import Finding, Shard, Stage, Tensor, TiedTensor
from sharding.formats.quantization import companions

_LONGEST_NUMBER = 18
"""The most digits of a name that count as a number. No layer has more, and Python refuses very long ones."""


def by_folder(tensors: Iterable[Tensor], folders: Iterable[str]) -> dict[str, list[Tensor]]:
    """Return the tensors of each component: of those in `folders`, and of any other that has some."""
    inside: dict[str, list[Tensor]] = {folder: [] for folder in folders}
    for tensor in tensors:
        inside.setdefault(tensor.folder, []).append(tensor)
    return inside


def in_order(
    tensors: list[Tensor], order: str, folder: str, hints: ModelHints | None
) -> tuple[list[Tensor], list[Finding]]:
    """Return `tensors` of a component sorted by `order`, and findings. Raises SourceError if `hints` lack the order."""
    if order == "stored":
        return tensors, []
    queue = sorted(tensors, key=lambda tensor: natural_key(tensor.name.removeprefix(folder)))
    if order == "natural":
        return queue, []
    if hints is None or hints.unknown:
        reason = hints.unknown if hints else "There is no config.json, so the model is unknown."
        message = f"The order of transformers is not known: {reason}"
        raise SourceError(message, "Choose the natural order instead.", Remedy("choose_order", "natural"))
    position = {saved.name: index for index, saved in enumerate(hints.saved)}
    unknown = [tensor.name for tensor in queue if tensor.name not in position]
    queue.sort(key=lambda tensor: position.get(tensor.name, len(position)))
    if not unknown:
        return queue, []
    message = f"{hints.class_name} does not save {count(len(unknown), 'tensor')}: {name_some(unknown)}. "
    message += "They are kept, after all other tensors."
    return queue, [Finding("warning", "not-saved-by-class", message)]


def natural_key(name: str) -> str:
    """Return the key that sorts tensor names in natural order: numbers by value, and before words.

    It sorts as transformers' `dot_natural_key` does, for every name that transformers can read. The key is a text and
    not a list of tuples, because a hundred thousand keys are in memory at once.

    >>> sorted(["h.10.w", "h.2.w", "h.norm"], key=natural_key)
    ['h.2.w', 'h.10.w', 'h.norm']
    """
    # Keys of words as long as names may be would fill memory.
    return "".join((_known_key if len(word) <= 64 else _key_of_word)(word) for word in name.split("."))


def _key_of_word(word: str) -> str:
    letters = word.rstrip("0123456789")
    digits = word[len(letters) :]
    if word.isdecimal() and len(word) <= _LONGEST_NUMBER:
        return f"\1{_by_value(word)}"
    if digits and len(digits) <= _LONGEST_NUMBER:
        return f"\2{letters}\0\3{_by_value(digits)}"
    return f"\2{word}\0"


_known_key = lru_cache(maxsize=1 << 14)(_key_of_word)  # the names of a model share few words


def _by_value(digits: str) -> str:
    number = str(int(digits))
    return chr(len(number)) + number  # a longer number is a larger one


def with_companions(hints: ModelHints, tensors: Iterable[Tensor]) -> ModelHints:
    """Return `hints` with the companions of quantized weights among `tensors`, which no class saves.

    Companions come right after their weight, in natural order. They are in the same block, and every rank that loads
    the weight loads them.

    >>> from sharding.recipes.stored import Stored
    >>> of = {"q.weight": "F8_E4M3", "q.scale": "F32", "k.weight": "F32", "k.scale": "F32"}
    >>> stored = [Tensor(name, dtype, (1,), Stored(0, "f", 0, 1)) for name, dtype in of.items()]
    >>> hints = ModelHints("M", (SavedTensor("q.weight", "BF16", 0), SavedTensor("k.weight", "BF16", 1)))
    >>> [saved.name for saved in with_companions(hints, stored).saved]
    ['q.weight', 'q.scale', 'k.weight']
    """
    known = {saved.name for saved in hints.saved}.union(*hints.loads)
    beside = companions(tensors, known) if known else {}
    if not beside:
        return hints
    saved, storage = list[SavedTensor](), max((tensor.storage for tensor in hints.saved), default=-1)
    for tensor in hints.saved:
        saved.append(tensor)
        for companion in sorted(beside.get(tensor.name, ()), key=lambda one: natural_key(one.name)):
            storage += 1  # in the same block, each in memory of its own
            saved.append(SavedTensor(companion.name, companion.dtype, storage, tensor.block))
    loads = (names.union(other.name for name in names for other in beside.get(name, ())) for names in hints.loads)
    return replace(hints, saved=tuple(saved), loads=tuple(loads))


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


def cut_ranks(tensors: Iterable[Tensor], hints: ModelHints | None) -> list[list[list[Tensor]]]:
    """Return what each rank in `hints` stores, in parts that share no file: what others load too, and the rest.

    What several ranks load is stored with the first of them. Raises SourceError and UsageError.
    """
    loads = _loads(hints)
    stored: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in loads]
    for tensor in tensors:
        first, *others = _ranks_of(tensor.name, loads)
        stored[first][not others].append(tensor)
    return [[part for part in parts if part] for parts in stored]


def stages_of(
    parts_of: Sequence[Sequence[Sequence[Tensor]]],
    shards: Sequence[Shard],
    tensors: Sequence[Tensor],
    hints: ModelHints,
    known: Mapping[str, str],
) -> Iterator[Stage]:
    """Yield the stage of each rank, which stores its parts of `tensors` in some of `shards`."""
    file_of = {tensor.name: shard.file for shard in shards for tensor in shard.tensors}
    ranks_of = {name: _ranks_of(name, hints.loads) for name in file_of}
    for rank, parts in enumerate(parts_of):
        block_of, own = dict[str, str](), [tensor for part in parts for tensor in part]
        for tensor in own:
            around = blocks_around(tensor.name, known)
            is_layer = bool(around) and around[0].rpartition(".")[2].isdecimal()  # embeddings may be a block too
            block_of[tensor.name] = around[0] if is_layer else ""
        needs = []
        for name in (tensor.name for tensor in tensors if rank in ranks_of[tensor.name][1:]):
            group = next((names for names in hints.tied if name in names), ())
            used_as = tuple(other for other in group if other not in file_of)
            needs.append(TiedTensor(name, file_of[name], used_as or (name,)))
        blocks = tuple(dict.fromkeys(filter(None, block_of.values())))
        others = tuple(name for name, block in block_of.items() if not block)
        files = {file_of[name] for name in block_of}
        in_order = tuple(shard.file for shard in shards if shard.file in files)
        yield Stage(blocks, others, in_order, sum(tensor.bytes for tensor in own), tuple(needs))


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


def _ranks_of(name: str, loads: Sequence[frozenset[str]]) -> tuple[int, ...]:
    """Return the ranks that load a tensor: all of them if transformers names none."""
    return tuple(rank for rank, names in enumerate(loads) if name in names) or tuple(range(len(loads)))
