"""`.metadata` is read as torch reads it, the pieces are what it says of them, and nothing in it is called."""

import io
import os
import pickle
import pickletools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorStorageMetadata

from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import SourceError
from sharding.formats.dcp_metadata import parse_metadata
from sharding.formats.torch_globals import PickleRefused
from sharding.job import inspect
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import open_folder
from tests.cli.test_forged_ranks import write_ranks
from tests.formats.test_torch_hostile import Call

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def save(folder: Path) -> Path:
    """Save a state dict with this process alone."""
    state = {
        "model": {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
        "optimizer": {"state": {"a.weight": {"exp_avg": torch.zeros(2, 3)}}, "groups": [1, 2]},
        "step": 7,
    }
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return (save(tmp_path_factory.mktemp("dcp")) / ".metadata").read_bytes()


def test_it_is_read_as_torch_reads_it(data: bytes) -> None:
    (entries, others), theirs = parse_metadata(data), pickle.loads(data)
    saved = theirs.state_dict_metadata
    tensors = {name: entry for name, entry in saved.items() if isinstance(entry, TensorStorageMetadata)}
    assert {entry.name for entry in entries} == tensors.keys()
    assert set(others) == saved.keys() - tensors.keys()
    for entry in entries:
        known = tensors[entry.name]
        assert (entry.shape, f"torch.{entry.dtype}") == (tuple(known.size), str(known.properties.dtype))
        assert entry.path == tuple(map(str, theirs.planner_data[entry.name]))
        for chunk in entry.chunks:
            info = theirs.storage_data[MetadataIndex(entry.name, chunk.offsets)]
            place = chunk.file, chunk.start_byte, chunk.end_byte
            assert place == (info.relative_path, info.offset, info.offset + info.length)


def test_nothing_in_it_is_called(tmp_path: Path, data: bytes) -> None:
    metadata: Metadata = pickle.loads(data)
    metadata.storage_meta = Call(torch.save, 1, tmp_path / "called")  # type: ignore[assignment]
    entries, _ = parse_metadata(pickle.dumps(metadata))
    assert len(entries) == 3 and not (tmp_path / "called").exists()
    pickle.loads(pickle.dumps(metadata))
    assert (tmp_path / "called").exists()
    metadata.storage_meta = Call(os.system, "true")  # type: ignore[assignment]
    with pytest.raises(PickleRefused, match=r"asks for '(posix|nt)\.system', which no checkpoint needs"):
        parse_metadata(pickle.dumps(metadata))


def compressed(metadata: Metadata) -> None:
    next(iter(metadata.storage_data.values())).transform_descriptors = ["zstd"]


def with_a_negative_length(metadata: Metadata) -> None:
    next(iter(metadata.storage_data.values())).offset = -1


def with_a_number_for_a_name(metadata: Metadata) -> None:
    metadata.storage_data = {MetadataIndex(3): info for info in metadata.storage_data.values()}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (compressed, "is compressed or transformed"),
        (lambda metadata: metadata.storage_data.clear(), "does not say where the piece"),
        (lambda metadata: metadata.state_dict_metadata.update({"model.b": 3}), "neither a tensor nor bytes"),
        (with_a_negative_length, "invalid lengths"),
        (lambda metadata: vars(metadata).update(state_dict_metadata=[]), "is not a dictionary"),
        (with_a_number_for_a_name, "does not name a tensor or a file"),
        (
            lambda metadata: vars(metadata.state_dict_metadata["model.b"]).update(chunks=[3]),
            "a piece of model.b is inco",
        ),
    ],
)
def test_what_cannot_be_is_refused(change: Callable[[Metadata], None], problem: str, data: bytes) -> None:
    metadata: Metadata = pickle.loads(data)
    change(metadata)
    with pytest.raises(PickleRefused, match=problem):
        parse_metadata(pickle.dumps(metadata))


@pytest.mark.parametrize("value", [{"a": 1}, [], "text", torch.zeros(2), print])
def test_another_pickle_is_refused(value: Any) -> None:
    with pytest.raises(PickleRefused):
        parse_metadata(pickle.dumps(value, protocol=4))


def test_a_damaged_one_is_refused_or_read(data: bytes) -> None:
    chosen = random.Random(0)
    positions = [position for _, _, position in pickletools.genops(data)]
    refused = 0
    for _ in range(500):
        damaged = bytearray(data)
        at = chosen.choice(positions) + chosen.randrange(3)
        damaged[at % len(data)] = chosen.randrange(256)
        try:
            parse_metadata(bytes(damaged))
        except PickleRefused:
            refused += 1
    assert refused > 80
    for end in range(0, len(data), 97):
        with pytest.raises(PickleRefused):
            parse_metadata(data[:end])


@pytest.mark.parametrize("limit", ["sharding.formats.inert_pickle.InertMachine.most_steps", "sharding.checkpoint.readers.dcp.MAX_DCP_BYTES"])  # fmt: skip
def test_one_of_endless_length_is_not_followed(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path)
    monkeypatch.setattr(limit, 100)
    with pytest.raises(SourceError, match=r"\.metadata"):
        inspect(str(tmp_path))


def test_places_of_many_pieces_are_found_in_little_memory_and_few_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = {f"w{n}": torch.full((4 if n % 2 else 30_000,), float(n)) for n in range(60)}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    monkeypatch.setattr("sharding.checkpoint.readers.dcp._PIECES_AT_ONCE", 7)
    source = open_folder(str(tmp_path))
    checkpoint = read_checkpoint(source)
    read_to_plan = source.bytes_read
    for tensor in checkpoint.tensors:
        place = place_of(tensor)
        stored = b"".join(source.read(tensor.file, place.start_byte, place.start_byte + 4))
        assert torch.frombuffer(bytearray(stored), dtype=torch.float32).item() == float(tensor.name[1:])
    metadata_bytes = (tmp_path / ".metadata").stat().st_size
    assert read_to_plan - metadata_bytes < 60 * 8_000 < sum(tensor.bytes for tensor in checkpoint.tensors) / 5


ROW = torch.zeros(1, 4)
SAYS = r", but .metadata says float32 \[1, 4\]"


def write(folder: Path, *rows: object) -> Path:
    """Write a checkpoint of one tensor in float32 with as many rows; the file holds what `torch.save` makes of each."""
    data, places = b"", []
    for row in rows:
        stream = io.BytesIO()
        torch.save(row, stream)
        places.append((len(data), stream.tell()))
        data += stream.getvalue()
    return write_ranks(folder, data, places)


@pytest.mark.parametrize(
    ("piece", "problem"),
    [
        (ROW.int(), r"it is int32 \[1, 4\]" + SAYS),
        (ROW.half(), r"it is float16 \[1, 4\]" + SAYS),
        (ROW.view(4), r"it is float32 \[4\]" + SAYS),
        (torch.zeros(2, 4), r"it is float32 \[2, 4\]" + SAYS),
        ({"w": ROW}, "it is not a tensor"),
    ],
    ids=["dtype", "shorter dtype", "dimensions", "length", "dictionary"],
)
def test_a_piece_of_another_dtype_or_shape_is_refused_wherever_it_stands(
    piece: object, problem: str, tmp_path: Path
) -> None:
    for place in range(3):
        source = write(tmp_path / str(place), *[ROW] * place, piece, *[ROW] * (2 - place))
        with pytest.raises(SourceError, match=f"The piece of w in __0_0.distcp cannot be read: {problem}"):
            inspect(str(source))
