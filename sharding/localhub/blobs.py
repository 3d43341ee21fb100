"""Keep the bytes of files on disk, named by their content. A file is complete or absent."""

import hashlib
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

CHUNK_BYTES = 1 << 20


def git_blob_id(content: bytes) -> str:
    """Return the id git gives a file of this content (sha1 of a header and the bytes)."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def lfs_pointer(sha256: str, size_bytes: int) -> bytes:
    """Return the text that git keeps instead of an LFS file (git-lfs specification, version 1)."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size_bytes}\n".encode()


@contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """Yield a file, which becomes `target` if nothing is raised."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{secrets.token_hex(8)}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


class Blobs:
    """A folder of files named by git id (small ones) or sha256 (LFS). Each file is complete and never changes."""

    def __init__(self, folder: Path) -> None:
        """Open `folder`, or create it. Delete files that a killed process left incomplete."""
        self._folder = folder
        self._parts = folder / "parts"
        self._parts.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*/*.part"):
            leftover.unlink()

    def path(self, name: str) -> Path:
        """Return the path of the blob with that git id or sha256, which may not exist."""
        return self._folder / name[:2] / name

    def put(self, content: bytes) -> str:
        """Keep a small file. Return its git id."""
        name = git_blob_id(content)
        if not self.path(name).exists():
            with new_file(self.path(name)) as file:
                file.write(content)
        return name

    def keep_stream(self, chunks: Iterable[bytes], sha256: str, size_bytes: int) -> None:
        """Write a stream of known size and sha256 as a blob. Raises ValueError if size or sha256 are others."""
        digest, written = hashlib.sha256(), 0
        with new_file(self.path(sha256)) as file:
            for chunk in chunks:
                digest.update(chunk)
                written += file.write(chunk)
            if (digest.hexdigest(), written) != (sha256, size_bytes):
                raise ValueError(f"the content has sha256 {digest.hexdigest()} and {written} bytes")

    def upload_part(self, upload: str, number: int) -> Path:
        folder = self._parts / upload
        folder.mkdir(exist_ok=True)
        return folder / str(number)

    def drop_upload(self, upload: str) -> None:
        shutil.rmtree(self._parts / upload)


def read_file(path: Path, start_byte: int = 0, end_byte: int | None = None) -> Iterator[bytes]:
    """Yield the bytes `[start_byte, end_byte)` of a file in chunks of at most `CHUNK_BYTES`. Default: to its end."""
    with path.open("rb") as file:
        file.seek(start_byte)
        left = path.stat().st_size - start_byte if end_byte is None else end_byte - start_byte
        while left > 0 and (chunk := file.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            yield chunk
