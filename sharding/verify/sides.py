"""Read one of two checkpoints that are compared, and hold it to what a Hub states of it."""

from collections.abc import Generator, Mapping

from sharding.core.events import Progress
from sharding.core.options import Options
from sharding.core.protocols import Source
from sharding.core.values import Checkpoint, FileEntry, Mismatch, TensorDigest
from sharding.transfer.noting_source import NotingSource
from sharding.transfer.prepare import Making
from sharding.verify.digests import ThisMachine, digest_tensors
from sharding.verify.source_hashes import digest_as_stored, stated_files
from sharding.verify.source_reads import prove_reads


def noting(origin: Source) -> NotingSource | None:
    """Return a view of `origin` that remembers what is read of it, where a Hub states what that should be."""
    is_stated = origin.ref.kind == "hub" and any(file.sha256 or file.git_sha1 for file in origin.files)
    return NotingSource(origin) if is_stated else None


def stated_of(source: Source, checkpoint: Checkpoint) -> list[FileEntry]:
    """Return the weight files of which a Hub states a hash: their SHA-256, or their name in git."""
    files = {file.path: file for file in source.files if file.sha256 or file.git_sha1}
    return [files[file.path] for file in checkpoint.weight_files if file.path in files]


def source_to_read(origin: Source, noted: NotingSource | None, checkpoint: Checkpoint, options: Options) -> Source:
    """Return `noted` where nothing else will show that what is read of `origin` is what a Hub states; else `origin`.

    Tensors that are moved as they are can be read as its files again. One rank reads a part of the files only.
    """
    is_moved = options.dtype == "keep" and not checkpoint.gathered and bool(stated_files(origin.files, checkpoint))
    return origin if is_moved or noted is None or options.rank is not None else noted


class Side:
    """One of two checkpoints that are compared: its tensors are read, and what a Hub states of them is held to that."""

    def __init__(self, source: Source, checkpoint: Checkpoint, making: Making | None = None) -> None:
        """Take `checkpoint` of `source`, its tensors made as `making` says, if that is more than putting together."""
        self._source, self._checkpoint = source, checkpoint
        self._making = making or Making(checkpoint.gathered)
        is_moved = making is None and not checkpoint.gathered
        self._as_stored = stated_files(source.files, checkpoint) if is_moved else []
        self._noted = None if self._as_stored else noting(source)
        self._tensors = self._making.after or checkpoint.tensors
        self.digests: Mapping[str, TensorDigest] = {}
        self.wrong: list[Mismatch] = []
        self.unstated = source.ref.kind == "hub" and not self._as_stored and not self._noted
        self.remark = ""

    @property
    def bytes(self) -> int:
        """How much is read and made of it."""
        again = sum(file.bytes for file in self._stated) if self._noted else 0
        return sum(tensor.bytes for tensor in self._tensors) + again

    @property
    def _stated(self) -> list[FileEntry]:
        return stated_of(self._source, self._checkpoint)

    def read(self) -> Generator[Progress, None, None]:
        """Read it whole; yield progress. Raises SourceError."""
        source, checkpoint, here = self._source, self._checkpoint, ThisMachine()
        if self._as_stored:
            reading = digest_as_stored(checkpoint, source, self._as_stored, source, checkpoint.tensors, here)
            self.digests, self.wrong = yield from reading
            self.remark = f"; {len(self._as_stored)} files of {source.ref.repo_id} compared with the Hub's SHA-256"
            return
        view = self._making.read_from(self._noted or source)
        self.digests = yield from digest_tensors(view, self._tensors)
        if self._noted:
            self.wrong = yield from prove_reads(source, self._stated, self._noted.take(), here)
            self.unstated = len(self._stated) < len(checkpoint.weight_files)
            self.remark = f"; {len(self._stated)} files of {source.ref.repo_id} read whole for the Hub's hash"
