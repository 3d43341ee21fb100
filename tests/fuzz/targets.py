"""What is fuzzed: each target takes bytes, and either returns or raises the one error that it promises."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

from sharding.checkpoint.read import read_checkpoint
from sharding.checkpoint.readers.dcp import saved_boxes
from sharding.checkpoint.readers.torch_bin import read_archive
from sharding.core.errors import SourceError, UsageError
from sharding.core.limits import MAX_DIMENSIONS
from sharding.core.origin import Place
from sharding.core.protocols import Files
from sharding.core.recipe import Feed
from sharding.core.values import FileEntry, Tensor
from sharding.formats.gguf import build_header, read_header
from sharding.formats.index import parse_index
from sharding.formats.inert_pickle import InertMachine
from sharding.formats.rank_boxes import assemble
from sharding.formats.rank_pieces import parse_rank
from sharding.formats.safetensors_file import Header, parse_header
from sharding.formats.torch_globals import PickleRefused
from sharding.recipes.laid import Laid
from sharding.recipes.stored import place_of
from sharding.report.report import asked_of
from sharding.report.schema import parse_report
from tests.tensors import stored_tensor

_FILE = "pytorch_model.bin"
_MOST_READ_BYTES = 1 << 16


class Memory(Files):
    """A source of one file, or of several, whose bytes are at hand. See `protocols.Source`."""

    def __init__(self, data: bytes, files: Mapping[str, bytes] | None = None) -> None:
        self._files = {_FILE: data} if files is None else files
        self.ref = Place("folder", "memory", "")
        self.folder: Path | None = None
        self.is_private: bool | None = None
        self.unreached: tuple[str, ...] = ()
        self.links_out: tuple[str, ...] = ()
        self.batch_bytes = 1 << 20
        self.join_gap_bytes = 0
        self.ranges_at_once = 1
        self.files = tuple(FileEntry(file, len(content)) for file, content in self._files.items())
        self.requests = 0
        self.bytes_read = 0

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        assert 0 <= start_byte <= end_byte <= len(self._files[file])
        yield self._files[file][start_byte:end_byte]

    def path(self, file: str) -> Path | None:
        return None


def header(data: bytes) -> None:
    """The header of a safetensors file, which is as long as it says."""
    for tensor in parse_header(data, len(data), "model.safetensors").tensors:
        assert 0 <= place_of(tensor).start_byte <= place_of(tensor).end_byte <= len(data)


def gguf(data: bytes) -> None:
    """The header of a GGUF file, which is as long as it says."""
    header = read_header(lambda start, end: data[start:end], len(data), "model.gguf")
    for tensor in header.tensors:
        assert 0 <= place_of(tensor).start_byte <= place_of(tensor).end_byte <= len(data)
    assert build_header(header.tensors, header.keys)[8:] == data[8 : header.end] or not header.is_usual


def index(data: bytes) -> None:
    """An index of either format."""
    path = "pytorch_model.bin.index.json" if b".bin" in data else "model.safetensors.index.json"
    for file in set(parse_index(data, path).weight_map.values()):
        assert "/" not in file


def archive(data: bytes) -> None:
    """A `.bin` file: its directory, its pickle, and the first bytes of every tensor."""
    source = Memory(data)
    for tensor in read_archive(source, source.files[0]).tensors:
        _make_first_bytes(source, tensor)


def pickle(data: bytes) -> None:
    """A pickle inside a sound `.bin` file with a few storages."""
    stream = BytesIO()
    with ZipFile(stream, "w") as file:
        for name, content in {"data.pkl": data, "data/0": bytes(64), "data/1": bytes(8), "data/2": b""}.items():
            file.writestr(ZipInfo(f"archive/{name}"), content)
    archive(stream.getvalue())


def sharding_info(data: bytes) -> None:
    """What the headers of two ranks say of their pieces: a line each."""
    files, headers, end = [], [], 0
    for rank, text in enumerate(data.split(b"\n", 1), start=1):
        end = 1 << 20
        path = f"shard-{rank:05d}-model-00001-of-00001.safetensors"
        shapes = {"a": (2, 3), "b": (4,), "c": ()}
        tensors = tuple(
            stored_tensor(name, "U8", shape, path, 100 * number, 100 * number + prod(shape))
            for number, (name, shape) in enumerate(shapes.items())
        )
        headers.append(Header(tensors, {"DCP_SHARDING_INFO": text.decode(errors="replace")}))
        files.append(FileEntry(path, end))
    for tensor in assemble(saved_boxes(files, headers)):
        assert tensor.bytes == prod(tensor.shape)
        if isinstance(tensor.recipe, Laid):
            assert sum(prod(box.shape) for box in tensor.recipe.boxes) == prod(tensor.shape)


def metadata(data: bytes) -> None:
    """The `.metadata` of a checkpoint of ranks, beside two sound files."""
    source = Memory(data, {".metadata": data, **_DISTCP})
    for tensor in read_checkpoint(source).tensors:
        _make_first_bytes(source, tensor)


def rank(data: bytes) -> None:
    """The pickle of rank 1 of 3, of which each piece has a place."""
    try:
        tensors, _ = parse_rank(InertMachine(data).run().value, 1, 3)
    except PickleRefused as error:
        raise SourceError(str(error), "") from error
    for tensor in tensors.values():
        assert all(len(offsets) <= MAX_DIMENSIONS and piece.dtype == tensor.dtype for offsets, piece in tensor.pieces)


def _make_first_bytes(source: Memory, tensor: Tensor) -> None:
    chunks = (chunk for _, *place in tensor.recipe.reads() for chunk in source.read(*place))
    count, most = 0, min(tensor.bytes, _MOST_READ_BYTES)
    for data, *_ in tensor.recipe.make(Feed(chunks), kept=None):  # type: ignore[arg-type]  # nothing is quantized here
        count += len(data)
        if count >= most:
            break
    assert most <= count <= tensor.bytes


def report(data: bytes) -> None:
    """The report in a stranger's repo: the bytes as they are, or as changes to a sound one."""
    with suppress(UsageError):
        asked_of(parse_report(data if data.startswith(b"{") else _changed(data)))


def _changed(data: bytes) -> str:
    """Return a sound report with values put elsewhere in it, as `data` says: four times where to, and what."""
    document = json.loads(_REPORT.read_bytes())
    for number in range(0, min(len(data), 8) - 1, 2):
        places = list(_places(document))
        holder, key = places[data[number] % len(places)]
        holder[key] = deepcopy(_VALUES[data[number + 1] % len(_VALUES)])
    return json.dumps(document)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


_DISTCP = {name: (Path(__file__).parent / "distcp" / name).read_bytes() for name in ("__0_0.distcp", "__1_0.distcp")}
_REPORT = Path(__file__).parent / "corpus/report/written"  # any report of today's
_VALUES = (None, True, 0, -1, 1 << 63, 1 << 70, 1.5, float("nan"), "", "a", "../a", "a/b", "0" * 64, "x" * 3000, [], [[]], {}, {"a": 1})  # fmt: skip

TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (header, gguf, index, archive, pickle, report, sharding_info, metadata, rank)
}


def run(target: Callable[[bytes], None], data: bytes) -> bool:
    """Return whether `target` accepts `data`. Any error but a refusal passes through."""
    try:
        target(data)
    except SourceError:
        return False
    return True
