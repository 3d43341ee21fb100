"""Take bytes that come in chunks of any length in others, in memory that is used again."""

from collections.abc import Iterator
from threading import local

_SCRATCH = local()


def scratch(name: str, count: int) -> memoryview:
    """Return `count` bytes of this thread, to be used until it asks again: fresh memory is slow to come by."""
    room: bytearray = getattr(_SCRATCH, name, bytearray())
    if len(room) < count:
        room = bytearray(count)
        setattr(_SCRATCH, name, room)
    return memoryview(room)[:count]


class Feed:
    """Chunks of any length, taken in others."""

    def __init__(self, chunks: Iterator[bytes], room: str = "before") -> None:
        """Take from `chunks`, into the memory `room` of a thread."""
        self._chunks = chunks
        self._room = room
        self._rest = memoryview(b"")

    def take(self, count: int) -> memoryview:
        """Return the next `count` bytes, which are there until this thread takes more into the same room."""
        data = scratch(self._room, count)
        filled = 0
        while filled < count:
            self._rest = self._rest or memoryview(next(self._chunks))
            chunk = self._rest[: count - filled]
            data[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
            self._rest = self._rest[len(chunk) :]
        return data
