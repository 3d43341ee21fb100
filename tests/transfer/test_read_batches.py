"""Reading: every byte once, in the order of use, in few requests. No files."""

from hypothesis import given
from hypothesis import strategies as st

from sharding.core.recipe import Extent
from sharding.transfer.making import Batch, read_batches

BATCH, GAP = 64, 8
NUMBERS = bytes(n % 251 for n in range(5000))


@st.composite
def extents(draw: st.DrawFn) -> list[Extent]:
    """Stretches of up to four files, two of one name in two sources, without overlap and in any order."""
    files = (0, "a"), (0, "b"), (1, "a"), (1, "c")
    ends = dict.fromkeys(files, 0)
    places = []
    for size in draw(st.lists(st.integers(0, 200), max_size=20)):
        file = draw(st.sampled_from(files))
        start = ends[file] + draw(st.integers(0, 20))
        ends[file] = start + size
        places.append(Extent(*file, start, start + size))
    return draw(st.permutations(places))


def absolute(batch: Batch) -> list[Extent]:
    """Where the pieces of a batch lie in the source."""
    places = []
    for index, part in batch.pieces:
        source, file, start, end = batch.ranges[index]
        assert start + part.stop <= end
        places.append(Extent(source, file, start + part.start, start + part.stop))
    return places


@given(extents(), st.integers(0, 40), st.integers(-40, 40))
def test_a_batch_is_used_in_the_order_asked_for_and_bytes_wanted_twice_are_fetched_once(
    wanted: list[Extent], first: int, last: int
) -> None:
    again = ((file, start + first, end + last) for *file, start, end in wanted)
    wanted += [Extent(*file, start, max(start, end)) for file, start, end in again]  # type: ignore[misc]
    files = {(source, file): NUMBERS[source + ord(file) :] for source, file, *_ in wanted}
    data = b""
    for batch in read_batches(wanted, BATCH, GAP):
        buffers = [files[source, file][start:end] for source, file, start, end in batch.ranges]
        data += b"".join(batch.used(buffers))
        for one, other in zip(batch.ranges, batch.ranges[1:], strict=False):
            assert one[:2] != other[:2] or one.end_byte < other.start_byte
    assert data == b"".join(files[source, file][start:end] for source, file, start, end in wanted)


@given(extents())
def test_a_batch_is_bounded_with_the_gaps_that_it_reads_through(wanted: list[Extent]) -> None:
    for batch in read_batches(wanted, BATCH, GAP):
        assert sum(part.stop - part.start for _, part in batch.pieces) <= BATCH
        assert batch.fetched_bytes == sum(end - start for _, _, start, end in batch.ranges) <= 2 * BATCH


def stretch(start: int, end: int, file: str = "f") -> Extent:
    return Extent(0, file, start, end)


def test_a_stretch_inside_another_is_read_with_it() -> None:
    wanted = [stretch(0, 30), stretch(10, 20)]
    (batch,) = read_batches(wanted, BATCH, GAP)
    assert batch.ranges == (stretch(0, 30),) and absolute(batch) == wanted


def test_small_stretches_in_any_order_cost_one_request() -> None:
    (batch,) = read_batches([stretch(4 * n, 4 * n + 4) for n in (9, 2, 7, 0, 5, 1, 8, 3, 6, 4)], BATCH, GAP)
    assert len(batch.ranges) == 1


def test_a_gap_is_read_through_only_where_it_is_small() -> None:
    near, far = [stretch(0, 4), stretch(4 + GAP, 8 + GAP)], [stretch(0, 4), stretch(5 + GAP, 9 + GAP)]
    assert [len(batch.ranges) for batch in read_batches(near, BATCH, GAP)] == [1]
    assert [len(batch.ranges) for batch in read_batches(far, BATCH, GAP)] == [2]


def test_gaps_are_read_through_up_to_as_many_bytes_as_a_batch_has() -> None:
    step, count = GAP + 1, 20
    wanted = [stretch(step * n, step * n + 1) for n in range(count)]
    (batch,) = read_batches(wanted, BATCH, GAP)
    joined = BATCH // GAP  # so many gaps are as many bytes as a batch
    sizes = [end - start for _, _, start, end in batch.ranges]
    assert sizes == [joined * step + 1, *[1] * (count - joined - 1)]
    assert absolute(batch) == wanted


def test_a_batch_is_filled_to_its_last_byte_and_no_further() -> None:
    for sizes, filled in (([32, 32, 1], [64, 1]), ([64, 64], [64, 64]), ([33, 32], [64, 1]), ([60, 60], [64, 56])):
        ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        wanted = [stretch(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        batches = list(read_batches(wanted, BATCH, GAP))
        assert [sum(part.stop - part.start for _, part in batch.pieces) for batch in batches] == filled
