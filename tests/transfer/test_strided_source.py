"""Tensors that do not lie in order are read as if they did, in bounded memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharding.core.gathered import Box, Gathered, in_one_piece, strides_of
from sharding.transfer.strided_source import GatheringSource

from sharding.core.errors import SourceError
from sharding.formats.torch_checkpoint import read_archive
from sharding.storage.folder_source import open_folder
from tests.folders import bits
from tests.fuzz.targets import Memory

pytestmark = [
    # transformers warns about itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of a small tensor: dimensions swapped, cut, stepped over and expanded."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dtype = draw(st.sampled_from([torch.int8, torch.int16, torch.float32, torch.int64]))
    view = torch.arange(int(np.prod(lengths))).reshape(lengths).to(dtype)
    view = view.permute(draw(st.permutations(range(view.ndim))))
    for axis in range(view.ndim):
        start, step = draw(st.integers(0, view.shape[axis] - 1)), draw(st.integers(1, 2))
        view = view[(slice(None),) * axis + (slice(start, None, step),)]
    if draw(st.booleans()):
        view = view.unsqueeze(0).expand(draw(st.integers(1, 4)), *view.shape)
    return view


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(view=views(), tile=st.integers(8, 64), span=st.integers(8, 64), cut=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_any_range_of_any_view_is_gathered_in_any_memory(
    view: torch.Tensor, tile: int, span: int, cut: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.transfer.strided_source.TILE_BYTES", tile)
    monkeypatch.setattr("sharding.transfer.strided_source.GATHERED_SPAN_BYTES", span)
    base = view._base if view._base is not None else view
    source = Memory(bits(base)[2])
    size, end = view.nbytes, base.nbytes
    origin, item = view.storage_offset() * view.element_size(), view.element_size()
    boxes = in_one_piece("pytorch_model.bin", origin, tuple(view.shape), view.stride())
    part = Gathered("pytorch_model.bin", end, end + size, item, tuple(view.shape), boxes)
    reading = GatheringSource(source, [part])
    start, stop = sorted(int(share * size) for share in cut)
    gathered = b"".join(reading.read("pytorch_model.bin", end + start, end + stop))
    assert gathered == bits(view)[2][start:stop]
    whole = b"".join(reading.read("pytorch_model.bin", 0, end + size))
    assert whole == bits(base)[2] + bits(view)[2]


@st.composite
def cuts(draw: st.DrawFn) -> tuple[torch.Tensor, list[tuple[slice, ...]]]:
    """A small tensor, and where it is cut: along every dimension, unevenly, into boxes in any order."""
    shape = draw(st.lists(st.integers(1, 6), max_size=3))
    tensor = torch.arange(int(np.prod(shape))).reshape(shape).to(draw(st.sampled_from([torch.int16, torch.float32])))
    boxes: list[tuple[slice, ...]] = [()]
    for length in shape:
        inner = draw(st.sets(st.integers(1, length - 1), max_size=3)) if length > 1 else set()
        marks = [0, *sorted(inner), length]
        boxes = [(*box, slice(a, b)) for box in boxes for a, b in zip(marks, marks[1:], strict=False)]
    return tensor, draw(st.permutations(boxes)) if draw(st.booleans()) else boxes


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(cut=cuts(), tile=st.integers(8, 64), span=st.integers(8, 64), share=st.tuples(st.floats(0, 1), st.floats(0, 1)))
def test_any_range_of_a_tensor_in_pieces_is_put_together(
    cut: tuple[torch.Tensor, list[tuple[slice, ...]]],
    tile: int,
    span: int,
    share: tuple[float, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sharding.transfer.strided_source.TILE_BYTES", tile)
    monkeypatch.setattr("sharding.transfer.strided_source.GATHERED_SPAN_BYTES", span)
    tensor, places = cut
    data, boxes = b"", []
    for place in places:
        piece = tensor[place].contiguous()
        shape = tuple(piece.shape)
        boxes.append(Box("pytorch_model.bin", len(data), tuple(s.start for s in place), shape, strides_of(shape)))
        data += bits(piece)[2]
    part = Gathered(
        "pytorch_model.bin",
        len(data),
        len(data) + tensor.nbytes,
        tensor.element_size(),
        tuple(tensor.shape),
        tuple(boxes),
    )
    start, stop = sorted(int(number * tensor.nbytes) for number in share)
    found = b"".join(
        GatheringSource(Memory(data), [part]).read("pytorch_model.bin", len(data) + start, len(data) + stop)
    )
    assert found == bits(tensor)[2][start:stop]


def test_a_tile_that_could_not_be_read_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(16))
    part = Gathered("pytorch_model.bin", 16, 32, 1, (4, 4), in_one_piece("pytorch_model.bin", 0, (4, 4), (1, 4)))
    source = Memory(data)
    reading = GatheringSource(source, [part])
    sound = source.read

    def broken(*_: object) -> None:
        raise SourceError("The disk is gone.")

    monkeypatch.setattr(source, "read", broken)
    with pytest.raises(SourceError, match="gone"):
        list(reading.read("pytorch_model.bin", 16, 32))
    monkeypatch.setattr(source, "read", sound)
    found = b"".join(reading.read("pytorch_model.bin", 16, 32))
    assert found == np.arange(16, dtype="u1").reshape(4, 4).T.tobytes()


def test_a_transpose_takes_a_few_tiles_of_memory(tmp_path: Path) -> None:
    import tracemalloc

    side = 4000
    torch.save(
        {"w": torch.arange(side * side, dtype=torch.float32).view(side, side).t()}, tmp_path / "pytorch_model.bin"
    )
    source = open_folder(str(tmp_path))
    found = read_archive(source, source.files[0])
    reading = GatheringSource(source, found.gathered)
    (tensor,) = found.tensors
    assert tensor.bytes == 64_000_000
    np.lib.stride_tricks  # noqa: B018  # imported before memory is counted
    tracemalloc.start()
    size = sum(len(chunk) for chunk in reading.read(tensor.file, tensor.start_byte, tensor.end_byte))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == tensor.bytes
    assert peak_bytes < 64 << 20
