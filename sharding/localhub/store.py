"""Read the Xet store that clients write to: a folder that hf-xet uses directly, without a server.

The layout is that of hf-xet 1.8.0 for an endpoint `local:///folder`. `xet/xorbs/xorbs` holds the data,
`xet/xorbs/shards` lists the chunks of files, and `xet/xorbs/global_dedup_lookup.redb` finds the shard of a file.
While an upload or a download is open, hf-xet locks that last file, also for other processes. So every reader gets a
view: a folder that links to the data and has its own copy of that file. Only one process can upload at a time.
"""

import hmac
import secrets
import shutil
import struct
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hf_xet import XetDownloadStreamGroup  # type: ignore[import-untyped, unused-ignore]

RANGE_BYTES = 8_000_000  # Most to read at a time: an unlimited stream of hf-xet fetches far ahead.
VIEW_SECONDS = 300  # How long a reader can open its view.

_LOOKUP = "global_dedup_lookup.redb"
_RECORD_BYTES = 48
_HAS_VERIFICATION, _HAS_SHA256 = 1 << 31, 1 << 30


Right = Literal["read", "write"]

HUBS_OWN = "hub"  # The name of the Hub's own grants.


@dataclass(frozen=True, slots=True)
class Grants:
    """The address of the store, how long a token is valid, and the key that signs it."""

    endpoint: str
    seconds: int
    key: bytes = field(repr=False)

    def token(self, right: Right, seconds: int | None = None, name: str = "") -> tuple[str, int]:
        """Return a token with that name ("": a random one), and the time of its end in seconds since 1970."""
        expires = int(time.time()) + (self.seconds if seconds is None else seconds)
        claims = f"{right}_{expires}_{name or secrets.token_hex(8)}"
        return f"xet_{claims}_{self._sign(claims)}", expires

    def allows(self, authorization: str, right: Right) -> bool:
        """Return whether a header `Authorization` has a valid token for that right. A token to write also reads."""
        scheme, granted, expires, name, signature = (*authorization.split("_"), *[""] * 5)[:5]
        return (
            scheme == "Bearer xet"
            and hmac.compare_digest(signature, self._sign(f"{granted}_{expires}_{name}"))
            and granted in (right, "write")
            and int(expires) >= time.time()
        )

    def _sign(self, claims: str) -> str:
        return hmac.new(self.key, claims.encode(), "sha256").hexdigest()


def name_of_grant(authorization: str) -> str:
    """Return the public name of the token in a header `Authorization`, or "" without one."""
    return (*authorization.split("_"), *[""] * 4)[3]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a file: the chunks `[first, end)` of one xorb, a package of chunks."""

    xorb: str
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class XetFile:
    """A file in the store."""

    hash: str
    sha256: str
    size_bytes: int
    segments: tuple[Segment, ...]


class XetStore:
    """The folder `xet-store` beside the database, with every file that was ever put there."""

    def __init__(self, folder: Path, grants: Grants | None = None) -> None:
        """Open the store below `folder`. With `grants`, everything except `put` goes over HTTP to this Hub."""
        self.folder = folder / "xet-store"
        self.url = f"local://{self.folder}"  # the endpoint for writers
        self._xorbs = self.folder / "xet" / "xorbs"
        self.shards = self._xorbs / "shards"
        self._views = folder / "xet-views"
        self.grants = grants
        self._files: dict[str, XetFile] = {}
        self._read: set[str] = set()  # the names of the shards whose files these are
        self._lock = Lock()
        self._lent = 0
        self._trimmed_later: deque[tuple[float, Path]] = deque()
        self.folder.mkdir(exist_ok=True)
        shutil.rmtree(self._views, ignore_errors=True)
        self._views.mkdir()

    def xorb(self, name: str) -> Path:
        return self._xorbs / "xorbs" / f"default.{name}"

    def find(self, name: str) -> XetFile | None:
        """Return the file with that sha256 or Xet hash, or None. It looks into the shards that are new."""
        for path in self.shards.glob("*.mdb") if name not in self._files else ():
            if path.name not in self._read:
                with suppress(ValueError):  # not complete yet: the next call reads it
                    for file in parse_shard(path.read_bytes()):
                        self._files |= {file.sha256: file, file.hash: file}
                    self._read.add(path.name)
        return self._files.get(name)

    def put(self, path: Path) -> str:
        """Write a file to the store; return its sha256. Raises RuntimeError while a client writes."""
        import hf_xet  # type: ignore[import-untyped, unused-ignore]

        with hf_xet.XetSession().new_upload_commit(endpoint=self.url) as commit:
            upload = commit.start_upload_file(str(path))
        return str(upload.result().xet_info.sha256)

    def lend_view(self) -> str:
        """Return an endpoint for one reader, which can open it for `VIEW_SECONDS`."""
        with self._lock:
            self._lent += 1
            view = self._views / str(self._lent)
            self._trimmed_later.append((time.monotonic() + 2 * VIEW_SECONDS, view))
            while self._trimmed_later[0][0] < time.monotonic():
                # A reader that has opened it still needs the links, which cost nothing.
                (self._trimmed_later.popleft()[1] / "xet" / "xorbs" / _LOOKUP).unlink(missing_ok=True)
        xorbs = view / "xet" / "xorbs"
        xorbs.mkdir(parents=True)
        for part in ("xorbs", "shards"):
            (self._xorbs / part).mkdir(parents=True, exist_ok=True)
            (xorbs / part).symlink_to(self._xorbs / part)
        self._copy_lookup(xorbs / _LOOKUP)
        return f"local://{view}"

    def read(self, file: XetFile, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield the bytes in chunks of at most `RANGE_BYTES`. Raises OSError if the store does not have them."""
        import hf_xet  # type: ignore[import-untyped, unused-ignore]

        info = hf_xet.XetFileInfo(file.hash, file.size_bytes)
        with self._opened() as group:
            for start in range(start_byte, end_byte, RANGE_BYTES):
                end = min(start + RANGE_BYTES, end_byte)
                try:
                    chunk = b"".join(group.download_stream(info, start=start, end=end))
                except RuntimeError as error:
                    raise OSError(str(error)) from error
                if len(chunk) != end - start:
                    raise OSError(f"the Xet store lacks bytes {start} to {end} of {file.hash}")
                yield chunk

    def _copy_lookup(self, target: Path) -> None:
        """Copy the lookup in one consistent state, although a client may be writing to it."""
        source = self._xorbs / _LOOKUP
        for _ in range(20):
            if not source.exists():
                return
            before = source.stat()
            shutil.copyfile(source, target)
            after = source.stat()
            if (before.st_mtime_ns, before.st_size) == (after.st_mtime_ns, after.st_size):
                return

    @contextmanager
    def _opened(self) -> Iterator["XetDownloadStreamGroup"]:
        import hf_xet  # type: ignore[import-untyped, unused-ignore]

        if self.grants:
            token, expires = self.grants.token("read", VIEW_SECONDS, HUBS_OWN)
            access = {"endpoint": self.grants.endpoint, "token": token, "token_expiry_unix_secs": expires}
            # With telemetry, hf-xet waits two seconds for its server at the end of a session.
            config = hf_xet.XetConfig().with_config({"telemetry.enabled": False})
            yield hf_xet.XetSession(config).new_download_stream_group(**access)
            return
        endpoint = self.lend_view()
        try:
            # A new session, because sessions remember the endpoints that they have opened.
            yield hf_xet.XetSession().new_download_stream_group(endpoint=endpoint)
        finally:
            shutil.rmtree(endpoint.removeprefix("local://"))


def parse_shard(shard: bytes) -> list[XetFile]:
    """Return the files in a shard that have a sha256 (hf-xet 1.8.0, `*.mdb`, version 2).

    After a header of 48 bytes come records of 48 bytes. A file has one record with its hash, flags and number of
    segments, then one record per segment with its unpacked size. If a flag is set, as many verification records follow.
    If another is set, a record with the sha256 follows. A hash of ones ends the list. Every hash is four little-endian
    words. Raises ValueError for a shard that is cut short.
    """
    files: list[XetFile] = []
    place = _RECORD_BYTES
    try:
        while shard[place : place + 32] != b"\xff" * 32:
            file_hash = hash_at(shard, place)
            flags, segments = struct.unpack_from("<II", shard, place + 32)
            place += _RECORD_BYTES
            if place + segments * _RECORD_BYTES > len(shard):
                raise ValueError("the shard is cut short")
            sizes, parts = [], []
            for record in range(place, place + segments * _RECORD_BYTES, _RECORD_BYTES):
                _, size, first, end = struct.unpack_from("<IIII", shard, record + 32)
                sizes.append(size)
                parts.append(Segment(hash_at(shard, record), first, end))
            place += segments * _RECORD_BYTES * (2 if flags & _HAS_VERIFICATION else 1)
            if flags & _HAS_SHA256:
                files.append(XetFile(file_hash, hash_at(shard, place), sum(sizes), tuple(parts)))
                place += _RECORD_BYTES
    except struct.error as error:
        raise ValueError("the shard is cut short") from error
    return files


def hash_at(shard: bytes, place: int) -> str:
    """Return the hash at a place of a shard, as hf-xet writes it."""
    return "".join(f"{word:016x}" for word in struct.unpack_from("<4Q", shard, place))
