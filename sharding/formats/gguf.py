"""Read and write the header of a GGUF file, and describe a shard as such a file.

A GGUF file (ggml's `gguf.h`) begins with its header: keys with values, then name, dimensions and type of each tensor.
The tensors follow, each at a multiple of the alignment. This module accepts what `gguf_init_from_file` of llama.cpp
v0.5.0 accepts, if the data is there too. It writes the bytes of its `gguf-split`, except where that loses something.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from math import prod
from pathlib import Path
from struct import Struct, pack

from typing_extensions import override

from sharding.core.errors import HeaderError
from sharding.core.limits import MAX_HEADER_BYTES, MAX_TENSORS
from sharding.core.protocols import FileFormat
from sharding.core.text import name_problem, printable, shown_name
from sharding.core.values import Component, GgufHead, Plan, Shard, Tensor, TensorDigest
from sharding.formats.names import what_is
from sharding.recipes.stored import Stored

GGUF = ".gguf"
TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18), 42: ("Q2_0", 64, 18),
}  # fmt: skip
"""The name of each type (gguf-py), the elements of its blocks and their bytes (`ggml_blck_size`, `ggml_type_size`)."""
_NUMBERS = {name: number for number, (name, *_) in TYPES.items()}

ALIGNMENT, NO, COUNT, TENSORS = b"general.alignment", b"split.no", b"split.count", b"split.tensors.count"
SPLIT_KEYS = {NO: 2, COUNT: 2, TENSORS: 5}
"""The keys of a split, with the types of their values: u16, u16, i32."""
_USUAL_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20  # A bound of this tool. Nobody uses more than 4096.
_MAX_ELEMENTS = 1 << 30  # The bounds of llama.cpp: elements of an array, characters of a string, dimensions, a name.
_MAX_DIMENSIONS, _NAME_END = 4, 64
_MAX_KEYS = 1 << 16  # A bound of this tool. A model has a few dozen.
FIRST_BYTES = 1 << 20  # What is read first. The keys of a model with its vocabulary have some megabytes.
_STRING, _ARRAY = 8, 9
_VALUE_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_U32, _U64 = Struct("<I").unpack_from, Struct("<Q").unpack_from

_FILE = re.compile(r"(?P<name>.+?)(?:-(?P<number>\d{5})-of-(?P<count>\d{5}))?\.gguf", re.ASCII | re.DOTALL)
_TAG = re.compile(r"[-.](\w+)$", re.ASCII)
_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")
_HINT = "The file is damaged, or not written by llama.cpp's tools. Download it again, or ask its author."


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. `tensors` are in stored order, and `keys` are name to bytes, with the name and the type."""

    tensors: tuple[Tensor, ...]
    keys: Mapping[bytes, bytes]
    alignment: int
    end: int  # Where the data begins.
    is_usual: bool  # Whether everybody would write it like that: version 3, and zeros before the data.


class NeedsMore(Exception):
    """The header does not end in the bytes that were read. The argument is how many it has at least."""


def parts_of(file: str) -> tuple[str, int, int] | None:
    """Return the name of the model in a `file`, the file's number from 1 and the count; None for any other file.

    >>> parts_of("Q8_0/m-Q8_0-00002-of-00003.gguf"), parts_of("m.gguf")
    (('Q8_0/m-Q8_0', 2, 3), ('m', 1, 1))
    """
    match = _FILE.fullmatch(file)
    return (match["name"], int(match["number"] or 1), int(match["count"] or 1)) if match else None


def tag_of(name: str) -> str:
    """Return the tag of a model by which llama.cpp and ollama find it (`get_gguf_split_info`), or "".

    >>> tag_of("Q8_0/my.model-q8_0"), tag_of("model")
    ('Q8_0', '')
    """
    match = _TAG.search(name)
    return match[1].upper() if match else ""


def is_model(path: str) -> bool:
    """Return whether a file is a model of its own by its name, and no projector, matrix or draft (llama.cpp's rule)."""
    return path.endswith(GGUF) and not any(word in path.rpartition("/")[2] for word in _NO_MODEL)


def parse_header(data: bytes, file_bytes: int, file: str, folder: str = "") -> Header:
    """Return the header of `file`, which has `file_bytes`, from its first bytes. `folder` stands before the names.

    Raises NeedsMore if `data` ends inside the header. Raises HeaderError if llama.cpp would refuse the file, if its
    data is not all there, or if it is beyond a bound of this tool.
    """
    what, hint = what_is(data, "GGUF")
    if what:
        raise HeaderError(f"{file} is {what}.", hint)
    try:
        return _Walk(data, file_bytes).header(file, folder)
    except ValueError as error:
        raise HeaderError(f"{file} is not a valid GGUF file: {error}.", _HINT) from error


def read_header(read: Callable[[int, int], bytes], file_bytes: int, file: str, folder: str = "") -> Header:
    """Return the header of `file`, as `parse_header` does. `read` returns bytes of it, and is asked for ever more."""
    data, end = b"", min(file_bytes, FIRST_BYTES)
    while True:
        data += read(len(data), end)
        try:
            return parse_header(data, file_bytes, file, folder)
        except NeedsMore as more:
            end = min(file_bytes, max(more.args[0], 4 * end))


class _Walk:
    """A walk through the bytes of a header. Its methods raise ValueError, and NeedsMore where the bytes end."""

    def __init__(self, data: bytes, file_bytes: int) -> None:
        self._data, self._file_bytes, self._at = data, file_bytes, 0

    def header(self, file: str, folder: str) -> Header:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._u32()
        if version and not version & 0xFFFF:
            raise ValueError("it is big-endian")
        if version not in (2, 3):
            raise ValueError(f"its version is {version}, and only 2 and 3 are read")
        tensors, count = self._u64(), self._u64()
        if tensors > MAX_TENSORS:
            raise ValueError(f"it announces {tensors:,} tensors, and at most {MAX_TENSORS:,} are read")
        if count > _MAX_KEYS:
            raise ValueError(f"it announces {count:,} keys, and at most {_MAX_KEYS:,} are read")
        self._room(count * 13 + tensors * 24)  # the least that they take
        keys = self._keys(count)
        alignment = alignment_of(keys)
        infos = [self._tensor() for _ in range(tensors)]
        end = self._at + (-self._at % alignment if tensors else 0)
        self._need(min(end, self._file_bytes))
        read, seen, start = list[Tensor](), set[str](), 0
        for name, shape, dtype, size, offset in infos:
            if name in seen:
                raise ValueError(f"it has the tensor {shown_name(name)} twice")
            if offset != start:
                raise ValueError(f"the tensor {name} is at {offset} of the data, and should be at {start}")
            if end + start + size > self._file_bytes:
                raise ValueError(f"it ends inside the tensor {name}, so it is truncated")
            seen.add(name)
            read.append(Tensor(folder + name, dtype, shape, Stored(0, file, end + start, end + start + size), folder))
            start += size + -size % alignment
        is_usual = version == 3 and not any(self._data[self._at : end])
        return Header(tuple(read), keys, alignment, end, is_usual)

    def _keys(self, count: int) -> dict[bytes, bytes]:
        keys = dict[bytes, bytes]()
        for _ in range(count):
            start, key = self._at, self._string()
            if not key or key in keys:
                raise ValueError(f"it has the key {key[:100]!r} twice" if key else "a key has no name")
            kind, times = self._u32(), 1
            if kind == _ARRAY:
                kind, times = self._u32(), self._u64()
            if times > _MAX_ELEMENTS or kind not in (_STRING, *_VALUE_BYTES):
                raise ValueError(f"the key {key[:100]!r} has no valid value")
            if kind == _STRING:
                self._strings(times)
            else:
                self._need(self._at + times * _VALUE_BYTES[kind])
                self._at += times * _VALUE_BYTES[kind]
            keys[key] = self._data[start : self._at]
        return keys

    def _tensor(self) -> tuple[str, tuple[int, ...], str, int, int]:
        try:
            name = self._string().decode()
        except UnicodeDecodeError:
            raise ValueError("the name of a tensor is not UTF-8") from None
        if len(name.encode()) >= _NAME_END:
            raise ValueError(f"the name of the tensor {shown_name(name)} has more than {_NAME_END - 1} bytes")
        if problem := name_problem(name) or "contains a NUL" * ("\0" in name):
            raise ValueError(f"the name of the tensor {shown_name(name)} {problem}")
        if (dimensions := self._u32()) > _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {dimensions} dimensions, and 4 are the most")
        lengths = [self._u64() for _ in range(dimensions)]
        kind = TYPES.get(number := self._u32())
        if not kind:
            raise ValueError(f"the tensor {name} has the unknown type {number}")
        dtype, block, block_bytes = kind
        row = lengths[0] if lengths else 1
        if max(lengths, default=0) >> 63 or row % block or prod(lengths) >> 63:
            raise ValueError(f"the tensor {name} cannot have the dimensions {lengths} as {dtype}")
        return name, tuple(reversed(lengths)), dtype, prod(lengths) // block * block_bytes, self._u64()

    def _need(self, end: int) -> None:
        if end > len(self._data):
            self._room(end - self._at)
            raise NeedsMore(end)

    def _room(self, count: int) -> None:
        """Raise ValueError if `count` more bytes do not fit into the file, or into a header."""
        if self._at + count > self._file_bytes:
            raise ValueError(f"it ends inside its header, at {self._file_bytes:,} bytes, so it is truncated")
        if self._at + count > MAX_HEADER_BYTES:
            raise ValueError("its header is larger than 100 MB")

    def _take(self, count: int) -> bytes:
        self._need(self._at + count)
        self._at += count
        return self._data[self._at - count : self._at]

    def _u32(self) -> int:
        return int.from_bytes(self._take(4), "little")

    def _u64(self) -> int:
        return int.from_bytes(self._take(8), "little")

    def _string(self) -> bytes:
        length = self._u64()
        if length > _MAX_ELEMENTS:
            raise ValueError("a text is longer than 1 GiB")
        return self._take(length)

    def _strings(self, count: int) -> None:
        """Pass over `count` strings. A vocabulary has hundreds of thousands, so this loop is short."""
        self._room(8 * count)
        data, at, last = self._data, self._at, len(self._data) - 8
        for _ in repeat(None, count):
            if at > last:
                self._at = at
                self._need(at + 8)
            length = _U64(data, at)[0]
            at += 8 + length
            if length > _MAX_ELEMENTS:
                raise ValueError("a text is longer than 1 GiB")
        self._need(at)
        self._at = at


def number_in(keys: Mapping[bytes, bytes], key: bytes, kind: int) -> int | None:
    """Return the whole number of a `key`, None if there is none. Raises ValueError unless it has this `kind`."""
    if key not in keys:
        return None
    value = keys[key][8 + len(key) :]
    if _U32(value)[0] != kind:
        raise ValueError(f"the key {key.decode()} has a value of another type")
    return int.from_bytes(value[4:], "little")


def text_in(keys: Mapping[bytes, bytes], key: bytes) -> str:
    """Return the start of the text of a `key`, "" if it has none."""
    value = keys.get(key, b"")[8 + len(key) :][:100]
    return printable(value[12:].decode(errors="replace")) if value[:4] == pack("<I", _STRING) else ""


def alignment_of(keys: Mapping[bytes, bytes]) -> int:
    """Return the alignment that the keys of a file name. Raises ValueError unless it is a power of two."""
    alignment = number_in(keys, ALIGNMENT, 4)
    if alignment is None:
        return _USUAL_ALIGNMENT
    if not 0 < alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"its alignment is {alignment}, which is no power of two up to {MAX_ALIGNMENT:,}")
    return alignment


def build_header(tensors: Iterable[Tensor], keys: Mapping[bytes, bytes]) -> bytes:
    """Return the first bytes of a file with these tensors, one after another, and these keys, up to its data."""
    alignment, tensors = alignment_of(keys), tuple(tensors)
    parts = [b"GGUF" + pack("<IQQ", 3, len(tensors), len(keys)), *keys.values()]
    start = 0
    for name, dtype, shape, recipe, folder in tensors:
        text = name.removeprefix(folder).encode()
        fields = len(shape), *reversed(shape), _NUMBERS[dtype], start
        parts += [pack("<Q", len(text)), text, pack(f"<I{len(shape)}QIQ", *fields)]
        start += recipe.size_bytes + -recipe.size_bytes % alignment
    size = sum(map(len, parts))
    return b"".join([*parts, bytes(-size % alignment if tensors else 0)])


def keys_of(head: GgufHead, number: int, count: int) -> dict[bytes, bytes]:
    """Return the keys of file `number` (from 1) of `count`, each with its bytes, as gguf-split writes them.

    The first file has all keys of the model. A split ends with the keys of the split. In a merged file these stay where
    they are, and only their count becomes 0 and the last.
    """
    if count == head.files == 1:
        return dict(head.keys)
    split = {NO: pack("<H", number - 1), TENSORS: pack("<i", head.tensors), COUNT: pack("<H", count * (count > 1))}
    last = {key: pack("<Q", len(key)) + key + pack("<I", SPLIT_KEYS[key]) + value for key, value in split.items()}
    if number == 1:
        dropped = SPLIT_KEYS if count > 1 else {COUNT}
        return {key: value for key, value in head.keys.items() if key not in dropped} | last
    is_odd = alignment_of(head.keys) != _USUAL_ALIGNMENT
    return ({ALIGNMENT: head.keys[ALIGNMENT]} if is_odd else {}) | last


def loses_in_gguf_split(head: GgufHead, tensors: Iterable[Tensor]) -> list[str]:
    """Return what gguf-split of llama.cpp v0.5.0 would lose of a model, whose bytes differ from its for that reason."""
    has_ones = any(len(shape) > 1 and shape[0] == 1 or not shape or not all(shape) for _, _, shape, *_ in tensors)
    return [
        *["the alignment of the tensors"] * (alignment_of(head.keys) != _USUAL_ALIGNMENT),
        *["what follows a NUL in a text"] * any(map(_has_nul, head.keys.values())),
        *["dimensions of 1 or 0"] * has_ones,
    ]


def _has_nul(value: bytes) -> bool:
    at = 8 + int.from_bytes(value[:8], "little")
    kind, count, at = _U32(value, at)[0], 1, at + 4
    if kind == _ARRAY:
        kind, count, at = _U32(value, at)[0], _U64(value, at + 4)[0], at + 12
    for _ in repeat(None, count if kind == _STRING else 0):
        end = at + 8 + _U64(value, at)[0]
        if value.find(b"\0", at + 8, end) >= 0:
            return True
        at = end
    return False


class Gguf(FileFormat):
    """The format of GGUF (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), in files as llama.cpp names them.

    >>> Gguf().name(Component(stem="Q8_0/m-Q8_0"), "-00001-of-00002")
    'Q8_0/m-Q8_0-00001-of-00002.gguf'
    """

    @override
    def name(self, component: Component, suffix: str = "") -> str:
        return f"{component.stem}{suffix}{GGUF}"

    @override
    def pieces(self, plan: Plan, shard: Shard) -> Iterator[bytes | Tensor]:
        head, parts = plan.component(shard).gguf, parts_of(shard.file)
        assert head and parts, shard.file
        if head.raw and parts[2] == 1:
            gaps = iter(head.raw)
            yield next(gaps)
        else:
            keys = keys_of(head, *parts[1:])
            alignment = alignment_of(keys)
            gaps = (bytes(-tensor.bytes % alignment) for tensor in shard.tensors)
            yield build_header(shard.tensors, keys)
        for tensor, gap in zip(shard.tensors, gaps, strict=True):
            yield tensor
            if gap:
                yield gap

    @override
    def structure(self, path: Path, shard: Shard) -> tuple[dict[str, TensorDigest], dict[str, str] | None]:
        try:
            with path.open("rb") as file:
                size = path.stat().st_size
                header = read_header(lambda start, end: file.read(end - start), size, shard.file, shard.folder)
        except OSError as error:
            raise HeaderError(f"{shard.file} cannot be read: {error}.", _HINT) from error
        return {name: TensorDigest(dtype, shape, "") for name, dtype, shape, *_ in header.tensors}, {}
