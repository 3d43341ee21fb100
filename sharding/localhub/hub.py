"""Hold what every module of the Hub works with: its settings, its state and its files."""

import secrets
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sharding.localhub.blobs import Blobs, read_file
from sharding.localhub.records import Commit, Entry, Repo, State, find_entry
from sharding.localhub.refusals import Refusal
from sharding.localhub.store import RANGE_BYTES, Grants, XetFile, XetStore


@dataclass(frozen=True, slots=True)
class Settings:
    """How this Hub behaves. The default numbers are those of the real Hub."""

    users: tuple[str, ...] = ("alice", "bob")
    orgs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # Organisations and the members who may write.
    xet: bool = True
    xet_over_http: bool = False  # Clients reach the Xet store through this Hub, not a shared disk.
    xet_seconds: int = 12 * 3600  # How long a grant to write, or to read over HTTP, is valid.
    quota_bytes: int | None = None  # How much a namespace can store in LFS and Xet files. No limit by default.
    page_items: int = 1000
    multipart_above_bytes: int = 5_000_000_000
    oauth_seconds: int = 8 * 3600

    @property
    def part_bytes(self) -> int:
        """How much of an LFS file comes in one piece, which is held in memory here."""
        return min(self.multipart_above_bytes, 100_000_000)


@dataclass(frozen=True, slots=True)
class Hub:
    """One Hub. `address` is the start of all its URLs, without a slash at the end."""

    address: str
    settings: Settings
    state: State
    blobs: Blobs
    xet: XetStore | None
    signing_key: bytes = field(repr=False)

    @classmethod
    def open(cls, address: str, folder: Path, settings: Settings) -> "Hub":
        """Open the Hub in `folder`, or create one there. Accounts are added, never removed."""
        folder = folder.resolve()
        state = State(folder)
        with state.writing() as db:
            for user in settings.users:
                db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'user')", (user,))
            for org, members in settings.orgs.items():
                db.execute("INSERT OR IGNORE INTO accounts VALUES (?, 'org')", (org,))
                db.executemany("INSERT OR IGNORE INTO members VALUES (?, ?)", [(org, member) for member in members])
        key = state.secret("signing key", lambda: secrets.token_hex(32)).encode()
        grants = Grants(f"{address}/cas", settings.xet_seconds, key) if settings.xet_over_http else None
        xet = XetStore(folder, grants) if settings.xet else None
        return cls(address, settings, state, Blobs(folder / "blobs"), xet, key)

    def xet_file(self, entry: Entry) -> XetFile | None:
        return self.xet.find(entry.sha256) if self.xet and entry.sha256 else None

    def stream(self, entry: Entry, start_byte: int, end_byte: int) -> Iterator[bytes]:
        """Yield a range of a committed file. Raises Refusal (500) if it is lost."""
        blob = self.blobs.path(entry.etag)
        if not blob.exists():
            file = self.xet_file(entry)
            if not self.xet or not file:
                raise Refusal(500, f"The content of {entry.path} is lost.")
            if file.size_bytes > RANGE_BYTES:
                return self.xet.read(file, start_byte, end_byte)
            try:  # clients ask for short ranges of it again and again
                self.blobs.keep_stream(self.xet.read(file, 0, file.size_bytes), file.sha256, file.size_bytes)
            except (OSError, ValueError) as error:
                raise Refusal(500, f"The content of {entry.path} cannot be read: {error}") from error
        return read_file(blob, start_byte, end_byte)

    def read_text(self, db: sqlite3.Connection, commit: Commit, path: str, max_bytes: int) -> str:
        """Return a small text file of a commit, or "" if it is missing or too large."""
        entry = find_entry(db, commit, path)
        if not entry or entry.size_bytes > max_bytes:
            return ""
        return b"".join(self.stream(entry, 0, entry.size_bytes)).decode(errors="replace")

    def known_size(self, repo: Repo, sha256: str) -> int | None:
        """Return the size of a file that the repo may point to (all in the Xet store), or None if it may not."""
        query = "SELECT size_bytes FROM objects WHERE repo = ? AND sha256 = ?"
        with self.state.reading() as db:
            row = db.execute(query, (repo.number, sha256)).fetchone()
        if row:
            return int(row[0])
        file = self.xet.find(sha256) if self.xet else None
        return file.size_bytes if file else None

    def check_quota(self, db: sqlite3.Connection, repo: Repo, wants_room: bool = False) -> None:
        """Raise Refusal (403) if the namespace of a repo is over its quota, or full if it `wants_room`."""
        query = "SELECT total(size_bytes) FROM objects JOIN repos ON repo = number WHERE referenced AND owner = ?"
        used, quota = int(db.execute(query, (repo.owner,)).fetchone()[0]), self.settings.quota_bytes
        if quota is not None and (used > quota or (wants_room and used == quota)):
            raise Refusal(403, f"Storage limit reached: {used} of {quota} bytes for {repo.owner}.")
