"""Send shards to a Hub: through hf-xet as streams, or through LFS as temporary files."""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field
from typing_extensions import override

from sharding.core.errors import DestinationError, Remedy, ShardingError
from sharding.core.limits import RANGES_AT_ONCE
from sharding.core.protocols import ShardSink, ShardWriter, Source
from sharding.core.recipe import Extent
from sharding.core.threads import readers
from sharding.core.values import ShardRecord
from sharding.storage.hub.answers import OddAnswer, parsed
from sharding.storage.hub.client import Hub
from sharding.storage.hub.refusals import AROUND, GO_ON

_LFS = {"Accept": "application/vnd.git-lfs+json", "Content-Type": "application/vnd.git-lfs+json"}
_PIECE_BYTES = 1 << 20
_LARGEST_CHUNK_BYTES = 128 << 10  # The largest chunk of a file in a Xet store.
_BESIDE_BYTES = 96 << 20  # What two shards may have in memory: hf-xet sends packages of 64 MiB.
_LOOK_SECONDS = 0.02
_ASKED_BYTES = 8 << 20  # Smallest file to ask about. A smaller one is sent as fast.
_T = TypeVar("_T")


class _Action(BaseModel):
    href: str
    header: dict[str, Any] | None = None

    def parts(self, size: int) -> tuple[list[str], int]:
        """Return the addresses for the parts of a file of `size` bytes, and the bytes of each but the last."""
        header = dict(self.header or {})
        chunk = str(header.pop("chunk_size", ""))
        places = [str(header[number]) for number in sorted(filter(str.isdecimal, header), key=int)]
        if not chunk.isdecimal() or int(chunk) == 0 or len(places) != -(-size // int(chunk)):
            raise OddAnswer(f"wants a file of {size} bytes in {len(places)} parts of {chunk[:20]!r} bytes")
        return places, int(chunk)


class _Object(BaseModel):
    class Actions(BaseModel):
        upload: _Action
        verify: _Action | None = None

    class Error(BaseModel):
        message: str

    actions: Actions | None = None  # without them, the store has the file already
    error: Error | None = None


class _Batch(BaseModel):
    objects: Annotated[list[_Object], Field(min_length=1)]


class XetShardWriter(ShardWriter):
    """A shard that streams through hf-xet. No byte of it touches the disk."""

    def __init__(self, start: Callable[[], Any], file: str, before: "XetShardWriter | None" = None) -> None:
        """Open a stream in the upload commit of hf-xet 1.8 that `start` returns. It is for this shard alone.

        The shard `before` it may still be on its way. It goes first, because it can then be read back sooner. Of this
        one, hf-xet meanwhile gets what keeps the line busy: a package that is ready when the other has been sent.
        """
        self.bytes_uploaded = self.bytes_deduplicated = 0
        self._file, self._before = file, before
        self._bytes = 0
        with self._explained():
            self._commit: Any = start()
            self._stream: Any = self._commit.start_upload_stream(name=file)

    @override
    def write(self, data: bytes | memoryview) -> None:
        whole = data.obj if isinstance(data, memoryview) else data
        is_whole = isinstance(whole, bytes) and len(whole) == len(data)  # hf-xet takes only bytes, and copies them
        with self._explained():
            while (before := self._before) and (going := before._commit):
                waiting_bytes = before._bytes - going.progress().total_bytes_completed
                if waiting_bytes + self._bytes <= _BESIDE_BYTES:
                    break
                time.sleep(_LOOK_SECONDS)
            self._stream.write(whole if is_whole else bytes(data))
        self._bytes += len(data)

    @override
    def finish(self) -> str:
        """Complete the upload; return the SHA-256 that hf-xet computed for the bytes it got."""
        with self._explained():
            stored = self._stream.finish().xet_info
            metrics = self._commit.wait_to_finish().dedup_metrics
        self.let_go()
        if stored.file_size != self._bytes or not stored.sha256:
            raise DestinationError(f"{self._file} arrived damaged at the Hub's store.", GO_ON)
        self.bytes_uploaded, self.bytes_deduplicated = metrics.total_bytes_uploaded, metrics.deduped_bytes
        self.xet_hash = stored.hash
        return str(stored.sha256)

    @override
    def abort(self) -> None:
        self._before = None
        if commit := self._commit:
            commit.abort()

    def let_go(self) -> None:
        """Drop what hf-xet holds open for the shard, after the last write. An error may keep the writer itself."""
        self._commit = self._stream = None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            message = f"The login is no longer valid, or has no permission to upload {self._file}."
            raise DestinationError(message, f"Sign in again. {GO_ON}", Remedy("sign_in")) from error
        except (RuntimeError, OSError) as error:
            raise DestinationError(f"The upload of {self._file} broke off: {error}.", f"{GO_ON} {AROUND}") from error


class LfsShardWriter(ShardWriter):
    """A shard for a Hub without Xet. LFS needs its SHA-256 first, so it waits in a temporary file without a name.

    The protocol is git-lfs's own (`docs/api/batch.md`), and the Hub's for files in parts. huggingface_hub 2.4 would
    ask first whether the repo's `.gitattributes` wants the file in git.
    """

    def __init__(self, hub: Hub, repo_id: str, revision: str, file: str) -> None:
        """Create the temporary file, which the system removes even if this process is killed."""
        self.bytes_uploaded = self.bytes_deduplicated = self.bytes_written = 0
        self._sha256 = hashlib.sha256()
        self._hub, self._repo_id, self._revision, self._file = hub, repo_id, revision, file
        self._part = tempfile.TemporaryFile(prefix="shard-")  # noqa: SIM115 - closed by finish or abort

    @override
    def write(self, data: bytes | memoryview) -> None:
        self._sha256.update(data)
        try:
            self.bytes_written += self._part.write(data)
        except OSError as error:
            raise DestinationError(
                f"The temporary folder {tempfile.gettempdir()} cannot be written: {error}.",
                "Without Xet, one shard must fit there. Free some space, choose a smaller shard size, or set TMPDIR to "
                "a folder on a larger disk.",
            ) from error

    @override
    def finish(self) -> str:
        """Upload the file, unless the store already has its bytes; return its SHA-256."""
        item = {"oid": self._sha256.hexdigest(), "size": self.bytes_written}
        wish: dict[str, Any] = {"operation": "upload", "transfers": ["basic", "multipart"], "hash_algo": "sha256"}
        wish |= {"ref": {"name": self._revision}, "objects": [item]}
        url = f"{self._hub.endpoint}/{self._repo_id}.git/info/lfs/objects/batch"
        answer = self._ask(lambda: parsed(_Batch, self._hub.send("POST", url, _LFS, json=wish).json()).objects[0])
        if answer.error:
            message = f"The Hub does not accept {self._file}: {answer.error.message:.200}."
            raise DestinationError(message, "Change what the Hub complains about, then start again.")
        if actions := answer.actions:
            self._send(actions.upload, item)
            if verify := actions.verify:
                self._ask(lambda: self._hub.send("POST", verify.href, json=item))
            self.bytes_uploaded = self.bytes_written
        else:
            self.bytes_deduplicated = self.bytes_written
        self.abort()
        return self._sha256.hexdigest()

    def _send(self, upload: _Action, item: dict[str, Any]) -> None:
        if not upload.header or "chunk_size" not in upload.header:
            self._put(upload.href, 0, self.bytes_written)
            return
        places, size = self._ask(lambda: upload.parts(self.bytes_written))
        parts = [
            {"partNumber": number, "etag": self._put(place, start, min(size, self.bytes_written - start))}
            for number, (place, start) in enumerate(zip(places, range(0, self.bytes_written, size), strict=True), 1)
        ]
        done = {"oid": item["oid"], "parts": parts}
        self._ask(lambda: self._hub.send("POST", upload.href, _LFS, openly=True, json=done))

    def _put(self, url: str, start: int, size: int) -> str:
        def pieces() -> Iterator[bytes]:
            self._part.seek(start)
            for at in range(0, size, _PIECE_BYTES):
                yield self._part.read(min(_PIECE_BYTES, size - at))

        length = {"Content-Length": str(size)}
        answer = self._ask(lambda: self._hub.send("PUT", url, length, openly=True, content=pieces()))
        return str(answer.headers.get("ETag", ""))

    def _ask(self, question: Callable[[], _T]) -> _T:
        return self._hub.ask(self._repo_id, DestinationError, question)

    @override
    def abort(self) -> None:
        self._part.close()


class StoreSink(ShardSink):
    """The store of a Hub, reached through a repo. Somebody with a login commits the files that are put there."""

    shards_at_once = 1

    def __init__(self, hub: Hub, repo_id: str, revision: str = "") -> None:
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
    def expect(self, sources: Sequence[Source], unchanged: Iterable[Extent]) -> None:
        """Ask the store which chunks of the source's files it has. hf-xet does not send those later.

        hf-xet 1.8 asks only about the first chunk of a file, and about one in 1,024 of the others. A shard begins with
        a new header. So hf-xet first gets the beginnings of the source's files, in an upload that is given up. The
        store's answer names all chunks that arrived together with such a beginning, and hf-xet remembers them.
        """
        entries = [{file.path: file for file in source.files if file.xet_hash} for source in sources]
        files = sorted({(extent.source, extent.file) for extent in unchanged})
        worth = [file for file in files if (entry := entries[file[0]].get(file[1])) and entry.bytes >= _ASKED_BYTES]
        with suppress(ShardingError, RuntimeError, OSError):  # what nobody asks about is sent
            for start in range(0, len(worth), RANGES_AT_ONCE):
                self._ask_about(sources, worth[start : start + RANGES_AT_ONCE])

    def _ask_about(self, sources: Sequence[Source], files: Sequence[tuple[int, str]]) -> None:
        def beginning(number: int, file: str) -> bytes:
            return b"".join(sources[number].read(file, 0, _LARGEST_CHUNK_BYTES))

        commit = self._start()
        try:
            with readers(RANGES_AT_ONCE) as pool:
                streams = [
                    (commit.start_upload_stream(name=file), pool.submit(beginning, number, file))
                    for number, file in files
                ]
                for stream, read in streams:
                    stream.write(pool.result(read))
            for stream, _ in streams:
                stream.finish()  # after the answer about it
        finally:
            commit.abort()

    @override
    def open_shard(self, file: str) -> ShardWriter:
        before = self._writers[-1] if self._writers else None
        self._writers.append(XetShardWriter(self._start, file, before if isinstance(before, XetShardWriter) else None))
        return self._writers[-1]

    def _start(self) -> Any:
        return self._hub.ask(self._place[0], DestinationError, partial(self._hub.upload_to, *self._place))

    @override
    def note(self, record: ShardRecord) -> None:
        """Do nothing: the shard can be committed from where it is."""

    @override
    def close(self) -> None:
        for writer in self._writers:
            with suppress(RuntimeError, OSError):  # it is dropped in any case
                writer.abort()
            if isinstance(writer, XetShardWriter):
                writer.let_go()
