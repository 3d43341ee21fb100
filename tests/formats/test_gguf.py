"""Headers of GGUF files: what is sound is read and written back, and nothing else is read."""

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.errors import HeaderError
from sharding.formats.gguf import NeedsMore, build_header, parse_header, read_header
from sharding.recipes.stored import place_of
from tests.fuzz.targets import gguf as fuzzed
from tests.ggufs import MODEL, Info, gguf, key, layers, text

_dims = st.lists(st.integers(0, 5), max_size=4)
_infos = st.lists(st.tuples(st.text(st.characters(categories=["L", "N"]), max_size=15), _dims), max_size=6).map(
    lambda pairs: [Info(name, dims) for name, dims in dict(pairs).items()]
)


@given(_infos, st.sampled_from([8, 32, 64]), st.sampled_from([2, 3]))
def test_every_sound_file_is_read_and_written_back(infos: list[Info], alignment: int, version: int) -> None:
    keys = [*MODEL, key("general.alignment", alignment)]
    data = gguf(infos, keys, version=version, alignment=alignment)
    header = parse_header(data, len(data), "m.gguf", "m/")
    assert [(one.name, one.shape[::-1]) for one in header.tensors] == [(f"m/{one.name}", one.dims) for one in infos]
    for tensor, info in zip(header.tensors, infos, strict=True):
        assert data[place_of(tensor).start_byte : place_of(tensor).end_byte] == info.data
    assert header.is_usual is (version == 3)
    assert build_header(header.tensors, header.keys) == gguf(infos, keys, alignment=alignment)[: header.end]


@given(st.data())
def test_a_header_is_read_however_little_of_it_is_at_hand_and_never_from_a_truncated_file(data: st.DataObject) -> None:
    whole = gguf(layers())
    cut = data.draw(st.integers(0, len(whole) - 1))
    asked = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return whole[start:end]

    header = parse_header(whole, len(whole), "m.gguf")
    assert read_header(read, len(whole), "m.gguf") == header and asked[0] == (0, min(len(whole), 1 << 20))
    if cut < header.end:
        with pytest.raises(NeedsMore) as more:
            parse_header(whole[:cut], len(whole), "m.gguf")
        assert cut < more.value.args[0] <= header.end
    if cut < place_of(header.tensors[-1]).end_byte:
        with pytest.raises(HeaderError):
            parse_header(whole[:cut], cut, "m.gguf")


def _with(position: int, form: str, value: int) -> bytes:
    data = bytearray(gguf(layers()))
    struct.pack_into(form, data, position, value)
    return bytes(data)


def _renamed(*dims: int, offset: int = 0, type_: int = 0, name: bytes = b"w") -> bytes:
    info = text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + info
    return header + bytes(-len(header) % 32 + 4096)


UNSOUND = {
    "a pointer of Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n",
    "does not begin with GGUF": b"GGML" + bytes(100),
    "big-endian": _with(4, ">I", 3),
    "its version is 1": _with(4, "<I", 1),
    "its version is 4": _with(4, "<I", 4),
    "announces 9,223,372,036,854,775,808 tensors": _with(8, "<Q", 1 << 63),
    "announces 4,294,967,296 keys": _with(16, "<Q", 1 << 32),
    "twice": gguf([], [*MODEL, MODEL[0]]),
    "a key has no name": gguf([], [key("", 1)]),
    "has no valid value": gguf([], [(b"a", 9, struct.pack("<IQ", 9, 0))]),
    "longer than 1 GiB": gguf([], [(b"a", 8, struct.pack("<Q", 1 << 31))]),
    "ends inside its header": gguf([], [(b"a", 9, struct.pack("<IQ", 0, 1 << 20))]),
    "no power of two": gguf([], [key("general.alignment", 48)]),
    "another type": gguf([], [key("general.alignment", 2, 2)]),
    "the tensor w twice": gguf([Info("w", (2,)), Info("w", (2,))]),
    "more than 63 bytes": gguf([Info("w" * 64, (2,))]),
    "contains a NUL": gguf([Info("w\0", (2,))]),
    "not UTF-8": _renamed(2, name=b"\xff"),
    "5 dimensions": _renamed(1, 1, 1, 1, 1),
    "unknown type 4": _renamed(32, type_=4),
    "cannot have the dimensions [33]": _renamed(33, type_=2),
    "cannot have the dimensions [2, 9223372036854775808]": _renamed(2, 1 << 63),
    "should be at 0": _renamed(2, offset=32),
    "truncated": _renamed(4096),
}


@pytest.mark.parametrize("problem", UNSOUND)
def test_what_llama_cpp_refuses_is_refused_in_one_sentence(problem: str) -> None:
    with pytest.raises(HeaderError, match="m.gguf is") as error:
        parse_header(UNSOUND[problem], len(UNSOUND[problem]), "m.gguf")
    assert problem in error.value.message and error.value.hint


@given(st.integers(0, 400), st.binary(min_size=1, max_size=9))
def test_any_other_bytes_are_refused_or_describe_bytes_that_are_there(position: int, bytes_: bytes) -> None:
    data = bytearray(gguf(layers(2)))
    data[position : position + len(bytes_)] = bytes_
    with suppress(HeaderError):
        fuzzed(bytes(data))


def test_the_longest_name_is_taken() -> None:
    data = gguf([Info("w" * 63, (2,))])
    assert parse_header(data, len(data), "m.gguf").tensors[0].name == "w" * 63
