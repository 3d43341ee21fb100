"""Lay a checkpoint out as a map: its files today and in the copy, with their layers and tensors by size. Pure."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharding.core.text import count, ends, format_bytes
from sharding.core.values import Content, Plan, Stage, Tensor
from sharding.drawing.tensor_kinds import ExpertGrid, Kind, expert_grid, kind_of, layer_of
from sharding.formats.quantization import companions
from sharding.planning.order import natural_key

WIDTH, HEIGHT = 1000.0, 100.0
MOST_CELLS = 800
MOST_COLUMNS = 240  # Most files side by side. On a page of 390 px, some of them are a pixel wide.
_GAPS = ((40, 4.0), (100, 2.0), (MOST_COLUMNS, 0.6))  # The gap between columns, for up to so many columns.
_NARROWEST = 60.0  # Smallest width of a strip: both are in one scale of bytes.
_LEAST = 0.7  # Smallest side of a rectangle, so that a norm is a visible line.


class Box(NamedTuple):
    """A rectangle in a strip."""

    x: float
    y: float
    width: float
    height: float


class Column(NamedTuple):
    """A file, or neighbouring files: their bytes and tensors, and their place in the strip."""

    names: Sequence[str]
    tensors: int
    bytes: int
    x: float
    width: float

    @property
    def title(self) -> str:
        """The name of the file, or of the first and the last file."""
        return ends(self.names)

    @property
    def files(self) -> int:
        """How many files it stands for."""
        return len(self.names)


class Cell(NamedTuple):
    """A tensor of the copy, or several (`tensor` is None). Columns count from 0, -1 is none."""

    kind: Kind
    tensor: Tensor | None
    tensors: int
    layers: tuple[str, ...]
    today_bytes: int
    bytes: int
    today: Box | None
    today_column: int
    after: Box
    column: int
    changed: int = 0
    is_filled: bool = False

    @property
    def title(self) -> str:
        """The text that describes the cell."""
        some = f", {self.changed:,} of them {'are filled' if self.is_filled else 'change'}" if self.changed else ""
        change = f", {'is filled' if self.is_filled else 'changes'}" if self.changed == self.tensors else some
        if self.tensor:
            shape = " × ".join(map(str, self.tensor.shape)) or "scalar"
            return f"{self.tensor.name}, {self.tensor.dtype}, {shape}{change}"
        where = f" in {ends(self.layers)}" if self.layers else ""
        return f"{count(self.tensors, f'{self.kind} tensor')}{where}{change}"


class Machine(NamedTuple):
    """A stage of a pipeline: its layers and bytes, and the place of its own files in the strip of the copy."""

    layers: Sequence[str]
    bytes: int
    x: float
    width: float

    @property
    def title(self) -> str:
        """The text that describes the machine, such as "21.1 MB, layers 0 to 2"."""
        lists = {name.rpartition(".")[0] for name in self.layers}
        numbers = ends([name.rpartition(".")[2] for name in self.layers])
        what = f"{lists.pop().rpartition('.')[2]} {numbers}" if len(lists) == 1 else ends(self.layers)
        return f"{format_bytes(self.bytes)}, {what}" if self.layers else format_bytes(self.bytes)


@dataclass(frozen=True, slots=True)
class ModelMap:
    """Cells, and the files that they are in today (empty if not known) and in the copy."""

    cells: tuple[Cell, ...]
    today: tuple[Column, ...]
    after: tuple[Column, ...]
    machines: tuple[Machine, ...] = ()
    experts: ExpertGrid | None = None
    left_out: int = 0  # How many of today's tensors are not in the copy. In the strip of today, their place is empty.

    @property
    def tensors(self) -> int:
        """The number of tensors of the copy."""
        return sum(cell.tensors for cell in self.cells)

    @property
    def changed(self) -> int:
        """How many of them a merge changes."""
        return sum(cell.changed for cell in self.cells)

    @property
    def verb(self) -> str:
        """What happens to the changed ones."""
        verbs = ("is filled", "are filled") if any(cell.is_filled for cell in self.cells) else ("changes", "change")
        return verbs[self.changed != 1]

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds in the map, those with the most bytes first."""
        kinds = dict.fromkeys(cell.kind for cell in self.cells)
        return tuple(sorted(kinds, key=lambda kind: -sum(cell.bytes for cell in self.cells if cell.kind == kind)))


def map_of_plan(checkpoint: Content, plan: Plan) -> ModelMap:
    """Return the map of a checkpoint and of its copy by `plan`."""
    placed = [(tensor, shard.file) for shard in plan.shards for tensor in shard.tensors]
    return _map(placed, [shard.file for shard in plan.shards], checkpoint, plan.stages, plan)


def map_of_copy(
    copy: Content, original: Content | None, stages: Iterable[Stage] = (), plan: Plan | None = None
) -> ModelMap:
    """Return the map of a copy with its `stages`, and of its `original` if known. `plan` says how it was made."""
    placed = [(tensor, tensor.file) for tensor in copy.tensors]
    return _map(placed, [file.path for file in copy.weight_files], original, stages, plan)


@dataclass(slots=True)
class _Group:
    first: Tensor
    layers: dict[str, None]
    tensors: int
    today_bytes: int
    bytes: int
    changed: int


_Place = tuple[int, int, int, Kind, int]
"""The place of a cell: its file today (-1: none), its file in the copy, its layer, its kind, and a number that differs
for each cell if every cell is one tensor. A plain tuple, because there are a hundred thousand of them."""

_Groups = dict[_Place, _Group]

_Placed = Sequence[tuple[Tensor, str]]  # The tensors of a copy, each with its file.


def today_of(tensors: Iterable[Tensor], names: Container[str]) -> dict[str, tuple[str, int]]:
    """Return today's file and bytes of the tensors of a copy with `names`. Scales count to their weight."""
    places: dict[str, tuple[str, int]] = {}
    tensors = list(tensors)
    weight_of = {part.name: weight for weight, parts in companions(tensors, names).items() for part in parts}
    for tensor in tensors:
        name = weight_of.get(tensor.name, tensor.name)
        file, size = places.get(name, (tensor.file, 0))
        places[name] = file, size + tensor.bytes
    return places


def _moved_in(plan: Plan) -> dict[str, tuple[str, int]]:
    """Return today's file of the first byte of each tensor that comes from the model, and its bytes."""
    from_model = (tensor for tensor in plan.tensors if not next(tensor.recipe.reads()).source)
    return {tensor.name: (tensor.file, tensor.bytes) for tensor in from_model}


def _left_out(original: Content, plan: Plan) -> list[Tensor]:
    """Return the tensors of `original` that the copy does not have."""
    if not any("dropped" in change.details for change in plan.made):  # saves a walk through very many tensors
        return []
    extents = (extent for one in plan.tensors for extent in (*one.recipe.reads(), *one.recipe.keeps()))
    read = {extent[1:3] for extent in extents if not extent.source}
    return [one for one in original.tensors if one.bytes and next(one.recipe.reads())[1:3] not in read]


def _map(
    placed: _Placed,
    files: Sequence[str],
    original: Content | None,
    stages: Iterable[Stage],
    plan: Plan | None,
) -> ModelMap:
    changed: Container[str] = plan.of_others if plan else ()
    is_filled = bool(plan and any("filled" in change.details for change in plan.made))
    files_today = [file.path for file in original.weight_files] if original else []
    there = today_of(original.tensors if original else (), {tensor.name for tensor, _ in placed})
    if plan and any(not change.changed or change.details for change in plan.made):  # names may have changed
        there = {**_moved_in(plan), **there}
    numbers = [{file: index for index, file in enumerate(names)} for names in (files_today, files)]
    fine = _grouped(placed, numbers, there, changed)
    # A tensor in pieces lies in many files. Today's files then become one column.
    step_today = len(files_today) if original and original.in_pieces else -(-len(files_today) // MOST_COLUMNS)
    groups, (step_today, step, _) = _few(fine, step_today or 1, len(files))
    held_today = [(was, layer, group.today_bytes, group.tensors) for (was, _, layer, *_), group in groups]
    left_out = _left_out(original, plan) if original and plan else []
    held_today += [(numbers[0][one.file] // step_today, len(placed), one.bytes, 1) for one in left_out]
    held_after = [(column, layer, group.bytes, group.tensors) for (_, column, layer, *_), group in groups]
    totals = [sum(size for column, _, size, _ in one if column >= 0) for one in (held_today, held_after)]
    widths = [max(WIDTH * total / max(*totals, 1), _NARROWEST) if min(totals) else WIDTH for total in totals]
    today = _columns(files_today, step_today, held_today, widths[0])
    after = _columns(files, step, held_after, widths[1])
    boxes_today, boxes = _boxes(today, held_today), _boxes(after, held_after)
    cells = []
    for ((was, column, _, kind, _), group), box_today, box in zip(
        groups, boxes_today[: len(groups)], boxes, strict=True
    ):
        assert box, "every tensor of a copy is in one of its files"
        what = kind, group.first if group.tensors == 1 else None, group.tensors, tuple(group.layers)
        cells.append(Cell(*what, group.today_bytes, group.bytes, box_today, was, box, column, group.changed, is_filled))
    column_of, column_today = (
        {file: at for at, one in enumerate(side) for file in one.names} for side in (after, today)
    )
    experts = expert_grid(
        (tensor.name, column_of[file], column_today.get(there.get(tensor.name, ("", 0))[0], -1), tensor.bytes)
        for tensor, file in placed
    )
    machines = []
    for stage in stages:
        if held := [after[column_of[file]] for file in stage.files if file in column_of]:
            start, end = min(column.x for column in held), max(column.x + column.width for column in held)
            machines.append(Machine(stage.blocks, stage.bytes, start, end - start))
    return ModelMap(tuple(cells), tuple(today), tuple(after), tuple(machines), experts, len(left_out))


def _grouped(
    placed: _Placed, numbers: Sequence[dict[str, int]], there: Mapping[str, tuple[str, int]], changed: Container[str]
) -> _Groups:
    """Return the tensors in groups with the same files, layer and kind; or each on its own, if there are few."""
    number_today, number = numbers
    apart = len(placed) <= MOST_CELLS
    if apart:
        placed = sorted(placed, key=lambda pair: natural_key(pair[0].name))
    names = [layer_of(tensor.name) for tensor, _ in placed]
    layers = {layer: index for index, layer in enumerate(sorted(set(names), key=natural_key))}
    groups: _Groups = {}
    for index, ((tensor, file), layer) in enumerate(zip(placed, names, strict=True)):
        was, today_bytes = there.get(tensor.name, ("", 0))
        place = number_today.get(was, -1), number[file], layers[layer], kind_of(tensor.name), index if apart else 0
        held = {layer: None} if layer else {}
        _add(groups, place, _Group(tensor, held, 1, today_bytes, tensor.bytes, int(tensor.name in changed)))
    return groups


def _add(groups: _Groups, place: _Place, group: _Group) -> None:
    there = groups.setdefault(place, group)
    if there is not group:
        there.layers |= group.layers
        there.tensors += group.tensors
        there.today_bytes += group.today_bytes
        there.bytes += group.bytes
        there.changed += group.changed


def _few(fine: _Groups, step_today: int, files: int) -> tuple[list[tuple[_Place, _Group]], list[int]]:
    """Return at most MOST_CELLS groups, and how many files of today, files of the copy and layers each combines."""
    steps = [step_today, -(-files // MOST_COLUMNS) or 1, 1]
    groups = _merged(fine, steps)
    while len(groups) > MOST_CELLS:
        counts = [len({place[axis] for place in groups}) for axis in range(len(steps))]
        longest = counts.index(max(counts))
        steps[longest] *= 2
        groups = _merged(groups, [2 if axis == longest else 1 for axis in range(len(steps))])
    # Layers from left to right. Inside a layer, the kinds are a stack in the order of their names.
    return sorted(groups.items(), key=lambda item: (item[0][2], *item[0][3:])), steps


def _merged(groups: _Groups, steps: Sequence[int]) -> _Groups:
    merged: _Groups = {}
    for place, group in groups.items():
        today, after, layer = (number // step for number, step in zip(place[:3], steps, strict=True))
        _add(merged, (today, after, layer, *place[3:]), group)
    return merged


_Held = Sequence[tuple[int, int, int, int]]  # The column, layer, bytes and number of tensors of each cell in a strip.


def _columns(files: Sequence[str], step: int, cells: _Held, width: float) -> list[Column]:
    neighbours = [files[start : start + step] for start in range(0, len(files), step)]
    tensors, sizes = [0] * len(neighbours), [0] * len(neighbours)
    for column, _, size, number in cells:
        if column >= 0:
            tensors[column] += number
            sizes[column] += size
    places = _split(0, width, sizes, next(gap for most, gap in _GAPS if len(neighbours) <= most))
    columns = zip(neighbours, tensors, sizes, places, strict=True)
    return [Column(names, held, size, *place) for names, held, size, place in columns]


def _boxes(columns: Sequence[Column], items: _Held) -> list[Box | None]:
    """Return the box of each cell: layers side by side, and the cells of a layer in a stack."""
    layers: dict[int, dict[int, list[int]]] = {}
    for index, (column, layer, *_) in enumerate(items):
        layers.setdefault(column, {}).setdefault(layer, []).append(index)
    boxes: list[Box | None] = [None] * len(items)
    layers.pop(-1, None)
    for column, inside in layers.items():
        sizes = [sum(items[index][2] for index in indexes) for indexes in inside.values()]
        slices = _split(columns[column].x, columns[column].width, sizes, 0)
        for indexes, (x, width) in zip(inside.values(), slices, strict=True):
            rows = _split(0, HEIGHT, [items[index][2] for index in indexes], 0)
            for index, (y, height) in zip(indexes, rows, strict=True):
                boxes[index] = Box(x, y, width, height)
    return boxes


def _split(start: float, length: float, sizes: Sequence[int], gap: float) -> list[tuple[float, float]]:
    """Return the start and length of pieces of `sizes` that fill `length` with gaps between them.

    If there is room, every piece is long enough to be visible.

    >>> _split(0, 100, [3, 1], 4)
    [(0, 72.0), (76.0, 24.0)]
    """
    room = length - gap * (len(sizes) - 1)
    least = min(_LEAST, room / len(sizes)) if sizes else 0
    shares = [max(room * size / (sum(sizes) or 1), least) for size in sizes]
    pieces = []
    for share in shares:
        piece = share * room / sum(shares)
        pieces.append((start, piece))
        start += piece + gap
    return pieces
