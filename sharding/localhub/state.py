"""Keep everything except the bytes of files in one SQLite database, with one transaction per request."""

import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, LifoQueue
from threading import Lock

_SCHEMA = """
CREATE TABLE IF NOT EXISTS secrets (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY COLLATE NOCASE, type TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS members (org TEXT, user TEXT, PRIMARY KEY (org, user)) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS repos (
    number INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, owner TEXT NOT NULL, name TEXT NOT NULL,
    private INTEGER NOT NULL, gated TEXT, app TEXT, created_seconds REAL NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS repos_by_name ON repos (kind, owner COLLATE NOCASE, name COLLATE NOCASE);

CREATE TABLE IF NOT EXISTS commits (
    number INTEGER PRIMARY KEY AUTOINCREMENT, repo INTEGER NOT NULL REFERENCES repos ON DELETE CASCADE,
    id TEXT NOT NULL UNIQUE, parent INTEGER, title TEXT NOT NULL, message TEXT NOT NULL, author TEXT NOT NULL,
    date_seconds REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS commits_by_repo ON commits (repo, id);

-- Every commit lists all its files. changed_in is the commit that last changed the file.
CREATE TABLE IF NOT EXISTS files (
    "commit" INTEGER NOT NULL REFERENCES commits ON DELETE CASCADE, path TEXT NOT NULL, oid TEXT NOT NULL,
    size_bytes INTEGER NOT NULL, sha256 TEXT, changed_in INTEGER NOT NULL, PRIMARY KEY ("commit", path)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS refs (
    repo INTEGER NOT NULL REFERENCES repos ON DELETE CASCADE, type TEXT NOT NULL, name TEXT NOT NULL,
    "commit" INTEGER NOT NULL, message TEXT, PRIMARY KEY (repo, type, name)
) WITHOUT ROWID;

-- LFS and Xet files that a repo may point to. Once a commit points to one, it is referenced.
CREATE TABLE IF NOT EXISTS objects (
    repo INTEGER NOT NULL REFERENCES repos ON DELETE CASCADE, sha256 TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    referenced INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (repo, sha256)
) WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS oauth_codes (code TEXT PRIMARY KEY, grant_json TEXT NOT NULL, expires_seconds REAL NOT NULL);
CREATE TABLE IF NOT EXISTS oauth_tokens (
    token TEXT PRIMARY KEY, user TEXT NOT NULL, app TEXT NOT NULL, scopes TEXT NOT NULL, expires_seconds REAL NOT NULL
);

CREATE TABLE IF NOT EXISTS xet_shards (name TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS xet_files (sha256 TEXT PRIMARY KEY, hash TEXT NOT NULL, size_bytes INTEGER NOT NULL);
"""


class State:
    """The database `hub.sqlite` in a folder. Many threads can use it, and it survives a kill at any time."""

    def __init__(self, folder: Path) -> None:
        """Open or create the database."""
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "hub.sqlite"
        self._idle: LifoQueue[sqlite3.Connection] = LifoQueue()
        self._write_lock = Lock()
        self._writer = self._connect()
        self._writer.executescript(_SCHEMA)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the database as it is now, without later changes."""
        try:
            db = self._idle.get_nowait()
        except Empty:
            db = self._connect()
        try:
            db.execute("BEGIN")
            yield db
        finally:
            db.rollback()
            self._idle.put(db)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the one connection that can write. If the block raises, all its changes are undone."""
        with self._write_lock:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
                self._writer.execute("COMMIT")
            except BaseException:
                self._writer.rollback()
                raise

    def secret(self, name: str) -> str:
        """Return the secret of that name: 64 random hexadecimal digits, made once and kept."""
        with self.writing() as db:
            db.execute("INSERT OR IGNORE INTO secrets VALUES (?, ?)", (name, secrets.token_hex(32)))
            value: str = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()[0]
        return value

    def close(self) -> None:
        """Close every connection that is not in use."""
        with self._write_lock:
            self._writer.close()
        while not self._idle.empty():
            self._idle.get_nowait().close()

    def _connect(self) -> sqlite3.Connection:
        # Transactions are started by hand. Different threads use a connection, but only one at a time.
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=60)
        db.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        return db
