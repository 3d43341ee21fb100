"""Read what is needed in small pieces, again and again, a page at a time: the scales of weights."""

from bisect import bisect_right
from collections.abc import Iterable

from sharding.core.limits import JOIN_GAP_BYTES, PAGE_BYTES, PAGES_BYTES
from sharding.core.protocols import Source
from sharding.transfer.kept import Kept


class Pages:
    """Some ranges of the files of a source, of which the pages that were read last are kept, for all threads."""

    def __init__(self, source: Source, ranges: Iterable[tuple[str, int, int]]) -> None:
        """Read `ranges` of `source`, each a file and its bytes `[start, end)`; neighbours share pages."""
        self._source = source
        self._regions: dict[str, list[list[int]]] = {}
        for file, start, end in sorted(ranges):
            regions = self._regions.setdefault(file, [])
            if regions and start - regions[-1][1] <= JOIN_GAP_BYTES:
                regions[-1][1] = max(regions[-1][1], end)
            else:
                regions.append([start, end])
        self._kept: Kept[bytes] = Kept(PAGES_BYTES)

    def read(self, file: str, start_byte: int, end_byte: int) -> bytes:
        """Return the bytes `[start_byte, end_byte)` of `file`, which are of one of the ranges. Raises SourceError."""
        regions = self._regions[file]
        first, last = regions[bisect_right(regions, start_byte, key=lambda region: region[0]) - 1]
        pieces = []
        at = start_byte
        while at < end_byte:
            page = first + (at - first) // PAGE_BYTES * PAGE_BYTES
            data = self._page(file, page, min(page + PAGE_BYTES, last))
            pieces.append(data[at - page : end_byte - page])
            at = page + PAGE_BYTES
        return b"".join(pieces)

    def _page(self, file: str, start_byte: int, end_byte: int) -> bytes:
        return self._kept.get(
            (file, start_byte),
            end_byte - start_byte,
            lambda: b"".join(self._source.read(file, start_byte, end_byte)),
        )
