"""The frozen things that stages hand to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """Something a person should know about a checkpoint or a plan; never a reason to stop."""

    level: Literal["info", "warning"]
    code: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a source: its path inside the repo or folder and its size; hashes where they are known."""

    path: str
    bytes: int
    sha256: str | None = None
    xet_hash: str | None = None


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor's bytes lie: `[start_byte, end_byte)` counted from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    start_byte: int
    end_byte: int

    @property
    def bytes(self) -> int:
        """Stored size in bytes."""
        return self.end_byte - self.start_byte

    @property
    def parameters(self) -> int:
        """Number of elements; 1 for a scalar."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Gathered:
    """A tensor that does not lie in order, at `[start_byte, end_byte)` of its file: there, beyond the file's end.

    Element `i, j, …` is at byte `origin + item_bytes * (i * strides[0] + j * strides[1] + …)` of the file.
    """

    file: str
    start_byte: int
    end_byte: int
    origin: int
    item_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed safetensors header. `tensors` are in stored order; `data_start` is where their bytes begin."""

    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str] | None
    data_start: int


@dataclass(frozen=True, slots=True)
class RepoRef:
    """What a source or destination is called, and the state of it that a job is pinned to.

    `revision` is a commit of a Hub repo or, for a folder that is read, a digest of its weight files' names,
    sizes and modification times: two jobs with the same revision read the same bytes.
    """

    kind: Literal["folder", "hub"]
    repo_id: str
    revision: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the headers of a source say: the tensors in stored order, and the files beside the weights."""

    source: RepoRef
    tensors: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    weight_files: tuple[FileEntry, ...]
    side_files: tuple[FileEntry, ...]
    findings: tuple[Finding, ...]
    architecture: str | None = None
    total_parameters: int | None = None
    gathered: tuple[Gathered, ...] = ()
    """Which of the tensors are read through `gather.gathering`."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, headers not counted."""
        return sum(tensor.bytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class Shard:
    """One file of the result: its tensors in the order their bytes are written, and the header before them."""

    file: str
    tensors: tuple[TensorEntry, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Which shard holds what. `metadata` goes into every shard's header."""

    shards: tuple[Shard, ...]
    metadata: Mapping[str, str]
    total_bytes: int
    total_parameters: int
    max_shard_bytes: int
    strategy: str
    order: str
    findings: tuple[Finding, ...]

    @property
    def weight_map(self) -> dict[str, str]:
        """Tensor name to file name, as an index has it."""
        return {tensor.name: shard.file for shard in self.shards for tensor in shard.tensors}

    @property
    def is_sharded(self) -> bool:
        """Whether the result needs an index."""
        return len(self.shards) > 1


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`[start_byte, end_byte)` of a source file: one read, one request."""

    file: str
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Some consecutive bytes of one tensor: `[start_byte, end_byte)` within range number `range_index` of a block."""

    tensor: str
    range_index: int
    start_byte: int
    end_byte: int


@dataclass(frozen=True, slots=True)
class Block:
    """What is fetched in one go: a few ranges, and how their bytes are laid one after another."""

    ranges: tuple[ByteRange, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class StagedJob:
    """What a job leaves beside its staged shards, so that anybody who may can go on with it, or discard it.

    `private` is the visibility that the result is meant to have, `created` whether the job made the repo itself;
    both are None for a folder.
    """

    plan_id: str
    source: RepoRef
    max_shard_bytes: int
    strategy: str
    order: str
    private: bool | None = None
    created: bool | None = None


@dataclass(frozen=True, slots=True)
class Discarded:
    """What was removed of an unfinished job. `remark` is what could not be, and what is left to do."""

    found: bool
    repo_deleted: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """A finished shard: file size and SHA-256, and the SHA-256 of every tensor's bytes. Hashes in hex."""

    file: str
    bytes: int
    sha256: str
    tensor_sha256: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TensorDigest:
    """What a tensor is, short of its bytes: equal digests mean bit-identical tensors."""

    dtype: str
    shape: tuple[int, ...]
    sha256: str


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A tensor, or a file, that is not what it should be: one line a person can act on."""

    tensor: str
    problem: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome of comparing two checkpoints. `method` says what was read and compared."""

    tensors: int
    bytes: int
    seconds: float
    method: str
    mismatches: tuple[Mismatch, ...]

    @property
    def identical(self) -> bool:
        """Whether every tensor is bit-identical."""
        return not self.mismatches


@dataclass(frozen=True, slots=True)
class Resources:
    """What a job cost: peak anonymous memory of its process, wall time, and the bytes it moved."""

    peak_anon_bytes: int
    seconds: float
    bytes_read: int
    read_requests: int
    bytes_uploaded: int
    bytes_deduplicated: int
    disk_bytes_written: int
