"""Send shards to a Hub: through hf-xet as streams, or through LFS as temporary files."""

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from huggingface_hub import CommitOperationAdd
from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy
from sharding.core.protocols import ShardSink, ShardWriter
from sharding.core.values import FileEntry, ShardRecord
from sharding.storage.hub.client import GO_ON, Hub
from sharding.storage.hub.private import to_upload


class XetShardWriter(ShardWriter):
    """A shard that streams through hf-xet. No byte of it touches the disk."""

    def __init__(self, start: Callable[[], Any], file: str) -> None:
        """Open a stream in the upload commit of hf-xet 1.8 that `start` returns. It is for this shard alone."""
        self.bytes_uploaded = self.bytes_deduplicated = 0
        self.stored: FileEntry | None = None
        self._file = file
        self._bytes = 0
        self._is_finished = False
        with self._explained():
            self._commit = start()
            self._stream = self._commit.start_upload_stream(name=file)

    @override
    def write(self, data: bytes | memoryview) -> None:
        with self._explained():
            self._stream.write(bytes(data))
        self._bytes += len(data)

    @override
    def finish(self) -> str:
        """Complete the upload; return the SHA-256 that hf-xet computed for the bytes it got."""
        with self._explained():
            stored = self._stream.finish().xet_info
            metrics = self._commit.wait_to_finish().dedup_metrics
        self._is_finished = True
        del self._commit, self._stream  # while they exist, hf-xet keeps their resources open
        if stored.file_size != self._bytes or not stored.sha256:
            raise DestinationError(f"{self._file} arrived damaged at the Hub's store.", GO_ON)
        self.bytes_uploaded, self.bytes_deduplicated = metrics.total_bytes_uploaded, metrics.deduped_bytes
        self.stored = FileEntry(self._file, self._bytes, stored.sha256, stored.hash)
        return str(stored.sha256)

    @override
    def abort(self) -> None:
        if not self._is_finished:
            self._commit.abort()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            message = f"The login is no longer valid, or has no permission to upload {self._file}."
            raise DestinationError(message, f"Sign in again. {GO_ON}", Remedy("sign_in")) from error
        except (RuntimeError, OSError) as error:
            raise DestinationError(f"The upload of {self._file} broke off: {error}.", GO_ON) from error


class LfsShardWriter(ShardWriter):
    """A shard for a Hub without Xet. LFS needs its SHA-256 first, so it waits in a temporary file without a name."""

    stored = None

    def __init__(self, upload: Callable[[CommitOperationAdd], None], file: str) -> None:
        """Create the temporary file, which the system removes even if this process is killed."""
        self.bytes_uploaded = self.bytes_deduplicated = self.bytes_written = 0
        self._sha256 = hashlib.sha256()
        self._upload = upload
        self._file = file
        self._part = tempfile.TemporaryFile(prefix="shard-")  # noqa: SIM115 - closed by finish or abort

    @override
    def write(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        try:
            self.bytes_written += self._part.write(data)
        except OSError as error:
            hint = "Without Xet, one shard must fit there. Free some space, choose a smaller shard size, or set TMPDIR "
            hint += "to a folder on a larger disk."
            message = f"The temporary folder {tempfile.gettempdir()} cannot be written: {error}."
            raise DestinationError(message, hint) from error

    @override
    def finish(self) -> str:
        """Upload the file, unless the store already has its bytes; return its SHA-256."""
        self._part.seek(0)  # flushes the buffer
        part = _CountedFile(self._part.raw)
        operation = to_upload(self._file, part)
        part.bytes_read = 0  # does not count the reads for the hash
        self._upload(operation)
        self.bytes_uploaded = part.bytes_read
        self.bytes_deduplicated = 0 if self.bytes_uploaded else self.bytes_written
        self.abort()
        return self._sha256.hexdigest()

    @override
    def abort(self) -> None:
        self._part.close()


class StoreSink(ShardSink):
    """The store of a Hub, reached through a repo. Somebody with a login commits the files that are put there."""

    shards_at_once = 1

    def __init__(self, hub: Hub, repo_id: str, revision: str = "") -> None:
        """Use the store of `revision` of the repo. Asks nothing."""
        self._hub = hub
        self._place = repo_id, revision
        self._writers: list[XetShardWriter | LfsShardWriter] = []

    @property
    @override
    def bytes_uploaded(self) -> int:
        return sum(writer.bytes_uploaded for writer in self._writers)

    @property
    @override
    def bytes_deduplicated(self) -> int:
        return sum(writer.bytes_deduplicated for writer in self._writers)

    @override
    def finished(self, file: str) -> None:
        """Return None: the store has no names. It keeps equal bytes only once."""

    @override
    def open_shard(self, file: str) -> ShardWriter:
        start = partial(self._hub.upload_to, *self._place)
        self._writers.append(XetShardWriter(lambda: self._hub.ask(self._place[0], DestinationError, start), file))
        return self._writers[-1]

    @override
    def note(self, record: ShardRecord) -> None:
        """Do nothing: the shard can be committed from where it is."""

    @override
    def close(self) -> None:
        for writer in self._writers:
            with suppress(RuntimeError, OSError):  # it is dropped in any case
                writer.abort()


class _CountedFile(io.BufferedReader):
    """A file that counts the bytes that are read from it."""

    bytes_read = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        self.bytes_read += len(data)
        return data
