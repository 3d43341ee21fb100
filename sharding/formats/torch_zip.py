"""Find each record of a zip file, as torch writes and reads them. Pure.

The format is PKWARE's APPNOTE 6.3.10, as far as torch 2.13 (`caffe2/serialize/inline_container.cc` over miniz) follows
it. Records are stored without compression, one after another. The directory and the end follow them. Ambiguous files
are refused: two records on the same bytes or with one name, or a directory in the wrong place.
"""

import struct
from dataclasses import dataclass

TAIL_BYTES = (1 << 16) + 22 + 20 + 56
"""Size of the last bytes of a file: a comment of any length, the end, and two records that large files have."""

LOCAL_BYTES = 30
"""Size of a record's own header, without the name and the padding after it."""

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_MAX16, _MAX32 = (1 << 16) - 1, (1 << 32) - 1
_ALIGNMENT = 64
_ENCRYPTED, _DESCRIBED_BEHIND = 1, 8


class ZipRefused(ValueError):
    """The file is not a zip file that torch would write. Its message completes a sentence."""


@dataclass(frozen=True, slots=True)
class Directory:
    """The place of the directory, `[start, end)`, and its number of records."""

    start: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record with all its bytes in `[header_start, limit)`. Its content has `bytes` bytes.

    `start` is the first byte of the content, or None if only the record's own header can tell.
    """

    name: str
    header_start: int
    limit: int
    bytes: int
    start: int | None
    is_stored: bool


def find_directory(tail: bytes, file_bytes: int) -> Directory:
    """Return the place of the directory, from the last `TAIL_BYTES` of a file of `file_bytes`. Raises ZipRefused."""
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
    return Directory(start, end, records)


def parse_directory(data: bytes, place: Directory) -> dict[str, Record]:
    """Return the records by name, in file order, from the bytes of the directory. Raises ZipRefused."""
    entries = []
    position = 0
    for _ in range(place.records):
        if len(data) - position < _ENTRY.size or not data.startswith(b"PK\1\2", position):
            raise ZipRefused("its directory is damaged")
        fields = _ENTRY.unpack_from(data, position)
        name_bytes, extra_bytes, comment_bytes = fields[10:13]
        at = position + _ENTRY.size
        position = at + name_bytes + extra_bytes + comment_bytes
        if position > len(data):
            raise ZipRefused("its directory is damaged")
        name, extra = data[at : at + name_bytes], data[at + name_bytes : at + name_bytes + extra_bytes]
        entries.append((*_wide(fields, extra), name, fields[3], fields[4]))
    if position != len(data):
        raise ZipRefused("its directory is damaged")
    entries.sort(key=lambda entry: entry[0])
    limits = [entry[0] for entry in entries[1:]] + [place.start]
    records: dict[str, Record] = {}
    for (header_start, packed, size, name, flags, method), limit in zip(entries, limits, strict=True):
        text = _safe_name(name)
        if text in records:
            raise ZipRefused(f"it has {text[:100]!r} twice")
        if header_start + LOCAL_BYTES + len(name) + packed > limit:
            raise ZipRefused(f"{text[:100]!r} overlaps the bytes after it")
        stored = method == 0 and packed == size and not flags & _ENCRYPTED
        start = _expected_start(header_start, len(name), size, bool(flags & _DESCRIBED_BEHIND), limit)
        records[text] = Record(text, header_start, limit, size, start, stored)
    return records


def start_from_header(record: Record, header: bytes) -> int:
    """Return the first byte of a record's content, from the first `LOCAL_BYTES` of its header. Raises ZipRefused."""
    if len(header) != LOCAL_BYTES or not header.startswith(b"PK\3\4"):
        raise ZipRefused(f"{record.name[:100]!r} is not where its directory says")
    name_bytes, extra_bytes = _LOCAL.unpack(header)[9:11]
    start: int = record.header_start + LOCAL_BYTES + name_bytes + extra_bytes
    if start + record.bytes > record.limit:
        raise ZipRefused(f"{record.name[:100]!r} overlaps the bytes after it")
    return start


def _wide(fields: tuple[int, ...], extra: bytes) -> tuple[int, int, int]:
    """Return start of the header, packed size and size. Values beyond 32 bits stand in field 1 of `extra`."""
    packed, size, header_start = fields[8], fields[9], fields[16]
    wide = b""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1:
            wide = extra[4 : 4 + length]
        extra = extra[4 + length :]
    values = []
    for narrow in (size, packed, header_start):
        if narrow == _MAX32 and len(wide) >= 8:
            values.append(int.from_bytes(wide[:8], "little"))
            wide = wide[8:]
        else:
            values.append(narrow)
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
    start = header_start + LOCAL_BYTES + name_bytes + 4
    wide_size, wide_start = size >= _MAX32, header_start >= _MAX32
    if wide_size or wide_start:
        start += 4 + 16 * wide_size + 8 * wide_start
    start += -start % _ALIGNMENT
    behind = (24 if wide_size or wide_start else 16) if has_descriptor and size else 0
    return start if start + size + behind == limit else None
