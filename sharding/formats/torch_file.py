"""Open a torch `.bin` file: the value of its pickle, and the places of its storages. Runs no code from it.

A file of torch 1.6 or newer is a zip file. Only its end, its directory and one pickle are read. An older file has five
pickles, then the storages one after another. Only its pickles are read. `torch_pickle` and `torch_globals` limit what a
pickle may contain.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from sharding.core.dtypes import item_bytes
from sharding.core.errors import Remedy, SourceError
from sharding.core.limits import MAX_DIRECTORY_BYTES, MAX_PICKLE_BYTES
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.core.threads import readers
from sharding.core.values import FileEntry
from sharding.formats.torch_globals import PickleRefused, Storage
from sharding.formats.torch_pickle import PickleCut, read_pickle
from sharding.formats.torch_zip import (
    LOCAL_BYTES,
    TAIL_BYTES,
    Record,
    ZipRefused,
    find_directory,
    parse_directory,
    start_from_header,
)

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The first two values of an old file (torch 2.13, `serialization.MAGIC_NUMBER`, `PROTOCOL_VERSION`)."""

_FIRST_READ_BYTES = 64 << 10
_COUNT_BYTES = 8
"""Size of the number of elements, which stands before each storage of an old file."""

_ZIP = b"PK\3\4"


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a storage in its file: the first byte and the length in bytes."""

    start: int
    bytes: int


Locate = Callable[[Iterable[Storage]], Mapping[str, Place]]
"""Finds the places of storages, by key."""


def open_bin(source: Files, file: FileEntry) -> tuple[Any, Locate]:
    """Return the value of the pickle in `file`, and a function that finds the storages that it names.

    Raises PickleRefused, ZipRefused, SourceError.
    """
    reader = Reader(source, file)
    return open_zip(reader) if reader.read(0, len(_ZIP)) == _ZIP else _read_old(reader)


class Reader:
    """Reads a file in few requests, because it keeps bytes that it has read."""

    tail_bytes: ClassVar[int] = TAIL_BYTES

    def __init__(self, source: Files, file: FileEntry) -> None:
        """Read `file` of `source`."""
        self.source = source
        self.file = file
        self._known: list[tuple[int, bytes]] = []

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)`, or as many as there are."""
        end = min(end, self.file.bytes)
        for known, data in self._known:
            if known <= start and end <= known + len(data):
                return data[start - known : end - known]
        data = self.exactly(start, min(self.file.bytes, max(end, start + _FIRST_READ_BYTES)))
        self._known.append((start, data))
        return data[: end - start]

    def exactly(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)` without keeping them."""
        return b"".join(self.source.read(self.file.path, start, end))


def open_zip(reader: Reader) -> tuple[Any, Locate]:
    """Return the value of the pickle, and a function that finds the storages that it names.

    Raises PickleRefused, ZipRefused, SourceError.
    """
    size = reader.file.bytes
    directory = find_directory(reader.read(max(0, size - reader.tail_bytes), size), size)
    if directory.end - directory.start > MAX_DIRECTORY_BYTES:
        raise ZipRefused(f"its directory is larger than {format_bytes(MAX_DIRECTORY_BYTES)}")
    records = parse_directory(reader.read(directory.start, directory.end), directory)
    folder = next(iter(records), "").split("/")[0]
    pickle, order = records.get(f"{folder}/data.pkl"), records.get(f"{folder}/byteorder")
    if f"{folder}/constants.pkl" in records:
        raise ZipRefused("it is a TorchScript program, not a checkpoint")
    if pickle is None:
        raise ZipRefused("it has no data.pkl, so torch did not write it")
    if order and (order.bytes > 10 or _content(reader, order) != b"little"):
        raise _unstreamable(reader.file, "it was written on a big-endian machine")
    if pickle.bytes > MAX_PICKLE_BYTES:
        limit = format_bytes(MAX_PICKLE_BYTES)
        raise PickleRefused(f"its data.pkl ({format_bytes(pickle.bytes)}) is larger than the limit of {limit}")

    def locate(storages: Iterable[Storage]) -> dict[str, Place]:
        by_key = {}
        for storage in storages:
            record = records.get(f"{folder}/data/{storage.key}")
            if record is None:
                raise ZipRefused(f"the storage {storage.key[:100]!r} is missing")
            by_key[storage.key] = record
        if len(by_key) == 1:
            return {key: Place(_start(reader, record), record.bytes) for key, record in by_key.items()}
        with readers(reader.source.ranges_at_once) as pool:
            starts = pool.map(lambda record: _start(reader, record), by_key.values())
            return {key: Place(start, by_key[key].bytes) for key, start in zip(by_key, starts, strict=True)}

    return read_pickle(_content(reader, pickle)).value, locate


def _start(reader: Reader, record: Record) -> int:
    if not record.is_stored:
        raise _unstreamable(reader.file, f"{record.name[:100]!r} in it is compressed")
    if record.start is not None:
        return record.start
    return start_from_header(record, reader.exactly(record.header_start, record.header_start + LOCAL_BYTES))


def _content(reader: Reader, record: Record) -> bytes:
    start = _start(reader, record)
    return reader.read(start, start + record.bytes)


def _read_old(reader: Reader) -> tuple[Any, Locate]:
    """Return the same as `open_zip` for a file from a torch before 1.6."""
    wanted = _FIRST_READ_BYTES
    while True:
        try:
            return _read_pickles(reader.read(0, wanted), reader.file)
        except PickleCut:
            if wanted >= min(reader.file.bytes, MAX_PICKLE_BYTES):
                raise
            wanted = min(4 * wanted, MAX_PICKLE_BYTES)


def _read_pickles(data: bytes, file: FileEntry) -> tuple[Any, Locate]:
    magic = read_pickle(data)
    if magic.value != _MAGIC:
        raise PickleRefused("torch did not write it")
    protocol = read_pickle(data, magic.end)
    machine = read_pickle(data, protocol.end)
    if protocol.value != _PROTOCOL or not isinstance(machine.value, dict):
        raise PickleRefused("no known version of torch wrote it")
    if machine.value.get("little_endian") is not True:
        raise _unstreamable(file, "it was written on a big-endian machine")
    pickle = read_pickle(data, machine.end, id_parts=6)
    keys = read_pickle(data, pickle.end)
    listed = keys.value if isinstance(keys.value, list) else []
    if not all(isinstance(key, str) for key in listed) or sorted(listed) != sorted(pickle.storages):
        raise PickleRefused("its list of storages does not match the storages that its tensors use")
    places, start = dict[str, Place](), keys.end
    for key in listed:
        size = pickle.storages[key].count * item_bytes(pickle.storages[key].dtype)
        places[key] = Place(start + _COUNT_BYTES, size)
        start += _COUNT_BYTES + size
    if start != file.bytes:
        raise PickleRefused(f"its storages end at byte {start}, but the file ends at byte {file.bytes}")
    return pickle.value, lambda storages: places


def _unstreamable(file: FileEntry, problem: str) -> SourceError:
    return SourceError(
        f"{file.path} cannot be streamed: {problem}.",
        "Add --engine classic, which loads the model in its own process and saves it again.",
        Remedy("use_classic_engine"),
    )
