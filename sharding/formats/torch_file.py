"""Open a torch `.bin` file: the value of its pickle, and the places of its storages. Runs no code from it.

A file of torch 1.6 or newer is a zip file. Only its end, its directory and one pickle are read. An older file has five
pickles, then the storages one after another. Only its pickles are read.

The zip format is PKWARE's APPNOTE 6.3.10, as far as torch 2.13 (`caffe2/serialize/inline_container.cc` over miniz)
follows it. Records are stored without compression, one after another. The directory and the end follow them. Ambiguous
files are refused: two records on the same bytes or with one name, or a directory in the wrong place.
"""

import struct
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
from sharding.formats.torch_pickle import Machine, PickleCut

_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
"""The first two values of an old file (torch 2.13, `serialization.MAGIC_NUMBER`, `PROTOCOL_VERSION`)."""
_FIRST_READ_BYTES = 64 << 10
_TAIL_BYTES = (1 << 16) + 22 + 20 + 56
"""Size of the last bytes of a file: a comment of any length, the end, and two records that large files have."""
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")  # A record's own header, without the name and the padding after it.
_MAX32 = (1 << 32) - 1
_ENCRYPTED, _DESCRIBED_BEHIND = 1, 8


class ZipRefused(ValueError):
    """The file is not a zip file that torch would write. Its message completes a sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a storage in its file."""

    start: int
    bytes: int
    crc32: int = 0  # As the file states it, 0 if it does not.


Locate = Callable[[Iterable[Storage]], Mapping[str, Place]]  # Finds the places of storages, by key.


def open_bin(source: Files, file: FileEntry) -> tuple[Any, Locate]:
    """Return the value of the pickle, and what finds its storages. Raises PickleRefused, ZipRefused, SourceError."""
    reader = Reader(source, file)
    return open_zip(reader) if reader.read(0, 4) == b"PK\3\4" else _read_old(reader)


@dataclass(frozen=True, slots=True)
class _Record:
    """A record in `[header_start, limit)`. `start` of its content is None if only its own header can tell."""

    name: str
    header_start: int
    limit: int
    bytes: int
    start: int | None
    is_stored: bool
    crc32: int


class Reader:
    """Reads a file in few requests, because it keeps bytes that it has read."""

    tail_bytes: ClassVar[int] = _TAIL_BYTES

    def __init__(self, source: Files, file: FileEntry, known: Iterable[tuple[int, bytes]] = ()) -> None:
        """Read `file` of `source`, of which some bytes are `known`, each with the place of the first."""
        self.source, self.file, self._known = source, file, list(known)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)`, or as many as there are."""
        end = min(end, self.file.bytes)
        if (data := self.known(start, end)) is None:
            data = self.exactly(start, min(self.file.bytes, max(end, start + _FIRST_READ_BYTES)))
            self._known.append((start, data))
        return data[: end - start]

    def known(self, start: int, end: int) -> bytes | None:
        """Return the bytes `[start, end)` if they are kept."""
        inside = ((at, data) for at, data in self._known if at <= start and end <= at + len(data))
        return next((data[start - at : end - at] for at, data in inside), None)

    def exactly(self, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)` without keeping them."""
        return b"".join(self.source.read(self.file.path, start, end))


def open_zip(reader: Reader, machine: type[Machine] = Machine) -> tuple[Any, Locate]:
    """Return the same as `open_bin` for a file from torch 1.6 or newer. A `machine` reads the pickle in it."""
    size = reader.file.bytes
    start, end, count = _find_directory(reader.read(max(0, size - reader.tail_bytes), size), size)
    if end - start > MAX_DIRECTORY_BYTES:
        raise ZipRefused(f"its directory is larger than {format_bytes(MAX_DIRECTORY_BYTES)}")
    records = _parse_directory(reader.read(start, end), start, count)
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
        with readers(reader.source.ranges_at_once) as pool:
            starts = pool.map(lambda record: _start(reader, record), by_key.values())
            found = zip(by_key.items(), starts, strict=True)
            return {key: Place(start, record.bytes, record.crc32) for (key, record), start in found}

    return machine(_content(reader, pickle)).run().value, locate


def _start(reader: Reader, record: _Record) -> int:
    if not record.is_stored:
        raise _unstreamable(reader.file, f"{record.name[:100]!r} in it is compressed")
    if record.start is not None:
        return record.start
    header = reader.exactly(record.header_start, record.header_start + _LOCAL.size)
    if len(header) != _LOCAL.size or not header.startswith(b"PK\3\4"):
        raise ZipRefused(f"{record.name[:100]!r} is not where its directory says")
    start: int = record.header_start + _LOCAL.size + sum(_LOCAL.unpack(header)[9:11])
    if start + record.bytes > record.limit:
        raise ZipRefused(f"{record.name[:100]!r} overlaps the bytes after it")
    return start


def _content(reader: Reader, record: _Record) -> bytes:
    start = _start(reader, record)
    return reader.read(start, start + record.bytes)


def _find_directory(tail: bytes, file_bytes: int) -> tuple[int, int, int]:
    """Return where the directory starts and ends and how many records it has, from the `tail` of a file."""
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise ZipRefused("it has no end record, so it is cut off or not a zip file")
    _, disk, first_disk, here, records, size, start, comment = _END.unpack_from(tail, at)
    if at + _END.size + comment != len(tail):
        raise ZipRefused("it has bytes after its end")
    end = file_bytes - len(tail) + at
    locator = at - _LOCATOR.size
    if locator >= 0 and tail.startswith(b"PK\6\7", locator):
        at = _LOCATOR.unpack_from(tail, locator)[2] - (file_bytes - len(tail))
        if not 0 <= at <= locator - _END64.size or not tail.startswith(b"PK\6\6", at):
            raise ZipRefused("its end does not point to its directory")
        _, _, _, _, disk, first_disk, here, records, size, start = _END64.unpack_from(tail, at)
        end = file_bytes - len(tail) + at
    if disk or first_disk or here != records:
        raise ZipRefused("it is only one part of a split archive")
    if start + size != end:
        raise ZipRefused("its directory is not where its end says")
    return start, end, records


def _parse_directory(data: bytes, start: int, count: int) -> dict[str, _Record]:
    """Return the `count` records by name, in file order, from the bytes of the directory, which begins at `start`."""
    entries, position = [], 0
    for _ in range(count):
        if len(data) - position < _ENTRY.size or not data.startswith(b"PK\1\2", position):
            raise ZipRefused("its directory is damaged")
        fields = _ENTRY.unpack_from(data, position)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        at = position + _ENTRY.size
        position = at + name_bytes + extra_bytes + comment_bytes
        if position > len(data):
            raise ZipRefused("its directory is damaged")
        name, extra = data[at : at + name_bytes], data[at + name_bytes : at + name_bytes + extra_bytes]
        entries.append((*_wide(fields, extra), name, fields[3], fields[4], fields[7]))
    if position != len(data):
        raise ZipRefused("its directory is damaged")
    entries.sort(key=lambda entry: entry[0])
    limits = [entry[0] for entry in entries[1:]] + [start]
    records: dict[str, _Record] = {}
    for (header_start, packed, size, name, flags, method, crc), limit in zip(entries, limits, strict=True):
        text = _safe_name(name)
        if text in records:
            raise ZipRefused(f"it has {text[:100]!r} twice")
        if header_start + _LOCAL.size + len(name) + packed > limit:
            raise ZipRefused(f"{text[:100]!r} overlaps the bytes after it")
        stored = method == 0 and packed == size and not flags & _ENCRYPTED
        begin = _expected_start(header_start, len(name), size, bool(flags & _DESCRIBED_BEHIND), limit)
        records[text] = _Record(text, header_start, limit, size, begin, stored, crc)
    return records


def _wide(fields: tuple[int, ...], extra: bytes) -> tuple[int, int, int]:
    """Return start of the header, packed size and size. Values beyond 32 bits stand in field 1 of `extra`."""
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1:
            wide = extra[4 : 4 + length]
        extra = extra[4 + length :]
    values = [fields[9], fields[8], fields[16]]
    for place, narrow in enumerate(values):
        if narrow == _MAX32 and len(wide) >= 8:
            values[place], wide = int.from_bytes(wide[:8], "little"), wide[8:]
    return values[2], values[1], values[0]


def _safe_name(name: bytes) -> str:
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise ZipRefused("the name of a record is not text") from error
    if not text or text.startswith("/") or "\\" in text or "\0" in text or ".." in text.split("/"):
        raise ZipRefused(f"it has a record with the path {text[:100]!r}, which leads out of it")
    return text


def _expected_start(header_start: int, name_bytes: int, size: int, has_descriptor: bool, limit: int) -> int | None:
    """Return where torch starts a record's content (`getPadding`), or None if it would not end at `limit`."""
    start = header_start + _LOCAL.size + name_bytes + 4
    wide_size, wide_start = size >= _MAX32, header_start >= _MAX32
    if wide_size or wide_start:
        start += 4 + 16 * wide_size + 8 * wide_start
    start += -start % 64
    behind = (24 if wide_size or wide_start else 16) if has_descriptor and size else 0
    return start if start + size + behind == limit else None


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
    magic = Machine(data).run()
    if magic.value != _MAGIC:
        raise PickleRefused("torch did not write it")
    protocol = Machine(data, magic.position).run()
    machine = Machine(data, protocol.position).run()
    if protocol.value != _PROTOCOL or not isinstance(machine.value, dict):
        raise PickleRefused("no known version of torch wrote it")
    if machine.value.get("little_endian") is not True:
        raise _unstreamable(file, "it was written on a big-endian machine")
    pickle = Machine(data, machine.position, id_parts=6).run()
    keys = Machine(data, pickle.position).run()
    listed = keys.value if isinstance(keys.value, list) else []
    if not all(isinstance(key, str) for key in listed) or sorted(listed) != sorted(pickle.storages):
        raise PickleRefused("its list of storages does not match the storages that its tensors use")
    places, end = dict[str, Place](), keys.position
    for key in listed:
        size = pickle.storages[key].count * item_bytes(pickle.storages[key].dtype)
        places[key] = Place(end + 8, size)  # the number of elements stands before each storage
        end += 8 + size
    if end != file.bytes:
        raise PickleRefused(f"its storages end at byte {end}, but the file ends at byte {file.bytes}")
    return pickle.value, lambda storages: places


def _unstreamable(file: FileEntry, problem: str) -> SourceError:
    return SourceError(
        f"{file.path} cannot be streamed: {problem}.",
        "Add --engine classic, which loads the model in its own process and saves it again.",
        Remedy("use_classic_engine"),
    )
