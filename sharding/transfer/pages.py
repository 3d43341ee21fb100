"""Read the scales of weights a page at a time, because they are needed in small pieces, again and again."""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from threading import Lock

from typing_extensions import override

from sharding.core.limits import JOIN_GAP_BYTES
from sharding.core.protocols import Source
from sharding.core.recipe import Extent, Feed, Recipe
from sharding.core.recipe import Kept as KeptInputs
from sharding.recipes.stored import made_by

PAGE_BYTES = 256 << 10
"""Bytes to read at once of the scales of quantized weights, which lie together. A request for each would take long."""

PAGES_BYTES = 16 * PAGE_BYTES
"""Bytes of those scales that stay in memory. Scales are about a four-thousandth of the file."""


class Kept:
    """A cache of bytes by key. It drops the least recently used first."""

    def __init__(self, most_bytes: int) -> None:
        """Keep at most `most_bytes`, or one value that is larger."""
        self._most_bytes = most_bytes
        self._values: OrderedDict[Hashable, tuple[int, Future[bytes]]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, size: int, make: Callable[[], bytes]) -> bytes:
        """Return the value of `key`. If it is not there, `make` makes it, with `size` bytes. Raises as `make` does."""
        with self._lock:
            entry = self._values.get(key)
            is_first = entry is None
            if entry is None:
                room = self._most_bytes - size
                while self._values and sum(kept for kept, _ in self._values.values()) > room:
                    self._values.popitem(last=False)
                entry = self._values[key] = size, Future()
            self._values.move_to_end(key)
        value = entry[1]
        if is_first:
            try:
                value.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._values.get(key) is entry:  # the next one who asks tries again
                        del self._values[key]
                value.set_exception(error)
        return value.result()


class Pages(KeptInputs):
    """Extents of sources, read in pages. Keeps the last pages for all threads."""

    def __init__(self, sources: Sequence[Source], extents: Iterable[Extent]) -> None:
        self._sources = sources
        self._regions: dict[tuple[int, str], list[list[int]]] = {}
        for source, file, start, end in sorted(extents):
            regions = self._regions.setdefault((source, file), [])
            if regions and start - regions[-1][1] <= JOIN_GAP_BYTES:
                regions[-1][1] = max(regions[-1][1], end)
            else:
                regions.append([start, end])
        self._kept = Kept(PAGES_BYTES)

    @override
    def read(self, recipe: Recipe, start_byte: int, end_byte: int) -> bytes:
        """Return the bytes `[start_byte, end_byte)` of what `recipe` makes. Its reads are among the extents."""
        if recipe.place is None:  # in pieces, as ranks saved it
            return self._kept.get(recipe, recipe.size_bytes, lambda: self._whole(recipe))[start_byte:end_byte]
        source, file, start, _ = recipe.place
        place, at, end = (source, file), start + start_byte, start + end_byte
        regions = self._regions[place]
        first, last = regions[bisect_right(regions, at, key=lambda region: region[0]) - 1]
        pieces = []
        while at < end:
            page = first + (at - first) // PAGE_BYTES * PAGE_BYTES
            data = self._page(Extent(*place, page, min(page + PAGE_BYTES, last)))
            pieces.append(data[at - page : end - page])
            at = page + PAGE_BYTES
        return b"".join(pieces)

    def _page(self, extent: Extent) -> bytes:
        source, file, start, end = extent
        return self._kept.get(extent, end - start, lambda: b"".join(self._sources[source].read(file, start, end)))

    def _whole(self, recipe: Recipe) -> bytes:
        reads = (self._sources[source].read(file, start, end) for source, file, start, end in recipe.reads())
        inputs = Feed(chunk for chunks in reads for chunk in chunks)
        return bytes(made_by(recipe, inputs, self).take(recipe.size_bytes))
