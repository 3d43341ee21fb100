"""Cast the tensors of a source while they are read, one chunk at a time."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from typing_extensions import override

from sharding.core.errors import OverflowRefused
from sharding.core.limits import BATCH_BYTES
from sharding.core.protocols import Source
from sharding.core.values import TensorEntry
from sharding.formats.dtypes import CASTABLE
from sharding.storage.source_view import SourceView
from sharding.transfer.feed import Feed, scratch

_PIECE_ELEMENTS = 32768
"""What torch 2.13 converts in the thread that asks (`at::internal::GRAIN_SIZE`): more would start as many as cores."""

_VECTOR_ELEMENTS = 64
"""Tensors are cast from multiples of this on, more than any processor takes at once: torch converts what is left at the
end of a run another way, which shows in the payloads of NaNs (fp16 to fp32)."""


def cast_chunk(
    data: bytearray | memoryview, stored: str, target: str, wanted: range | None = None
) -> tuple[bytes, int]:
    """Return the elements in `data`, of dtype `stored`, as `tensor.to(target)` makes them in one thread, bit for bit.

    Dtypes are named as in safetensors. The second value counts the elements that were finite and no longer are, of
    those whose number is in `wanted` (None: of all).
    """
    import torch

    before = torch.frombuffer(data, dtype=getattr(torch, CASTABLE[stored].torch))
    room = scratch("after", len(before) * CASTABLE[target].bits // 8)
    after = torch.frombuffer(room, dtype=getattr(torch, CASTABLE[target].torch))
    for source, piece in zip(before.split(_PIECE_ELEMENTS), after.split(_PIECE_ELEMENTS), strict=True):
        # By way of float32 torch is twice as quick, and gives the same bits: every bfloat16 is one.
        piece.copy_(source.float() if (stored, target) == ("BF16", "F16") else source)
    data_after = after.view(torch.uint8).numpy().tobytes()
    if wanted is not None:
        before, after = before[wanted.start : wanted.stop], after[wanted.start : wanted.stop]
    overflowed = int((after.isinf() & before.isfinite()).sum()) if _has_infinity(after, target) else 0
    return data_after, overflowed


def _has_infinity(piece: Any, dtype: str) -> bool:
    import torch

    # Asked of the bits by numpy, which is many times quicker than torch.isinf.
    width = CASTABLE[dtype].bits
    bits = piece.view(getattr(torch, f"int{width}")).numpy()
    all_but_the_sign = (1 << width - 1) - 1
    return bool(((bits & all_but_the_sign) == CASTABLE[dtype].infinity).any())


class CastSource(SourceView):
    """A source whose files hold the tensors of another one's after a cast. See `protocols.Source`.

    `overflowed` counts by tensor the elements that were finite and are infinite now, once for every read of them.
    """

    def __init__(
        self,
        source: Source,
        stored: Sequence[TensorEntry],
        after: Sequence[TensorEntry],
        *,
        allow_overflow: bool = False,
    ) -> None:
        """Read the tensors `stored` of `source` as `after`, what `dtypes.cast_tensors` makes of them."""
        super().__init__(source)
        # What lies in between would be cast for nothing, and counted.
        self.join_gap_bytes = 0
        self.overflowed: dict[str, int] = {}
        self._allow_overflow = allow_overflow
        self._lock = Lock()
        self._tensors: dict[str, list[tuple[TensorEntry, TensorEntry]]] = {}
        for pair in zip(stored, after, strict=True):
            self._tensors.setdefault(pair[1].file, []).append(pair)
        self._ends = {file: [pair[1].end_byte for pair in pairs] for file, pairs in self._tensors.items()}

    @override
    def path(self, file: str) -> None:
        """Return None: no file has these bytes."""

    @override
    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes `[start_byte, end_byte)` of the tensors of `file` after the cast.

        Raises SourceError as the source does, OverflowRefused where a finite number becomes infinite and may not.
        """
        for run in _runs(self._stretches(file, start_byte, end_byte)):
            chunks = self._source.read(run[0].stored.file, run[0].start_byte, run[-1].end_byte)
            feed = Feed(chunks)
            for stretch in run:
                yield from self._cast(stretch, feed)

    def count_overflow(self, names: Iterable[str]) -> None:
        """Read the tensors `names` once more, to count what an earlier run has cast of them."""
        wanted = set(names)
        for file, pairs in self._tensors.items():
            for stored, after in pairs:
                if after.name in wanted and stored.dtype != after.dtype:
                    for _ in self.read(file, after.start_byte, after.end_byte):
                        pass

    def _stretches(self, file: str, start_byte: int, end_byte: int) -> Iterator["_Stretch"]:
        pairs = self._tensors[file]
        index = bisect_right(self._ends[file], start_byte)
        while index < len(pairs) and pairs[index][1].start_byte < end_byte:
            stored, after = pairs[index]
            start, end = max(start_byte, after.start_byte), min(end_byte, after.end_byte)
            if start < end:
                yield _Stretch(stored, after, start - after.start_byte, end - after.start_byte)
            index += 1

    def _cast(self, stretch: "_Stretch", feed: Feed) -> Iterator[bytes]:
        left = stretch.end_byte - stretch.start_byte
        skip, wanted = stretch.skip_bytes, stretch.bytes
        while left:
            data = feed.take(min(left, BATCH_BYTES))
            left -= len(data)
            if stretch.stored.dtype == stretch.after.dtype:
                yield bytes(data)
                continue
            size = stretch.element_bytes
            elements = range(skip // size, -(-(skip + wanted) // size))
            chunk, overflowed = cast_chunk(data, stretch.stored.dtype, stretch.after.dtype, elements)
            if overflowed:
                self._note(stretch, overflowed)
            chunk = chunk[skip : skip + wanted]
            skip, wanted = 0, wanted - len(chunk)
            yield chunk

    def _note(self, stretch: "_Stretch", overflowed: int) -> None:
        if not self._allow_overflow:
            raise self._refusal(stretch)
        with self._lock:
            self.overflowed[stretch.after.name] = self.overflowed.get(stretch.after.name, 0) + overflowed

    def _refusal(self, stretch: "_Stretch") -> OverflowRefused:
        """Return an error with the number of overflows in the whole tensor."""
        stored, after = stretch.stored, stretch.after
        feed = Feed(self._source.read(stored.file, stored.start_byte, stored.end_byte))
        count, left = 0, stored.bytes
        while left:
            data = feed.take(min(left, BATCH_BYTES))
            count += cast_chunk(data, stored.dtype, after.dtype)[1]
            left -= len(data)
        instead = "Choose bf16, which has the range of fp32," if after.dtype == "F16" else "Keep the dtype,"
        return OverflowRefused(
            f"{after.name} has {count:,} finite {'number' if count == 1 else 'numbers'} too large for "
            f"{CASTABLE[after.dtype].torch}, which would become infinite.",
            f"{instead} or allow it (--allow-overflow): the report then counts them.",
        )


class _Stretch:
    """Some bytes of a tensor after the cast, and the bytes `[start_byte, end_byte)` of the source that are read."""

    def __init__(self, stored: TensorEntry, after: TensorEntry, start: int, end: int) -> None:
        """Take the bytes `[start, end)`, counted from the first of the tensor after the cast."""
        before, now = _element_bytes(stored, after)
        step = 1 if stored.dtype == after.dtype else _VECTOR_ELEMENTS
        first, last = start // now // step * step, -(-end // now // step) * step
        self.stored = stored
        self.after = after
        self.element_bytes = now
        self.start_byte = stored.start_byte + first * before
        self.end_byte = min(stored.start_byte + last * before, stored.end_byte)
        self.skip_bytes = start - first * now
        self.bytes = end - start


def _element_bytes(stored: TensorEntry, after: TensorEntry) -> tuple[int, int]:
    if stored.dtype == after.dtype:  # moved, not read
        return 1, 1
    return stored.bytes // stored.parameters, after.bytes // after.parameters


def _runs(stretches: Iterable[_Stretch]) -> Iterator[list[_Stretch]]:
    """Yield `stretches` in groups that lie one after another in the source: one read each."""
    run: list[_Stretch] = []
    for stretch in stretches:
        if run and (stretch.stored.file, stretch.start_byte) != (run[-1].stored.file, run[-1].end_byte):
            yield run
            run = []
        run.append(stretch)
    if run:
        yield run
