"""What threads keep of what they have read: within its bytes, once for all, and each thread's memory its own."""

from collections.abc import Iterator
from threading import Barrier, Event, Thread

import pytest
from sharding.transfer.feed import Feed, scratch

from sharding.core.errors import SourceError
from sharding.transfer.kept import Kept
from sharding.transfer.pages import Pages
from tests.fuzz.targets import Memory

LONG = 30.0
"""Seconds for what comes at once, unless something is broken."""


def is_kept(kept: Kept[str], key: str, size: int) -> bool:
    return kept.get(key, size, lambda: "made anew") != "made anew"


def keep(kept: Kept[str], sizes: dict[str, int]) -> None:
    for key, size in sizes.items():
        assert kept.get(key, size, lambda key=key: key) == key  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ({"a": 50, "b": 50}, {"a", "b"}),
        ({"a": 50, "b": 51}, {"b"}),
        ({"a": 40, "b": 40, "c": 20}, {"a", "b", "c"}),
        ({"a": 40, "b": 40, "c": 21}, {"b", "c"}),
        ({"a": 40, "b": 40, "c": 61}, {"c"}),
        ({"a": 10, "b": 200}, {"b"}),
        ({"b": 200, "a": 10}, {"a"}),
        ({"a": 100}, {"a"}),
    ],
)
def test_what_is_kept_fits_or_is_one_larger_value(sizes: dict[str, int], left: set[str]) -> None:
    for key in sizes:  # what is asked for now may push others out
        kept: Kept[str] = Kept(100)
        keep(kept, sizes)
        assert is_kept(kept, key, sizes[key]) == (key in left), key


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    kept: Kept[str] = Kept(100)
    keep(kept, {"a": 40, "b": 40})
    assert is_kept(kept, "a", 40)  # now b is the one asked for longest ago
    keep(kept, {"c": 40})
    assert is_kept(kept, "a", 40) and is_kept(kept, "c", 40)
    assert not is_kept(kept, "b", 40)  # which pushes out a, the elder of the two
    assert is_kept(kept, "c", 40) and not is_kept(kept, "a", 40)


def test_an_error_reaches_all_who_wait_and_nobody_who_asks_again() -> None:
    kept: Kept[str] = Kept(100)
    begun, go_on, errors = Event(), Event(), []

    def fail() -> str:
        begun.set()
        assert go_on.wait(LONG)
        raise SourceError("gone")

    def ask() -> None:
        try:
            kept.get("page", 10, fail)
        except SourceError as error:
            errors.append(error.message)

    first, second = Thread(target=ask), Thread(target=ask)
    first.start()
    assert begun.wait(LONG)
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(LONG)
    assert errors == ["gone"] * 2
    for _ in range(2):
        with pytest.raises(SourceError, match="gone"):
            kept.get("page", 10, fail)
    keep(kept, {"page": 10})
    assert is_kept(kept, "page", 10)


def test_a_value_that_took_the_place_of_one_that_failed_is_kept() -> None:
    kept: Kept[str] = Kept(100)

    def fail() -> str:
        keep(kept, {"large": 100})  # pushes out what is being made
        keep(kept, {"page": 10})
        raise SourceError("gone")

    with pytest.raises(SourceError):
        kept.get("page", 10, fail)
    assert is_kept(kept, "page", 10)


# --- Pages ------------------------------------------------------------------------------------------------------


class Counting(Memory):
    """A source of two files that notes what is read of it."""

    def __init__(self) -> None:
        super().__init__(b"", {"one": bytes(range(200)), "other": bytes(range(199, -1, -1))})
        self.noted: list[tuple[str, int, int]] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.noted.append((file, start_byte, end_byte))
        for at in range(start_byte, end_byte, 7):
            yield from super().read(file, at, min(at + 7, end_byte))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.transfer.pages.PAGE_BYTES", 16)
    monkeypatch.setattr("sharding.transfer.pages.PAGES_BYTES", 64)
    monkeypatch.setattr("sharding.transfer.pages.JOIN_GAP_BYTES", 4)


RANGES = [("one", 100, 140), ("one", 0, 24), ("other", 0, 24), ("one", 28, 40), ("other", 100, 109)]


def test_any_range_is_what_its_own_file_holds_there(small_pages: None) -> None:
    source = Counting()
    pages = Pages(source, RANGES)
    for _ in range(2):
        for file, first, last in RANGES:
            for start in range(first, last, 3):
                for end in (start, start + 1, min(start + 16, last), last):
                    assert pages.read(file, start, end) == source._files[file][start:end]


def test_a_page_is_read_once_and_never_what_lies_between_far_ranges(small_pages: None) -> None:
    source = Counting()
    pages = Pages(source, RANGES)
    for file, start, end in [("one", 1, 3), ("one", 5, 16), ("one", 14, 18), ("one", 30, 40), ("one", 20, 24)]:
        assert pages.read(file, start, end) == source._files[file][start:end]
    assert source.noted == [("one", 0, 16), ("one", 16, 32), ("one", 32, 40)]  # the two near ranges are read as one
    source.noted.clear()
    assert pages.read("other", 100, 109) == source._files["other"][100:109]
    assert pages.read("one", 39, 40) == source._files["one"][39:40]
    assert source.noted == [("other", 100, 109)]
    for start in (100, 116, 132):  # which is more than is kept
        pages.read("one", start, start + 1)
    source.noted.clear()
    pages.read("one", 0, 1)
    assert source.noted == [("one", 0, 16)]


# --- Memory that is used again ------------------------------------------------------------------------------------


def test_memory_that_is_used_again_is_of_one_thread(small_pages: None) -> None:
    both_have_filled, found = Barrier(2), dict[int, list[bytes]]()

    def fill(number: int) -> None:
        chunks = iter([bytes([number]) * 5, bytes([number]) * 3])
        taken = Feed(chunks, "of a test").take(8)
        mine = scratch("another of a test", 4)
        mine[:] = bytes([number]) * 4
        both_have_filled.wait(LONG)
        found[number] = [bytes(taken), bytes(mine)]

    threads = [Thread(target=fill, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert found == {number: [bytes([number]) * 8, bytes([number]) * 4] for number in (1, 2)}


def test_the_same_thread_gets_the_same_memory_again_and_rooms_are_apart() -> None:
    first, apart = scratch("first of a test", 8), scratch("apart of a test", 8)
    first[:], apart[:] = b"12345678", b"abcdefgh"
    again = scratch("first of a test", 4)
    assert len(again) == 4 and bytes(again) == b"1234"
    again[:] = b"...."
    assert (bytes(first), bytes(apart)) == (b"....5678", b"abcdefgh")
    longer = scratch("first of a test", 20)
    assert len(longer) == 20
    longer[:8] = b"overhere"
    assert bytes(first) == b"....5678", "what somebody still holds is not freed under their hands"


def test_chunks_of_any_length_are_taken_in_any_other() -> None:
    data = bytes(range(100))
    cuts = [0, 1, 1, 8, 40, 41, 100]
    feed = Feed((data[a:b] for a, b in zip(cuts, cuts[1:], strict=False)), "cut of a test")
    at = 0
    for count in (0, 3, 30, 1, 1, 65):
        assert bytes(feed.take(count)) == data[at : at + count]
        at += count
    assert at == 100
