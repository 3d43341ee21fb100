"""Send one shard to a Hub: through hf-xet as a stream, or through LFS as one temporary file."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub import CommitOperationAdd

from sharding.core.errors import DestinationError
from sharding.core.values import ShardRecord

Finish = Callable[[ShardRecord, int, int], None]
"""To be called with the record, the bytes sent and the bytes that the store had already."""

_HINT = "Start the same job again; it goes on where it stopped."


class XetShardWriter:
    """A shard that streams through hf-xet; no byte of it touches the disk. See `protocols.ShardWriter`."""

    def __init__(self, start: Callable[[], Any], file: str, finish: Finish) -> None:
        """Open a stream in what `start` returns: an upload commit of hf-xet 1.8 for this shard alone."""
        self._file = file
        self._finish = finish
        self._is_finished = False
        with self._explained():
            self._commit = start()
            self._stream = self._commit.start_upload_stream(name=file)

    def write(self, data: bytes) -> None:
        """Append bytes; waits while the upload is behind."""
        with self._explained():
            self._stream.write(data)

    def finish(self, record: ShardRecord) -> None:
        """Complete the upload and hand on the record."""
        with self._explained():
            stored = self._stream.finish().xet_info
            metrics = self._commit.wait_to_finish().dedup_metrics
        self._is_finished = True
        del self._commit, self._stream  # while they live, hf-xet keeps what it has opened for them
        if (stored.sha256, stored.file_size) != (record.sha256, record.bytes):
            raise DestinationError(f"{record.file} arrived damaged at the Hub's store.", _HINT)
        self._finish(record, metrics.total_bytes_uploaded, metrics.deduped_bytes)

    def abort(self) -> None:
        """Stop uploading, unless all is done."""
        if not self._is_finished:
            self._commit.abort()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            message = f"The login is not valid any more, or may not upload {self._file}."
            raise DestinationError(message, f"Sign in again. {_HINT}") from error
        except (RuntimeError, OSError) as error:
            raise DestinationError(f"The upload of {self._file} broke off: {error}.", _HINT) from error


class LfsShardWriter:
    """A shard for a Hub without Xet: LFS wants its SHA-256 first, so it waits in a nameless temporary file."""

    def __init__(self, upload: Callable[[CommitOperationAdd], None], file: str, finish: Finish) -> None:
        """Make the temporary file, which the system removes even if this process is killed."""
        self._upload = upload
        self._finish = finish
        self._part = tempfile.TemporaryFile(prefix="shard-")  # noqa: SIM115 - closed by finish or abort

    def write(self, data: bytes) -> None:
        """Append bytes."""
        try:
            self._part.write(data)
        except OSError as error:
            hint = "Without Xet one shard at a time needs that room: free some, or choose a smaller shard size."
            raise DestinationError(f"The temporary folder cannot be written: {error}.", hint) from error

    def finish(self, record: ShardRecord) -> None:
        """Upload the file and hand on the record."""
        self._part.seek(0)
        self._upload(CommitOperationAdd(record.file, self._part))
        self._part.close()
        self._finish(record, 0, 0)

    def abort(self) -> None:
        """Remove the temporary file."""
        self._part.close()
