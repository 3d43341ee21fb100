"""A tensor of a `.bin` file lies within its storage, a storage within its record: both sides of each bound."""

import io
import struct
import zipfile

import pytest
import torch

from sharding.core.errors import SourceError
from tests.formats.test_torch_hostile import packed, pickled_as, read, tensor
from tests.fuzz.seeds import rezipped, saved


@pytest.mark.parametrize(
    ("made", "is_within"),
    {
        "all of it": ({"shape": (2, 3), "strides": (3, 1), "count": 6}, True),
        "its end": ({"offset": 4, "shape": (2,), "strides": (1,), "count": 6}, True),
        "one beyond its end": ({"offset": 5, "shape": (2,), "strides": (1,), "count": 6}, False),
        "beyond a storage that is shorter than its record": ({"shape": (2, 3), "strides": (3, 1), "count": 5}, False),
        "the last column, one beyond": ({"offset": 3, "shape": (2, 1), "strides": (3, 1), "count": 6}, False),
        "the last column": ({"offset": 2, "shape": (2, 1), "strides": (3, 1), "count": 6}, True),
        "every element of it again and again": ({"shape": (9, 6), "strides": (0, 1), "count": 6}, True),
    }.values(),
    ids=lambda value: str(value).replace(" ", ""),
)
def test_a_tensor_ends_where_its_storage_ends_and_not_where_its_record_does(
    made: dict[str, object], is_within: bool
) -> None:
    data = packed(pickled_as({"w": tensor(), "v": tensor(**made)} if made["count"] == 6 else {"v": tensor(**made)}))  # type: ignore[arg-type]
    if is_within:
        assert [entry.shape for entry in read(data).tensors if entry.name == "v"] == [made["shape"]]
        assert torch.load(io.BytesIO(data), weights_only=True)["v"].shape == made["shape"]
        return
    with pytest.raises(SourceError, match="v extends beyond the bytes of its storage"):
        read(data)
    with pytest.raises(RuntimeError):
        torch.load(io.BytesIO(data), weights_only=True)


def with_own_header(data: bytes, name: str, more: int) -> bytes:
    """The zip file, where the own header of record `name` says that so many bytes `more` stand before its content."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        at = file.getinfo(name).header_offset + 28
    changed = bytearray(data)
    struct.pack_into("<H", changed, at, struct.unpack_from("<H", data, at)[0] + more)
    return bytes(changed)


@pytest.mark.parametrize(
    ("name", "more"),
    [("archive/data.pkl", 1), ("archive/data/0", 8), ("archive/data/1", 1), ("archive/data/1", 60_000)],
)
def test_a_record_that_its_own_header_puts_elsewhere_than_the_directory_is_refused(name: str, more: int) -> None:
    sound = rezipped(saved({"w": torch.arange(2.0), "v": torch.ones(3)}))
    assert [entry.name for entry in read(sound).tensors] == ["w", "v"]
    with pytest.raises(SourceError, match=f"'{name}' overlaps the bytes after it"):
        read(with_own_header(sound, name, more))


@pytest.mark.parametrize("name", ["archive/data/0", "archive/data/1"])
def test_a_record_that_does_not_begin_where_the_directory_says_is_refused(name: str) -> None:
    data = bytearray(rezipped(saved({"w": torch.arange(2.0), "v": torch.ones(3)})))
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        at = file.getinfo(name).header_offset
    data[at : at + 4] = b"PK\1\2"
    with pytest.raises(SourceError, match=f"'{name}' is not where its directory says"):
        read(bytes(data))
