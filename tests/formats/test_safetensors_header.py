"""Headers: accepted, refused and written exactly as the installed safetensors does it."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save

from sharding.core.dtypes import BY_NAME
from sharding.core.errors import HeaderError
from sharding.formats.safetensors_file import Safetensors, build_header, header_end, parse_header
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


def u8(shape: str, start: int, end: int) -> str:
    return f'{{"dtype":"U8","shape":{shape},"data_offsets":[{start},{end}]}}'


def one(old: str, new: str) -> str:
    """The header of one tensor, changed."""
    assert old in ONE
    return (ONE % "").replace(old, new)


CASES: dict[str, tuple[str | bytes, int]] = {
    "valid": (ONE % "", 4),
    "no tensors": ("{}", 0),
    "empty header": ("", 0),
    "null metadata": ('{"__metadata__":null}', 0),
    "metadata that are no text": ('{"__metadata__":{"a":1}}', 0),
    "metadata as a list": ('{"__metadata__":["a"]}', 0),
    "metadata twice": ('{"__metadata__":{},"__metadata__":{}}', 0),
    "a metadata key twice": ('{"__metadata__":{"a":"b","a":"c"}}', 0),
    "foreign format": ('{"__metadata__":{"format":"xx"}}', 0),
    "a list at the top": ("[]", 0),
    "padding before and after": (" \n\t\r" + ONE % "" + " \n", 4),
    "text after the end": (ONE % "" + " x", 4),
    "a byte order mark": ("\ufeff" + ONE % "", 4),
    "a trailing comma": ((ONE % "")[:-1] + ",}", 4),
    "missing bytes": (ONE % "", 3),
    "trailing bytes": (ONE % "", 5),
    "a hole": (f'{{"a":{u8("[1]", 1, 2)}}}', 2),
    "an overlap": (f'{{"a":{u8("[2]", 0, 2)},"b":{u8("[2]", 1, 3)}}}', 3),
    "a shared range": (f'{{"a":{u8("[2]", 0, 2)},"b":{u8("[2]", 0, 2)}}}', 2),
    "empty tensors side by side": (f'{{"a":{u8("[0]", 0, 0)},"b":{u8("[0,5]", 0, 0)}}}', 0),
    "an end before its start": (f'{{"a":{u8("[0]", 4, 0)}}}', 4),
    "too few bytes for the shape": (one("[1]", "[2]"), 4),
    "a name twice, the last one counts": ((ONE % "")[:-1] + "," + one("[1]", "[1,1]")[1:], 4),
    "a name twice, the first one broken": ('{"a":5,' + (ONE % "")[1:], 4),
    "a field twice": (ONE % ',"dtype":"F32"', 4),
    "an unknown field, twice": (ONE % ',"x":1,"x":2', 4),
    "a missing field": ('{"a":{"dtype":"F32","shape":[1]}}', 4),
    "a tensor as a list": ('{"a":["F32",[1],[0,4]]}', 4),
    "a tensor as a list of four": ('{"a":["F32",[1],[0,4],0]}', 4),
    "a dtype as a variant": (one('"F32"', '{"F32":null}'), 4),
    "a dtype as a filled variant": (one('"F32"', '{"F32":[]}'), 4),
    "an unknown dtype": (one("F32", "F33"), 4),
    "a lower-case dtype": (one("F32", "f32"), 4),
    "a shape of true": (one("[1]", "[true]"), 4),
    "a shape of 1.0": (one("[1]", "[1.0]"), 4),
    "a shape of -1": (one("[1]", "[-1]"), 4),
    "an offset of -0": (one("[0,", "[-0,"), 4),
    "a shape of -0": (f'{{"a":{u8("[-0]", 0, 0)}}}', 0),
    "a length of -0 behind another": (f'{{"a":{u8("[1, -0]", 0, 0)}}}', 0),
    "three offsets": (one("[0,4]", "[0,4,4]"), 4),
    "a scalar": (one("[1]", "[]"), 4),
    "a product beyond 64 bits": (f'{{"a":{u8("[4294967296,4294967296,0]", 0, 0)}}}', 0),
    "zero before the product": (f'{{"a":{u8("[0,4294967296,4294967296]", 0, 0)}}}', 0),
    "bits beyond 64 bits": ('{"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}}', 0),
    "a length of 2**64 - 1": (f'{{"a":{u8("[18446744073709551615,0]", 0, 0)}}}', 0),
    "a length of 2**64": (f'{{"a":{u8("[18446744073709551616,0]", 0, 0)}}}', 0),
    "half a byte": ('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', 2),
    "two halves of a byte": ('{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}', 2),
    "six-bit numbers": ('{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}', 3),
    "not a number": (ONE % ',"x":NaN', 4),
    "a number out of range": (ONE % ',"x":1e999', 4),
    "a number near zero": (ONE % ',"x":1e-999', 4),
    "three hundred digits": (ONE % (',"x":' + "9" * 300), 4),
    "five thousand digits": (ONE % (',"x":' + "9" * 5000), 4),
    "half a surrogate pair in a name": (one('"a"', '"\\ud800"'), 4),
    "half a surrogate pair elsewhere": (ONE % ',"x":["\\udc00"]', 4),
    "half a surrogate pair in a key of the metadata": ('{"__metadata__":{"\\ud800":"b"}}', 0),
    "half a surrogate pair in a text of the metadata": ('{"__metadata__":{"a":"b","c":"\\udc00"}}', 0),
    "a surrogate pair in the metadata": ('{"__metadata__":{"\\ud83d\\ude00":"\\ud83d\\ude00"}}', 0),
    "a surrogate pair": (one('"a"', '"\\ud83d\\ude00"'), 4),
    "a control character": (ONE % ',"x":"\x01"', 4),
    "broken UTF-8": ((ONE % "").encode().replace(b'"a"', b'"\xed\xa0\x80"'), 4),
    "an empty name": (one('"a"', '""'), 4),
    "as deep as allowed": (ONE % (',"x":' + "[" * DEEPEST + "]" * DEEPEST), 4),
    "one deeper": (ONE % (',"x":' + "[" * (DEEPEST + 1) + "]" * (DEEPEST + 1)), 4),
    "objects one deeper": (ONE % (',"x":' + '{"a":' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1)), 4),
    "a hundred thousand deep": (ONE % (',"x":' + "[" * 100_000 + "]" * 100_000), 4),
}
WHOLE = {
    "empty file": b"",
    "seven bytes": b"1234567",
    **{f"a header of {size} announced": size.to_bytes(8, "little") + b"{}" for size in (10**8, 10**8 + 1, 2**64 - 1)},
    **{what: with_length(text, bytes(size)) for what, (text, size) in CASES.items()},
}


@promise("docs/formats.md#what-is-refused")
@pytest.mark.parametrize("data", WHOLE.values(), ids=WHOLE.keys())
def test_a_header_is_accepted_or_refused_as_safetensors_does(data: bytes, tmp_path: Path) -> None:
    assert ours(data) == theirs(data, tmp_path / "x.safetensors")


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


INTEGERS = [f"{sign}int{2**n}" for sign in ("", "u") for n in range(3, 7)]
NUMPY_DTYPES = ["bool", "float16", "float32", "float64", *INTEGERS]
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).filter(lambda name: name != "__metadata__")
arrays = st.builds(np.zeros, st.lists(st.integers(0, 3), max_size=3).map(tuple), st.sampled_from(NUMPY_DTYPES))


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
    assert build_header(Safetensors().order(header.tensors), metadata) == data[: header_end(data, len(data), "f")]


def test_every_dtype_has_the_width_that_safetensors_gives_it(tmp_path: Path) -> None:
    for dtype, row in BY_NAME.items():
        for size in (row.bits - 1, row.bits, row.bits + 1):
            text = json.dumps({"a": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}})
            assert (theirs(with_length(text, bytes(size)), tmp_path / "x") is not None) == (size == row.bits)


def test_the_writer_order_of_dtypes_is_that_of_safetensors() -> None:
    ranks = list(BY_NAME)
    entries = [stored_tensor("z" if rank % 2 else "a", dtype, (8,), "f", 0, 0) for rank, dtype in enumerate(ranks)]
    assert [entry.dtype for entry in Safetensors().order(reversed(entries))] == ranks


def test_a_header_beyond_100_mb_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.formats.safetensors_file.MAX_HEADER_BYTES", 1000)
    build_header([stored_tensor("n" * 900, "U8", (1,), "f", 0, 1)], None)
    with pytest.raises(HeaderError, match="100 MB"):
        build_header([stored_tensor("n" * 1001, "U8", (1,), "f", 0, 1)], None)


@pytest.mark.parametrize(
    "filler",
    ["[" + "[]," * 130_000 + "[]]", '["' + "x" * 400_000 + '"]', "[" + "0," * 200_000 + "0]"],
    ids=["empty lists", "one long text", "numbers"],
)
def test_memory_is_bounded_by_the_size_of_the_header(filler: str) -> None:
    data = with_length(ONE % f',"x":{filler}', bytes(4))
    tracemalloc.start()
    try:
        parse_header(data, len(data), "x")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 45 * len(data)
