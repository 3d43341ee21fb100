"""Bytes that are made of others: in which order, in which memory, and only where what that takes is installed."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
import torch
from sharding.core.computed import Computed, Numbers
from sharding.core.gathered import Box, Gathered, in_one_piece
from sharding.transfer.dequantize_source import dequantizing
from sharding.transfer.strided_source import gathering

from sharding.core.errors import Refused
from sharding.core.protocols import Source
from sharding.transfer.prepare import Making
from tests.fuzz.targets import Memory
from tests.tensors import stored_tensor

FILE = "pytorch_model.bin"


class Counting(Memory):
    """A source that notes what is read of it, and gives it in short chunks."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.noted: list[tuple[int, int]] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.noted.append((start_byte, end_byte))
        for at in range(start_byte, end_byte, 13):
            yield from super().read(file, at, min(at + 13, end_byte))


def whole(source: Source, start: int, end: int) -> bytes:
    return b"".join(source.read(FILE, start, end))


# --- What is installed ------------------------------------------------------------------------------------------

NUMBERS = Numbers(FILE, 0, "F8_E4M3", (2, 2))
COMPUTED = Computed(FILE, 20, 36, "F32", (2, 2), "fp8", NUMBERS, Numbers(FILE, 4, "F32", (1,)), (2, 2))
TURNED = Gathered(FILE, 20, 24, 1, (2, 2), in_one_piece(FILE, 0, (2, 2), (1, 2)))
IN_ORDER = Gathered(
    FILE, 20, 24, 1, (2, 2), (Box(FILE, 2, (0, 0), (1, 2), (2, 1)), Box(FILE, 0, (1, 0), (1, 2), (2, 1)))
)
EXTRAS = {"torch", "numpy"}


@pytest.mark.parametrize(
    ("make", "needed", "what"),
    [
        (lambda source: dequantizing(source, [COMPUTED]), ["torch", "numpy"], "Dequantizing"),
        (lambda source: gathering(source, [TURNED]), ["numpy"], "Writing what does not lie in order"),
        (lambda source: gathering(source, [IN_ORDER, TURNED]), ["numpy"], "Writing what does not lie in order"),
        (lambda source: gathering(source, [IN_ORDER]), [], ""),
        (lambda source: dequantizing(source, []), [], ""),
        (lambda source: gathering(source, []), [], ""),
        (lambda source: Making((TURNED,), (COMPUTED,)).read_from(source), ["torch", "numpy"], ""),
        (lambda source: Making().read_from(source), [], ""),
    ],
)
@pytest.mark.parametrize(
    "missing", [{"torch"}, {"numpy"}, {"torch", "numpy"}, set()], ids=["torch", "numpy", "both", "none"]
)
def test_what_takes_a_package_is_refused_without_it_before_anything_is_read(
    make: Callable[[Source], Source], needed: list[str], what: str, missing: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Counting(bytes(range(20)))
    monkeypatch.setattr("sharding.core.extras.find_spec", lambda module: None if module in missing else object())
    lacking = [module for module in needed if module in missing]
    if not lacking:
        assert make(source)
        return
    with pytest.raises(Refused, match=f"^{what}.* needs what a plain install does not bring") as refusal:
        make(source)
    assert set(lacking) >= set(refusal.value.message.rstrip(".").rpartition(": ")[2].split(", ")) > set()
    assert refusal.value.hint.startswith("Run `pip install '.[")
    assert source.noted == []


# --- The order of making ------------------------------------------------------------------------------------------


def test_where_nothing_is_made_the_source_itself_is_read() -> None:
    source = Memory(b"data")
    assert Making().read_from(source) is source
    assert dequantizing(source, []) is source and gathering(source, []) is source


def test_tensors_are_put_together_then_computed_and_then_cast() -> None:
    packed = torch.tensor([[1.5, -2.0, 0.25], [448.0, 7.0, -0.5]]).to(torch.float8_e4m3fn)
    bits = packed.view(torch.uint8).numpy()
    scale = np.array([1000.0], np.float32)
    data = bits.T.tobytes() + b"\0\0" + scale.tobytes()  # the numbers lie turned
    laid = Gathered(FILE, 12, 18, 1, (2, 3), in_one_piece(FILE, 0, (2, 3), (1, 2)))
    numbers = Computed(
        FILE, 18, 42, "F32", (2, 3), "fp8", Numbers(FILE, 12, "F8_E4M3", (2, 3)), Numbers(FILE, 8, "F32", (1,)), (2, 3)
    )
    stored, after = stored_tensor("w", "F32", (2, 3), FILE, 18, 42), stored_tensor("w", "F16", (2, 3), FILE, 0, 12)
    making = Making((laid,), (numbers,), (stored,), (after,), allow_overflow=True)
    product_of_both = packed.float() * 1000
    reading = making.read_from(Counting(data))
    for start, end in ((0, 12), (2, 10), (5, 6)):
        assert whole(reading, start, end) == product_of_both.to(torch.float16).numpy().tobytes()[start:end]
    assert reading.overflowed["w"] == 2  # type: ignore[attr-defined]  # in the first and in the second range
    whole_numbers = Making((laid,), (numbers,)).read_from(Counting(data))
    assert whole(whole_numbers, 18, 42) == product_of_both.numpy().tobytes()
    assert whole(whole_numbers, 12, 18) == bits.tobytes()


# --- Memory -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("item", [1, 2, 4, 8])
@pytest.mark.parametrize("shape", [(12, 20), (20, 12), (3, 5, 7), (40,)], ids=str)
def test_a_tile_has_so_many_bytes_at_most_whatever_the_size_of_an_element(
    item: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tile, span = 64, 16
    monkeypatch.setattr("sharding.transfer.strided_source.TILE_BYTES", tile)
    monkeypatch.setattr("sharding.transfer.strided_source.GATHERED_SPAN_BYTES", span)
    monkeypatch.setattr("sharding.transfer.strided_source.BATCH_BYTES", 48)
    count = int(np.prod(shape))
    if len(shape) == 1:  # every second element
        stored = np.arange(2 * count).astype(f"u{item}")
        laid, strides = stored[::2], (2,)
    else:
        stored = np.arange(count).astype(f"u{item}").reshape(shape[::-1])
        laid = stored.T
        strides = tuple(stride // item for stride in laid.strides)
    end = stored.nbytes
    part = Gathered(FILE, end, end + laid.nbytes, item, shape, in_one_piece(FILE, 0, shape, strides))
    expected = laid.tobytes()
    for at in range(0, laid.nbytes, 1 + laid.nbytes // 11):
        source = Counting(stored.tobytes())
        reading = gathering(source, [part])
        assert whole(reading, end + at, end + at + 1) == expected[at : at + 1]
        assert all(stop - start <= span for start, stop in source.noted)
        # One tile is laid for a byte. Where elements lie apart, reads have what lies between.
        elements = sum(-(-(stop - start) // item) for start, stop in source.noted)
        assert len(source.noted) * item <= tile and elements * item <= 3 * tile
    source = Counting(stored.tobytes())
    chunks = list(gathering(source, [part]).read(FILE, end, end + laid.nbytes))
    assert b"".join(chunks) == expected and all(0 < len(chunk) <= 48 for chunk in chunks)
    assert len(chunks) >= -(-laid.nbytes // 48)


def test_blocks_of_a_matrix_that_is_not_the_first_begin_with_that_matrix() -> None:
    matrices, rows, columns, block = 3, 5, 3, (2, 2)
    packed = torch.arange(1, 1 + matrices * rows * columns, dtype=torch.uint8).view(torch.float8_e4m3fn)
    packed = packed.reshape(matrices, rows, columns)
    scales = torch.arange(1.0, 1 + matrices * 3 * 2).reshape(matrices, 3, 2)
    data = packed.view(torch.uint8).numpy().tobytes() + b"\0" * 3 + scales.numpy().tobytes()
    end, size = len(data), 4 * packed.numel()
    numbers, grid = Numbers(FILE, 0, "F8_E4M3", tuple(packed.shape)), Numbers(FILE, 48, "F32", (3, 3, 2))
    part = Computed(FILE, end, end + size, "F32", tuple(packed.shape), "fp8", numbers, grid, block)
    expected = torch.empty(packed.shape)
    for matrix, row, column in product(range(matrices), range(rows), range(columns)):
        scale = scales[matrix, row // 2, column // 2]
        expected[matrix, row, column] = packed[matrix, row, column].float() * scale
    reading = dequantizing(Counting(data), [part])
    for start in range(0, size, 4 * columns):
        for stop in (start + 4, start + 4 * columns, start + 8 * columns, size):
            assert whole(reading, end + start, end + min(stop, size)) == expected.numpy().tobytes()[start:stop]
