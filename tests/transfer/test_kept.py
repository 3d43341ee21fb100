"""What threads keep of what they have read: within its bytes, once for all; and chunks of any length."""

from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from sharding.core.errors import SourceError
from sharding.core.recipe import Extent, Feed
from sharding.recipes.laid import Box, Laid
from sharding.recipes.stored import Stored
from sharding.transfer.pages import Kept, Pages
from tests.fuzz.targets import Memory

LONG = 60.0
"""Seconds for what comes at once, unless something is broken."""


def is_kept(kept: Kept, key: str, size: int) -> bool:
    return kept.get(key, size, lambda: "made anew") != "made anew"


def keep(kept: Kept, sizes: dict[str, int]) -> None:
    for key, size in sizes.items():
        assert kept.get(key, size, lambda key=key: key) == key  # type: ignore[misc]


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ({"a": 40, "b": 40, "c": 20}, {"a", "b", "c"}),
        ({"a": 40, "b": 40, "c": 21}, {"b", "c"}),
        ({"a": 40, "b": 40, "c": 61}, {"c"}),
        ({"a": 10, "b": 200}, {"b"}),
        ({"b": 200, "a": 10}, {"a"}),
    ],
)
def test_what_is_kept_fits_or_is_one_larger_value(sizes: dict[str, int], left: set[str]) -> None:
    for key in sizes:  # what is asked for now may push others out
        kept = Kept(100)
        keep(kept, sizes)
        assert is_kept(kept, key, sizes[key]) == (key in left), key


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    kept = Kept(100)
    keep(kept, {"a": 40, "b": 40})
    assert is_kept(kept, "a", 40)  # now b is the one asked for longest ago
    keep(kept, {"c": 40})
    assert is_kept(kept, "a", 40) and is_kept(kept, "c", 40)
    assert not is_kept(kept, "b", 40)  # which pushes out a, the elder of the two
    assert is_kept(kept, "c", 40) and not is_kept(kept, "a", 40)


def ask_twice(make: Callable[[], str], again: Callable[[], str], kept: Kept) -> list[str]:
    """Ask for one page while another thread makes it; return what both get, or what they are told."""
    begun, go_on, got = Event(), Event(), list[str]()

    def held() -> str:
        begun.set()
        assert go_on.wait(LONG)
        return make()

    def ask(making: Callable[[], str]) -> None:
        try:
            got.append(kept.get("page", 10, making))
        except SourceError as error:
            got.append(error.message)

    threads = [Thread(target=ask, args=[making]) for making in (held, again)]
    threads[0].start()
    assert begun.wait(LONG)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(LONG)
    return got


def gone() -> str:
    raise SourceError("gone")


def test_who_asks_for_what_another_thread_makes_waits_for_it_or_for_its_error() -> None:
    kept = Kept(100)
    assert ask_twice(gone, gone, kept) == ["gone"] * 2
    with pytest.raises(SourceError, match="gone"):
        kept.get("page", 10, gone)
    assert ask_twice(lambda: "made once", lambda: "made twice", kept) == ["made once"] * 2
    assert is_kept(kept, "page", 10)


def test_a_value_that_took_the_place_of_one_that_failed_is_kept() -> None:
    kept = Kept(100)

    def fail() -> str:
        keep(kept, {"large": 100})  # pushes out what is being made
        keep(kept, {"page": 10})
        raise SourceError("gone")

    with pytest.raises(SourceError):
        kept.get("page", 10, fail)
    assert is_kept(kept, "page", 10)


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


PLACES = [("one", 100, 140), ("one", 0, 24), ("other", 0, 24), ("one", 28, 40), ("other", 100, 109)]
SCALES = [Stored(0, *place) for place in PLACES]


def test_any_part_of_a_stretch_is_what_its_own_file_holds_there(small_pages: None) -> None:
    source = Counting()
    other = Memory(b"", {"one": bytes(200)})
    elsewhere = Stored(1, "one", 100, 140)
    pages = Pages([source, other], [*SCALES, elsewhere])
    for _ in range(2):
        for scale in SCALES:
            for start in range(0, scale.size_bytes, 3):
                for end in (start, start + 1, min(start + 16, scale.size_bytes), scale.size_bytes):
                    whole = source._files[scale.file][scale.start_byte : scale.end_byte]
                    assert pages.read(scale, start, end) == whole[start:end]
    assert pages.read(elsewhere, 0, 40) == bytes(40)


def test_a_page_is_read_once_and_never_what_lies_between_far_stretches(small_pages: None) -> None:
    source = Counting()
    pages = Pages([source], SCALES)
    late, first, _, second, last = SCALES
    for scale, start, end in [(first, 1, 3), (first, 5, 16), (first, 14, 18), (second, 2, 12), (first, 20, 24)]:
        at = scale.start_byte
        assert pages.read(scale, start, end) == source._files["one"][at + start : at + end]
    assert source.noted == [("one", 0, 16), ("one", 16, 32), ("one", 32, 40)]  # the two near ones are read as one
    source.noted.clear()
    assert pages.read(last, 0, 9) == source._files["other"][100:109]
    assert pages.read(second, 11, 12) == source._files["one"][39:40]
    assert source.noted == [("other", 100, 109)]
    for start in (0, 16, 32):  # which is more than is kept
        pages.read(late, start, start + 1)
    source.noted.clear()
    pages.read(first, 0, 1)
    assert source.noted == [("one", 0, 16)]


def test_scales_in_pieces_are_put_together_once() -> None:
    source = Counting()
    columns = Box("one", 10, (0, 0), (2, 1), (1, 1)), Box("other", 0, (0, 1), (2, 3), (3, 1))
    recipe = Laid(columns, (2, 4), 1)
    pages = Pages([source], recipe.reads())
    expected = bytes([10, 199, 198, 197, 11, 196, 195, 194])
    for start, end in ((0, 8), (3, 5), (7, 8), (4, 4)):
        assert pages.read(recipe, start, end) == expected[start:end]
    assert sorted(source.noted) == [("one", 10, 12), ("other", 0, 6)]


def test_pages_are_of_extents_and_of_nothing_beyond_the_last(small_pages: None) -> None:
    source = Counting()
    pages = Pages([source], [Extent(0, "one", 190, 200)])
    assert pages.read(Stored(0, "one", 190, 200), 0, 10) == bytes(range(190, 200))
    assert source.noted == [("one", 190, 200)]


def test_chunks_that_are_only_passed_on_are_not_copied() -> None:
    chunk = bytes(1 << 16)
    (piece,) = Feed(iter([chunk])).pieces(1 << 16)
    assert piece.obj is chunk
