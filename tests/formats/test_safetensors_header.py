"""Headers: accepted, refused and written exactly as the installed safetensors does it."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import HeaderError
from sharding.formats.safetensors_file import build_header, header_end, in_file_order, parse_header
from sharding.recipes.stored import place_of
from tests.promises import promise
from tests.tensors import stored_tensor

Outcome = tuple[dict[str, tuple[str, tuple[int, ...]]], dict[str, str] | None]

ONE = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]%s}}'
DEEPEST = 125  # brackets that still fit below the document and the tensor


def with_length(header: str | bytes, data: bytes) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return len(text).to_bytes(8, "little") + text + data


def theirs(data: bytes, path: Path) -> Outcome | None:
    path.write_bytes(data)
    try:
        with safe_open(path, "numpy") as file:
            parts = {name: file.get_slice(name) for name in file.offset_keys()}
            return {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in parts.items()}, file.metadata()
    except Exception:
        return None


def ours(data: bytes) -> Outcome | None:
    try:
        header = parse_header(data, len(data), "x.safetensors")
    except HeaderError as error:
        assert error.hint
        return None
    return {tensor.name: (tensor.dtype, tensor.shape) for tensor in header.tensors}, header.metadata  # type: ignore[return-value]


CASES: dict[str, bytes] = {
    "valid": with_length(ONE % "", bytes(4)),
    "no tensors": with_length("{}", b""),
    "empty file": b"",
    "seven bytes": b"1234567",
    "empty header": with_length("", b""),
    "null metadata": with_length('{"__metadata__":null}', b""),
    "metadata that are no text": with_length('{"__metadata__":{"a":1}}', b""),
    "metadata as a list": with_length('{"__metadata__":["a"]}', b""),
    "metadata twice": with_length('{"__metadata__":{},"__metadata__":{}}', b""),
    "a metadata key twice": with_length('{"__metadata__":{"a":"b","a":"c"}}', b""),
    "foreign format": with_length('{"__metadata__":{"format":"xx"}}', b""),
    "a list at the top": with_length("[]", b""),
    "padding before and after": with_length(" \n\t\r" + ONE % "" + " \n", bytes(4)),
    "text after the end": with_length(ONE % "" + " x", bytes(4)),
    "a byte order mark": with_length("\ufeff" + ONE % "", bytes(4)),
    "a trailing comma": with_length((ONE % "")[:-1] + ",}", bytes(4)),
    "missing bytes": with_length(ONE % "", bytes(3)),
    "trailing bytes": with_length(ONE % "", bytes(5)),
    "a hole": with_length('{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}', bytes(2)),
    "an overlap": with_length(
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}',
        bytes(3),
    ),
    "a shared range": with_length(
        '{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        bytes(2),
    ),
    "empty tensors side by side": with_length(
        '{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]}}',
        b"",
    ),
    "an end before its start": with_length('{"a":{"dtype":"U8","shape":[0],"data_offsets":[4,0]}}', bytes(4)),
    "too few bytes for the shape": with_length('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', bytes(4)),
    "a name twice, the last one counts": with_length(
        (ONE % "")[:-1] + "," + (ONE % "")[1:].replace("[1]", "[1,1]"), bytes(4)
    ),
    "a name twice, the first one broken": with_length('{"a":5,' + (ONE % "")[1:], bytes(4)),
    "a field twice": with_length(ONE % ',"dtype":"F32"', bytes(4)),
    "an unknown field, twice": with_length(ONE % ',"x":1,"x":2', bytes(4)),
    "a missing field": with_length('{"a":{"dtype":"F32","shape":[1]}}', bytes(4)),
    "a tensor as a list": with_length('{"a":["F32",[1],[0,4]]}', bytes(4)),
    "a tensor as a list of four": with_length('{"a":["F32",[1],[0,4],0]}', bytes(4)),
    "a dtype as a variant": with_length((ONE % "").replace('"F32"', '{"F32":null}'), bytes(4)),
    "a dtype as a filled variant": with_length((ONE % "").replace('"F32"', '{"F32":[]}'), bytes(4)),
    "an unknown dtype": with_length((ONE % "").replace("F32", "F33"), bytes(4)),
    "a lower-case dtype": with_length((ONE % "").replace("F32", "f32"), bytes(4)),
    "a shape of true": with_length((ONE % "").replace("[1]", "[true]"), bytes(4)),
    "a shape of 1.0": with_length((ONE % "").replace("[1]", "[1.0]"), bytes(4)),
    "a shape of -1": with_length((ONE % "").replace("[1]", "[-1]"), bytes(4)),
    "an offset of -0": with_length((ONE % "").replace("[0,", "[-0,"), bytes(4)),
    "a shape of -0": with_length('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}', b""),
    "a length of -0 behind another": with_length('{"a":{"dtype":"U8","shape":[1, -0],"data_offsets":[0,0]}}', b""),
    "three offsets": with_length((ONE % "").replace("[0,4]", "[0,4,4]"), bytes(4)),
    "a scalar": with_length((ONE % "").replace("[1]", "[]"), bytes(4)),
    "a product beyond 64 bits": with_length(
        '{"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}}', b""
    ),
    "zero before the product": with_length(
        '{"a":{"dtype":"U8","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}}', b""
    ),
    "bits beyond 64 bits": with_length('{"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}}', b""),
    "a length of 2**64 - 1": with_length(
        '{"a":{"dtype":"U8","shape":[18446744073709551615,0],"data_offsets":[0,0]}}', b""
    ),
    "a length of 2**64": with_length('{"a":{"dtype":"U8","shape":[18446744073709551616,0],"data_offsets":[0,0]}}', b""),
    "half a byte": with_length('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', bytes(2)),
    "two halves of a byte": with_length('{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}', bytes(2)),
    "six-bit numbers": with_length('{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}', bytes(3)),
    "not a number": with_length(ONE % ',"x":NaN', bytes(4)),
    "a number out of range": with_length(ONE % ',"x":1e999', bytes(4)),
    "a number near zero": with_length(ONE % ',"x":1e-999', bytes(4)),
    "three hundred digits": with_length(ONE % (',"x":' + "9" * 300), bytes(4)),
    "five thousand digits": with_length(ONE % (',"x":' + "9" * 5000), bytes(4)),
    "half a surrogate pair in a name": with_length('{"\\ud800":' + (ONE % "")[5:], bytes(4)),
    "half a surrogate pair elsewhere": with_length(ONE % ',"x":["\\udc00"]', bytes(4)),
    "half a surrogate pair in a key of the metadata": with_length('{"__metadata__":{"\\ud800":"b"}}', b""),
    "half a surrogate pair in a text of the metadata": with_length('{"__metadata__":{"a":"b","c":"\\udc00"}}', b""),
    "a surrogate pair in the metadata": with_length('{"__metadata__":{"\\ud83d\\ude00":"\\ud83d\\ude00"}}', b""),
    "a surrogate pair": with_length('{"\\ud83d\\ude00":' + (ONE % "")[5:], bytes(4)),
    "a control character": with_length(ONE % ',"x":"\x01"', bytes(4)),
    "broken UTF-8": with_length(b'{"\xed\xa0\x80":' + (ONE % "")[5:].encode(), bytes(4)),
    "an empty name": with_length('{"":' + (ONE % "")[5:], bytes(4)),
    "as deep as allowed": with_length(ONE % (',"x":' + "[" * DEEPEST + "]" * DEEPEST), bytes(4)),
    "one deeper": with_length(ONE % (',"x":' + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)), bytes(4)),
    "objects one deeper": with_length(ONE % (',"x":' + '{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1)), bytes(4)),
    "a hundred thousand deep": with_length(ONE % (',"x":' + "[" * 100_000 + "]" * 100_000), bytes(4)),
    "a header of 100 MB announced": (100_000_000).to_bytes(8, "little") + b"{}",
    "a header beyond 100 MB announced": (100_000_001).to_bytes(8, "little") + b"{}",
    "a header of 16 EB announced": b"\xff" * 8 + b"{}",
}


@promise("docs/formats.md#what-is-refused")
@pytest.mark.parametrize("data", CASES.values(), ids=CASES.keys())
def test_a_header_is_accepted_or_refused_as_safetensors_does(data: bytes, tmp_path: Path) -> None:
    assert ours(data) == theirs(data, tmp_path / "x.safetensors")


def test_the_cases_hold_both_accepted_and_refused_headers() -> None:
    accepted = [name for name, data in CASES.items() if ours(data)]
    assert 15 < len(accepted) < len(CASES) - 15


BASE = (
    '{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
    '"bé":{"dtype":"BF16","shape":[],"data_offsets":[8,10]},'
    '"c":{"dtype":"U8","shape":[0,3],"data_offsets":[10,10],"x":[1,{"y":-0.5e3}]}}'
)
TOKENS = [
    *'{}[],:"0148 \t', "-0", "1.0", "1e5", "null", "true", '"F32"', '"F4"', '"a"', '"shape"', '"dtype"', '"data_offsets"',
    '"__metadata__"', "\\u00e9", "\\ud800", "\\n", "\x00", "10", "18446744073709551615", "18446744073709551616", "{}", "[]",
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """A valid header after a few insertions, deletions and repetitions."""
    text = BASE
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.sampled_from([0, 0, 1, 1, 2, 5, 20, 60])))
        copied = draw(st.integers(0, len(text)))
        pieces = st.sampled_from([*TOKENS, "", text[copied : copied + 40], text[copied : copied + 8]])
        text = text[:start] + draw(pieces) + text[end:]
    return with_length(text, bytes(draw(st.sampled_from([10, 10, 10, 10, 0, 9, 11, 8]))))


@settings(max_examples=200)
@given(data=mutations())
def test_a_mutated_header_is_accepted_or_refused_as_safetensors_does(data: bytes, tmp_path: Path) -> None:
    assert ours(data) == theirs(data, tmp_path / "x.safetensors")


@settings(max_examples=100)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_accepted_or_refused_as_safetensors_does(data: bytes, tmp_path: Path) -> None:
    assert ours(data) == theirs(data, tmp_path / "x.safetensors")


NUMPY_DTYPES = [
    "float64",
    "float32",
    "float16",
    "bool",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
]
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
arrays = st.builds(np.zeros, st.lists(st.integers(0, 3), max_size=3).map(tuple), st.sampled_from(NUMPY_DTYPES))


@settings(max_examples=100)
@given(
    # safetensors 0.8 itself writes a broken header for empty metadata without tensors.
    tensors=st.dictionaries(names, arrays, min_size=1, max_size=8),
    metadata=st.none() | st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=1),
)
def test_a_header_is_written_byte_for_byte_as_safetensors_writes_it(
    tensors: dict[str, np.ndarray], metadata: dict[str, str] | None
) -> None:
    data = save(tensors, metadata)
    header = parse_header(data, len(data), "x")
    assert build_header(in_file_order(header.tensors), metadata) == data[: header.data_start]


def test_every_dtype_has_the_width_that_safetensors_gives_it(tmp_path: Path) -> None:
    for dtype, row in BY_NAME.items():
        for size in range(1, 72):
            text = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}})
            assert (theirs(with_length(text, bytes(size)), tmp_path / "x") is not None) == (size == row.bits)


def test_the_writer_order_of_dtypes_is_that_of_safetensors() -> None:
    ranks = list(BY_NAME)
    entries = [stored_tensor("z" if rank % 2 else "a", dtype, (8,), "f", 0, 0) for rank, dtype in enumerate(ranks)]
    assert [entry.dtype for entry in in_file_order(reversed(entries))] == ranks


def test_offsets_are_counted_from_the_start_of_the_file() -> None:
    data = with_length(ONE % "", b"wxyz")
    (tensor,) = parse_header(data, len(data), "x").tensors
    assert data[place_of(tensor).start_byte : place_of(tensor).end_byte] == b"wxyz"


def test_a_false_length_is_refused_before_anything_is_read() -> None:
    with pytest.raises(HeaderError, match="ends inside its header"):
        header_end((99_000_000).to_bytes(8, "little"), 500, "x.safetensors")


def test_a_header_beyond_100_mb_is_not_written() -> None:
    with pytest.raises(HeaderError, match="100 MB"):
        build_header([stored_tensor("n" * 100_000_001, "U8", (1,), "f", 0, 1)], None)


@pytest.mark.parametrize(
    "filler",
    [
        lambda size: "[" + "[]," * (size // 3) + "[]]",
        lambda size: '["' + "x" * size + '"]',
        lambda size: "[" + "0," * (size // 2) + "0]",
    ],
    ids=["empty lists", "one long text", "numbers"],
)
def test_memory_is_bounded_by_the_size_of_the_header(filler: Callable[[int], str]) -> None:
    data = with_length(ONE % (',"x":' + filler(2_000_000)), bytes(4))
    tracemalloc.start()
    try:
        parse_header(data, len(data), "x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 45 * len(data)
