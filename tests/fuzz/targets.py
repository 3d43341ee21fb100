"""What is fuzzed: each target takes bytes, and either returns or raises the one error that it promises."""

from collections.abc import Callable, Iterator
from pathlib import Path

from sharding.archive import read_archive
from sharding.errors import SourceError
from sharding.files import BIN_INDEX_NAME, parse_index
from sharding.gather import gathering
from sharding.layout import parse_header
from sharding.report_reader import parse_report
from sharding.values import Checkpoint, FileEntry, RepoRef

_FILE = "pytorch_model.bin"
_MOST_READ_BYTES = 1 << 16


class Memory:
    """A source of one file, whose bytes are at hand. See `protocols.Source`."""

    def __init__(self, data: bytes) -> None:
        self.ref = RepoRef("folder", "memory", "")
        self.folder: Path | None = None
        self.is_private: bool | None = None
        self.block_bytes = 1 << 20
        self.join_gap_bytes = 0
        self.ranges_at_once = 1
        self.files = (FileEntry(_FILE, len(data)),)
        self.requests = 0
        self.bytes_read = 0
        self._data = data

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        assert 0 <= start_byte <= end_byte <= len(self._data)
        yield self._data[start_byte:end_byte]

    def path(self, file: str) -> Path | None:
        return None


def header(data: bytes) -> None:
    """The header of a safetensors file, which is as long as it says."""
    for tensor in parse_header(data, len(data), "model.safetensors").tensors:
        assert 0 <= tensor.start_byte <= tensor.end_byte <= len(data)


def index(data: bytes) -> None:
    """An index of either format."""
    for path in ("model.safetensors.index.json", BIN_INDEX_NAME):
        for file in set(parse_index(data, path).weight_map.values()):
            assert "/" not in file


def archive(data: bytes) -> None:
    """A `.bin` file: its directory, its pickle, and the bytes of every tensor that is not too long."""
    source = Memory(data)
    found = read_archive(source, source.files[0])
    checkpoint = Checkpoint(source.ref, found.tensors, {}, source.files, (), (), gathered=found.gathered)
    reading = gathering(source, checkpoint)
    for tensor in found.tensors:
        end = min(tensor.end_byte, tensor.start_byte + _MOST_READ_BYTES)
        read = b"".join(reading.read(_FILE, tensor.start_byte, end))
        assert len(read) == end - tensor.start_byte


def report(data: bytes) -> None:
    """The report in a stranger's repo."""
    parse_report(data)


TARGETS: dict[str, Callable[[bytes], None]] = {"header": header, "index": index, "archive": archive, "report": report}


def run(target: Callable[[bytes], None], data: bytes) -> bool:
    """Return whether `target` accepts `data`. Any error but a refusal passes through."""
    try:
        target(data)
    except SourceError:
        return False
    return True
