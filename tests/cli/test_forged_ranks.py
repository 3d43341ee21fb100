"""A forged checkpoint of ranks costs a command no more than an honest one: it is refused before much is read."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from sharding.storage.folder_source import FolderSource
from tests.commands import invoke
from tests.promises import promise

PIECES = 400
ROW = torch.zeros(1, 4)


def archive(more_records: int = 0) -> bytes:
    """What `torch.save` writes of one row, with records that it has not written."""
    stream = io.BytesIO()
    torch.save(ROW, stream)
    with zipfile.ZipFile(stream, "a", zipfile.ZIP_STORED) as file:
        for number in range(more_records):
            file.writestr(f"archive/more/{number}", b"")
    return stream.getvalue()


def write_ranks(folder: Path, data: bytes, places: list[tuple[int, int]]) -> Path:
    """Write a checkpoint whose one tensor has a row in each of `places` (start and length) of `data`."""
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(data)
    offsets = [torch.Size((number, 0)) for number in range(len(places))]
    tensor = TensorStorageMetadata(
        TensorProperties(dtype=torch.float32),
        torch.Size((len(places), 4)),
        [ChunkStorageMetadata(offset, ROW.size()) for offset in offsets],
    )
    storage = {
        MetadataIndex("w", offset): _StorageInfo("__0_0.distcp", *place)
        for offset, place in zip(offsets, places, strict=True)
    }
    metadata = Metadata({"w": tensor}, {"w": ("w",)}, storage)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    return folder


@pytest.fixture
def read_bytes() -> Iterator[list[int]]:
    """How many bytes were read of the files of the ranks, read by read."""
    counts: list[int] = []
    usual = FolderSource.read

    def read(self: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if file.endswith(".distcp"):
            counts.append(end - start)
        return usual(self, file, start, end)

    with patch.object(FolderSource, "read", read):
        yield counts


def refusal(folder: Path) -> str:
    """Return what `inspect` says of a checkpoint that it does not take."""
    result = invoke("inspect", folder)
    assert result.exit_code == 3, result.output
    return result.stderr


@promise("docs/security.md#delay-a-job-with-forged-files")
def test_pieces_that_overlap_are_refused_before_any_is_opened(tmp_path: Path, read_bytes: list[int]) -> None:
    data = archive(9000)
    folder = write_ranks(tmp_path / "in", data, [(0, len(data))] * PIECES)
    assert "Two pieces of w overlap in __0_0.distcp." in refusal(folder)
    assert read_bytes == []


@promise("docs/security.md#delay-a-job-with-forged-files")
@pytest.mark.parametrize("more", [100, 9000])
def test_a_piece_with_more_than_one_tensor_is_refused(tmp_path: Path, read_bytes: list[int], more: int) -> None:
    one = archive(more)
    folder = write_ranks(tmp_path / "in", one * 20, [(number * len(one), len(one)) for number in range(20)])
    assert "it has more than one tensor" in refusal(folder)
    assert sum(read_bytes) <= max(len(one) * 20, 20 * 4096) and len(read_bytes) <= 40


def test_honest_pieces_are_read_once_whatever_their_number(tmp_path: Path, read_bytes: list[int]) -> None:
    one = archive()
    folder = write_ranks(tmp_path / "in", one * PIECES, [(number * len(one), len(one)) for number in range(PIECES)])
    result = invoke("inspect", folder)
    assert result.exit_code == 0, result.output
    assert sum(read_bytes) == len(one) * PIECES
    assert len(read_bytes) == 1


def forged(folder: Path, change: Callable[[Metadata], None], code: bytes = b"") -> Path:
    """Write a checkpoint of one row, its metadata changed, with a pickle's `code` where the text MARK stands in them."""
    one = archive()
    write_ranks(folder, one, [(0, len(one))])
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    change(metadata)
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 4)
    pickler.fast = True  # remembers nothing, so that only `code` does
    pickler.dump(metadata)
    (folder / ".metadata").write_bytes(stream.getvalue().replace(b"\x8c\x04MARK", code))
    return folder


def marked(metadata: Metadata) -> None:
    metadata.planner_data = {"w": ("MARK",)}


DOUBLED = b")\x94" + b"".join(b"h%c\x86\x94" % number for number in range(20))
DEEP = b")" + b"\x85" * 20_000
ENDLESS = b"](X" + (500_000).to_bytes(4, "little") + b"a" * 500_000 + b"\x94" + b"h\0h\0\x93" * 100 + b"e"
NO_PATH = "the path of w has keys that are neither text nor numbers"


def of_many_dimensions(metadata: Metadata) -> None:
    metadata.state_dict_metadata["w"].chunks[0].offsets = torch.Size((0,) * 1000)  # type: ignore[union-attr]


def named_again_and_again(metadata: Metadata) -> None:
    metadata.state_dict_metadata["w"].chunks *= 1000  # type: ignore[union-attr]


def without_pieces(metadata: Metadata) -> None:
    metadata.state_dict_metadata["w"].size = torch.Size((0, 4))  # type: ignore[union-attr]
    metadata.state_dict_metadata["w"].chunks = []  # type: ignore[union-attr]


FORGED: dict[str, tuple[Callable[[Metadata], None], bytes, str]] = {
    "a path that doubles": (marked, DOUBLED, NO_PATH),
    "a path that is deep": (marked, DEEP, NO_PATH),
    "a truth for a path": (marked, b"\x88", NO_PATH),
    "a long path": (marked, b"X" + (5000).to_bytes(4, "little") + b"a" * 5000, NO_PATH),
    "a long text in many names of classes": (marked, ENDLESS, "instructions"),
    "a piece of more dimensions than a tensor has": (of_many_dimensions, b"", "not a list of at most 64 lengths"),
    "a piece again and again": (named_again_and_again, b"", "it does not say where the piece of w at [0, 0] is"),
    "a tensor without pieces": (without_pieces, b"", "its entry for w is incomplete"),
}


@pytest.mark.parametrize("case", FORGED)
def test_forged_metadata_are_refused(case: str, tmp_path: Path) -> None:
    change, code, problem = FORGED[case]
    assert problem in refusal(forged(tmp_path / "in", change, code))


def test_a_path_that_is_not_that_of_its_name_is_not_followed(tmp_path: Path) -> None:
    def elsewhere(metadata: Metadata) -> None:
        metadata.planner_data = {"w": ("model", "module." * 500 + "x")}

    result = invoke("inspect", forged(tmp_path / "in", elsewhere))
    assert result.exit_code == 0 and "Prefixes that the trainer added" not in result.output, result.output


def write_rank(
    folder: Path, number: int, shape: tuple[int, ...], offsets: list[int], name: str = "w", of: str = "00001-of-00001"
) -> None:
    """Write the file of a rank: one element of a tensor, of which the piece begins at `offsets`."""
    said = {"__metadata__": {"DCP_SHARDING_INFO": json.dumps({name: {"saved_offsets": offsets}})}}
    header = json.dumps(said | {name: {"dtype": "U8", "shape": shape, "data_offsets": [0, 1]}}).encode()
    path = folder / f"shard-{number:05d}-model-{of}.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"x")


def test_pieces_cut_along_many_dimensions_take_few_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    same, cuts = 20, 6
    for number, place in enumerate(product((0, 1), repeat=cuts), start=1):
        write_rank(tmp_path, number, (1,) * (same + cuts), [0] * same + list(place))
    monkeypatch.setattr("sharding.formats.rank_boxes.MAX_BOX_LOOKS", 2**cuts * cuts * (same + cuts))
    with patch("sharding.formats.rank_boxes._overlap", side_effect=AssertionError):
        result = invoke("inspect", tmp_path)
    assert result.exit_code == 0, result.output


def test_all_tensors_share_the_looks_that_a_checkpoint_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        write_rank(tmp_path, number + 1, (1,), [number % 2], f"w{number // 2}")
    monkeypatch.setattr("sharding.formats.rank_boxes.MAX_BOX_LOOKS", 20)
    assert invoke("inspect", tmp_path).exit_code == 0
    monkeypatch.setattr("sharding.formats.rank_boxes.MAX_BOX_LOOKS", 19)
    assert " pieces, too many to check for overlaps." in refusal(tmp_path)


def test_a_tensor_of_more_dimensions_than_any_has_is_refused(tmp_path: Path) -> None:
    write_rank(tmp_path, 1, (1,) * 300, [1 << 62] * 300)
    assert "w has 300 dimensions. The limit is 64." in refusal(tmp_path)


def test_of_files_that_are_missing_only_the_first_are_named(tmp_path: Path) -> None:
    for number in range(1, 41):
        write_rank(tmp_path, 99_999 if number == 1 else number, (1,), [number - 1], of=f"{number:05d}-of-99999")
    made = []

    def pairs(*ranges: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
        for pair in product(*ranges):
            made.append(pair)
            yield pair

    with patch("sharding.checkpoint.readers.dcp.product", pairs):
        result = invoke("inspect", tmp_path)
    assert result.exit_code == 0, result.output
    first = [f"shard-00001-model-{number:05d}-of-99999.safetensors" for number in (1, 2, 3)]
    assert f"{', '.join(first)} and {400 * 40 - 39 - 3} more." in " ".join(result.output.split())
    assert 0 < len(made) < 10
