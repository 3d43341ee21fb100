"""Reading: every byte once, in the order of the result, in few requests. No files."""

from hypothesis import given
from hypothesis import strategies as st

from sharding.core.values import Tensor
from sharding.transfer.read_batches import Batch, read_batches
from tests.tensors import stored_tensor

BATCH, GAP = 64, 8


@st.composite
def stored_tensors(draw: st.DrawFn) -> list[Tensor]:
    """Tensors that lie in up to three files without overlap, to be written in any order."""
    places = {"a": 0, "b": 0, "c": 0}
    tensors = []
    for number, size in enumerate(draw(st.lists(st.integers(0, 200), max_size=20))):
        file = draw(st.sampled_from("abc"))
        start = places[file] + draw(st.integers(0, 20))
        places[file] = start + size
        tensors.append(stored_tensor(f"t{number}", "U8", (size,), file, start, start + size))
    return draw(st.permutations(tensors))


def absolute(batch: Batch) -> list[tuple[str, str, int, int]]:
    """The pieces of a batch as (tensor, file, start, end) in the source."""
    found = []
    for piece in batch.pieces:
        stretch = batch.ranges[piece.range_index]
        assert stretch.start_byte + piece.end_byte <= stretch.end_byte
        found.append(
            (piece.tensor, stretch.file, stretch.start_byte + piece.start_byte, stretch.start_byte + piece.end_byte)
        )
    return found


@given(stored_tensors())
def test_every_byte_is_delivered_once_and_in_order(tensors: list[Tensor]) -> None:
    delivered = [
        (name, file, byte)
        for batch in read_batches(tensors, BATCH, GAP)
        for name, file, start, end in absolute(batch)
        for byte in range(start, end)
    ]
    assert delivered == [
        (entry.name, entry.file, byte) for entry in tensors for byte in range(entry.start_byte, entry.end_byte)
    ]


@given(stored_tensors())
def test_a_batch_is_bounded_with_the_gaps_that_it_reads_through(tensors: list[Tensor]) -> None:
    for batch in read_batches(tensors, BATCH, GAP):
        assert sum(piece.end_byte - piece.start_byte for piece in batch.pieces) <= BATCH
        assert sum(stretch.end_byte - stretch.start_byte for stretch in batch.ranges) <= 2 * BATCH


@given(stored_tensors())
def test_no_tensor_is_cut_inside_an_element(tensors: list[Tensor]) -> None:
    starts = {entry.name: entry.start_byte for entry in tensors}
    ends = {entry.name: entry.end_byte for entry in tensors}
    for batch in read_batches(tensors, BATCH, GAP):
        for name, _, _, end in absolute(batch):
            assert end == ends[name] or (end - starts[name]) % 8 == 0


def test_small_tensors_in_any_order_cost_one_request() -> None:
    tensors = [stored_tensor(f"t{n}", "U8", (4,), "f", 4 * n, 4 * n + 4) for n in (9, 2, 7, 0, 5, 1, 8, 3, 6, 4)]
    (batch,) = read_batches(tensors, BATCH, GAP)
    assert len(batch.ranges) == 1


def test_a_gap_is_read_through_only_where_it_is_small() -> None:
    near = [stored_tensor("a", "U8", (4,), "f", 0, 4), stored_tensor("b", "U8", (4,), "f", 4 + GAP, 8 + GAP)]
    far = [near[0], stored_tensor("b", "U8", (4,), "f", 5 + GAP, 9 + GAP)]
    assert [len(batch.ranges) for batch in read_batches(near, BATCH, GAP)] == [1]
    assert [len(batch.ranges) for batch in read_batches(far, BATCH, GAP)] == [2]


def test_a_large_tensor_spans_as_many_batches_as_it_fills() -> None:
    batches = list(read_batches([stored_tensor("big", "U8", (1000,), "f", 3, 1003)], BATCH, GAP))
    assert len(batches) == -(-1000 // BATCH)


def test_gaps_are_read_through_up_to_as_many_bytes_as_a_batch_has() -> None:
    step = GAP + 1
    tensors = [stored_tensor(f"t{n}", "U8", (1,), "f", step * n, step * n + 1) for n in range(20)]
    (batch,) = read_batches(tensors, BATCH, GAP)
    joined = BATCH // GAP  # so many gaps are as many bytes as a batch
    assert [stretch.end_byte - stretch.start_byte for stretch in batch.ranges] == [
        joined * step + 1,
        *[1] * (len(tensors) - joined - 1),
    ]
    assert absolute(batch) == [(entry.name, "f", entry.start_byte, entry.end_byte) for entry in tensors]


def test_a_batch_is_filled_to_its_last_byte_and_no_further() -> None:
    for sizes, wanted in (([32, 32, 1], [64, 1]), ([64, 64], [64, 64]), ([33, 32], [57, 8]), ([60, 60], [60, 60])):
        ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        entries = [
            stored_tensor(f"t{n}", "U8", (size,), "f", end - size, end)
            for n, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ]
        batches = list(read_batches(entries, BATCH, GAP))
        assert [sum(piece.end_byte - piece.start_byte for piece in batch.pieces) for batch in batches] == wanted


def test_what_lies_at_one_place_of_two_files_is_not_joined() -> None:
    tensors = [stored_tensor(f"t{n}", "U8", (4,), "ab"[n % 2], 4 * n, 4 * n + 4) for n in range(6)]
    (batch,) = read_batches(tensors, BATCH, GAP)
    assert [(stretch.file, stretch.start_byte, stretch.end_byte) for stretch in batch.ranges] == [
        ("a", 0, 20),
        ("b", 4, 24),
    ]
