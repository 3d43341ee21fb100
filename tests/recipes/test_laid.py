"""Tensors that do not lie in order are written as if they did, and with other rows, in bounded memory."""

import tracemalloc
from collections.abc import Callable, Iterable
from math import prod
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.checkpoint.readers.torch_bin import read_archive
from sharding.core.errors import OverflowRefused
from sharding.core.recipe import Feed
from sharding.recipes import laid
from sharding.recipes.cast import Cast
from sharding.recipes.laid import TILE_BYTES, Box, Laid, Rows, strides_of
from sharding.storage.folder_source import open_folder
from sharding.transfer.stream import only_tensors
from sharding.verify.digests import Reader
from tests.folders import bits, result_of
from tests.fuzz.targets import Memory
from tests.promises import promise
from tests.recipes.executor import FILE, ShortChunks, bytes_of, outcome, shard_of, tensor_of
from tests.recipes.updates import Tensors

SMALL = {"limits": st.tuples(st.integers(8, 64), st.integers(8, 64)), "batch": st.sampled_from([1, 7, 64, 1 << 20])}


Bounds = Callable[..., None]


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> Bounds:
    def small(tile: int, span: int, chunk: int = 48) -> None:
        monkeypatch.setattr(laid, "TILE_BYTES", tile)
        monkeypatch.setattr(laid, "GATHERED_SPAN_BYTES", span)
        monkeypatch.setattr(laid, "BATCH_BYTES", chunk)

    return small


def of_view(view: torch.Tensor) -> Laid:
    """The recipe of a view of a tensor that is all of the file."""
    origin, shape = view.storage_offset() * view.element_size(), tuple(view.shape)
    return Laid((Box(FILE, origin, (0,) * view.ndim, shape, view.stride()),), shape, view.element_size())


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of a small tensor: dimensions swapped, cut, stepped over and expanded."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.int8, torch.int16, torch.float32, torch.int64]))
    view = torch.arange(prod(lengths)).reshape(lengths).to(dtype)
    view = view.permute(draw(st.permutations(range(view.ndim))))
    for axis in range(view.ndim):
        start, step = draw(st.integers(0, view.shape[axis] - 1)), draw(st.integers(1, 2))
        view = view[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(draw(st.integers(1, 4)), *view.shape)
    return view


@promise("docs/formats.md#pickled-weights")
@given(view=views(), **SMALL)
def test_any_view_is_written_in_any_memory(
    view: torch.Tensor, limits: tuple[int, int], batch: int, bounds: Bounds
) -> None:
    bounds(*limits)
    base = view._base if view._base is not None else view
    assert bytes_of(of_view(view), ShortChunks(bits(base)[2], batch_bytes=batch)) == bits(view)[2]


Place = tuple[slice, ...]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[torch.Tensor, list[Place]]:
    """A small tensor, and where it is cut: along every dimension, unevenly, into boxes in any order."""
    shape = draw(st.lists(st.integers(1, 6), max_size=3))
    tensor = torch.arange(prod(shape)).reshape(shape).to(draw(st.sampled_from([torch.int16, torch.float32])))
    boxes: list[Place] = [()]
    for length in shape:
        inner = draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
        marks = [0, *sorted(inner), length]
        boxes = [(*box, slice(a, b)) for box in boxes for a, b in zip(marks, marks[1:], strict=False)]
    return tensor, draw(st.permutations(boxes)) if draw(st.booleans()) else boxes


def in_pieces(tensor: torch.Tensor, places: Iterable[Place]) -> tuple[Laid, bytes]:
    """The recipe of a tensor whose pieces are one after another in the file, and the file."""
    data, boxes = b"", []
    for place in places:
        piece = tensor[place].contiguous()
        shape = tuple(piece.shape)
        boxes.append(Box(FILE, len(data), tuple(side.start for side in place), shape, strides_of(shape)))
        data += bits(piece)[2]
    return Laid(tuple(boxes), tuple(tensor.shape), tensor.element_size()), data


@given(cut=cuts(), **SMALL)
def test_any_tensor_in_pieces_is_put_together(
    cut: tuple[torch.Tensor, list[Place]], limits: tuple[int, int], batch: int, bounds: Bounds
) -> None:
    bounds(*limits)
    recipe, data = in_pieces(*cut)
    assert bytes_of(recipe, ShortChunks(data, batch_bytes=batch)) == bits(cut[0])[2]


def test_pieces_may_lie_in_several_files_of_several_sources() -> None:
    tensor = torch.arange(24, dtype=torch.int16).reshape(4, 6)
    left, right = bits(tensor[:, :2])[2], bits(tensor[:, 2:])[2]
    one, other = Memory(b"", {"left": left, "same": b"no"}), Memory(b"", {"same": b"??" + right})
    boxes = Box("same", 2, (0, 2), (4, 4), (4, 1), source=1), Box("left", 0, (0, 0), (4, 2), (2, 1))
    recipe = Laid(boxes, (4, 6), 2)
    assert bytes_of(recipe, one, other) == bits(tensor)[2]
    assert recipe.files() == {(0, "left"), (1, "same")}


def test_pieces_that_follow_one_another_are_each_read_once_in_one_go() -> None:
    tensor = torch.arange(60, dtype=torch.int16).reshape(10, 6)
    places = [(slice(a, b), slice(0, 6)) for a, b in ((0, 3), (3, 4), (4, 10))]
    recipe, data = in_pieces(tensor, places)
    source = ShortChunks(data)
    assert bytes_of(recipe, source) == bits(tensor)[2]
    assert source.noted == [(0, 120)]
    assert [extent[2:] for extent in recipe.reads()] == [(0, 36), (36, 48), (48, 120)]


def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How large the tiles are that are laid from now on."""
    sizes = list[int]()

    def noting(number: int, size: int, flags: int) -> mmap:
        sizes.append(size)
        return mmap(number, size, flags)

    monkeypatch.setattr(laid, "mmap", noting)
    return sizes


@pytest.mark.parametrize("item", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (3, 5, 7), (40,)], ids=str)
def test_a_tile_a_read_and_a_chunk_have_so_many_bytes_at_most_whatever_the_size_of_an_element(
    item: int, shape: tuple[int, ...], bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile, span, chunk = 64, 16, 48
    bounds(tile, span, chunk)
    sizes = mapped(monkeypatch)
    count = prod(shape)
    stored = np.arange(2 * count if len(shape) == 1 else count).astype(f"u{item}")
    view = stored[::2] if len(shape) == 1 else stored.reshape(shape[::-1]).T
    strides = tuple(stride // item for stride in view.strides)
    recipe = Laid((Box(FILE, 0, (0,) * len(shape), shape, strides),), shape, item)
    reads, data = list(recipe.reads()), stored.tobytes()
    assert all(0 < read.end_byte - read.start_byte <= span for read in reads)
    inputs = Feed(data[read.start_byte : read.end_byte] for read in reads)
    chunks = [bytes(made.data) for made in recipe.make(inputs, kept=None)]  # type: ignore[arg-type]
    assert b"".join(chunks) == view.tobytes() and all(0 < len(made) <= chunk for made in chunks)
    (size,) = sizes  # one tile after another lies in the same place
    assert size <= tile
    assert 2 * size >= min(tile, view.nbytes), "nor are they much smaller than they may be"


def test_a_transpose_takes_a_few_tiles_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = 4000
    turned = torch.arange(side * side, dtype=torch.float32).view(side, side).t()
    torch.save({"w": turned}, tmp_path / "pytorch_model.bin")
    source = open_folder(str(tmp_path))
    (tensor,) = read_archive(source, source.files[0]).tensors
    assert tensor.bytes == 64_000_000
    sizes = mapped(monkeypatch)
    small = tensor_of(of_view(torch.zeros(2, 2).t()))
    result_of(Reader().digest_shards([shard_of([small])], only_tensors, [source]))  # what is imported
    tracemalloc.start()
    result_of(Reader().digest_shards([shard_of([tensor])], only_tensors, [source]))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert max(sizes) <= TILE_BYTES  # which are mapped, so not traced
    assert peak_bytes < 32 << 20
    assert source.bytes_read <= 5 * tensor.bytes, "each tile takes nearly all, and there are four"


# --- Rows ---------------------------------------------------------------------------------------------------


@promise("docs/formats.md#what-becomes-of-each-tensor")
@given(count=st.integers(1, 40), width=st.integers(1, 9), batch=st.sampled_from([1, 8, 37, 1 << 20]), data=st.data())
def test_any_rows_are_replaced_in_their_order_whatever_comes_at_a_time(
    count: int, width: int, batch: int, data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(laid, "BATCH_BYTES", batch)
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=1, unique=True))
    old = torch.arange(count * width, dtype=torch.int16).reshape(count, width)
    new = -1 - torch.arange(len(places) * width, dtype=torch.int16).reshape(len(places), width)
    file = Tensors()
    recipe = Rows(file.add(old), file.add(new), tuple(places), 2 * width)
    expected = old.clone()
    expected[torch.tensor(places)] = new
    chunks = [bytes(chunk.data) for chunk in file.chunks(recipe)]
    assert b"".join(chunks) == bits(expected)[2]
    assert max(map(len, chunks)) <= max(batch, 2 * width)
    assert bytes_of(recipe, file.source(7)) == bits(expected)[2]


def test_new_rows_may_be_cast_first() -> None:
    file, old, new = Tensors(), torch.ones(4, 3, dtype=torch.bfloat16), torch.tensor([[0.1, 1e-9, 3e38]])
    recipe = Rows(file.add(old), Cast(file.add(new), "F32", "BF16"), (2,), 6)
    expected = old.clone()
    expected[2] = new[0]
    assert bytes_of(recipe, file.source()) == bits(expected)[2]


@pytest.mark.parametrize("may_overflow", [False, True])
def test_numbers_of_new_rows_that_become_infinite_are_counted_or_refused(may_overflow: bool) -> None:
    file, old, new = Tensors(), torch.ones(4, 3, dtype=torch.float16), torch.tensor([[1e6, 1, -1e6], [2, 3, 4]])
    recipe = Rows(file.add(old), Cast(file.add(new), "F32", "F16"), (2, 0), 6)
    assert sum(chunk.overflowed for chunk in file.chunks(recipe)) == 2
    if may_overflow:
        assert outcome([tensor_of(recipe)], file.source())[1].overflowed == {"w": 2}
    else:
        with pytest.raises(OverflowRefused, match="make 2 finite numbers of w infinite"):
            outcome([tensor_of(recipe)], file.source(), may_overflow=False)
