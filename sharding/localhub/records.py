"""Keep everything except the bytes of files in one SQLite database, with one transaction per request."""

import re
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, get_args

from sharding.localhub.blobs import git_blob_id, lfs_pointer
from sharding.localhub.refusals import revision_not_found

Kind = Literal["model", "dataset", "space"]
KINDS: tuple[Kind, ...] = get_args(Kind)

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
    "commit" INTEGER NOT NULL, PRIMARY KEY (repo, type, name)
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

"""


class State:
    """The database `hub.sqlite` in a folder. Many threads can use it, and it survives a kill at any time."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "hub.sqlite"
        self._write_lock = Lock()
        self._held = self._connect()  # While one connection is open, SQLite keeps its log, and closes others at once.
        self._held.executescript(_SCHEMA)

    @contextmanager
    def reading(self, begin: str = "BEGIN") -> Iterator[sqlite3.Connection]:
        """Yield a connection that sees the database as it is now, without later changes."""
        with closing(self._connect()) as db:
            db.execute(begin)
            yield db

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Yield the one connection that can write. If the block raises, all its changes are undone."""
        with self._write_lock, self.reading("BEGIN IMMEDIATE") as db, db:
            yield db

    def secret(self, name: str, new: Callable[[], str]) -> str:
        """Return the secret of that name. The first time, `new` makes it."""
        with self.writing() as db:
            row = db.execute("SELECT value FROM secrets WHERE name = ?", (name,)).fetchone()
            if not row:
                row = db.execute("INSERT INTO secrets VALUES (?, ?) RETURNING value", (name, new())).fetchone()
            return str(row[0])

    def close(self) -> None:
        self._held.close()

    def _connect(self) -> sqlite3.Connection:
        # Transactions are started by hand. The connection that is held may be closed by another thread.
        db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=60)
        db.row_factory = sqlite3.Row
        for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
            db.execute(f"PRAGMA {pragma}")
        return db


@dataclass(frozen=True, slots=True)
class Repo:
    """A repo. `app` is the OAuth client that created it, or None."""

    number: int
    kind: Kind
    owner: str
    name: str
    private: bool
    gated: str | None
    app: str | None
    created_seconds: float

    @property
    def id(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def path(self) -> str:
        """The path of its page: models have no prefix."""
        return self.id if self.kind == "model" else f"{self.kind}s/{self.id}"


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit. `parent` is the number of the commit before it, None for the first."""

    number: int
    id: str
    parent: int | None
    title: str
    message: str
    author: str
    date_seconds: float


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of a commit. With a `sha256` it is an LFS or Xet file, and `oid` is the id of its pointer."""

    path: str
    oid: str
    size_bytes: int
    sha256: str | None
    changed_in: int

    @property
    def etag(self) -> str:
        """The id of the content: the sha256, or the git id of a regular file."""
        return self.sha256 or self.oid


def lfs_entry(path: str, sha256: str, size_bytes: int) -> Entry:
    return Entry(path, git_blob_id(lfs_pointer(sha256, size_bytes)), size_bytes, sha256, 0)


def find_repo(db: sqlite3.Connection, kind: str, owner: str, name: str) -> Repo | None:
    """Return the repo of that name, or None. Upper and lower case count as the same."""
    row = db.execute(
        "SELECT * FROM repos WHERE kind = ? AND owner = ? COLLATE NOCASE AND name = ? COLLATE NOCASE",
        (kind, owner, name),
    ).fetchone()
    return _repo(row) if row else None


def list_repos(db: sqlite3.Connection, kind: str, owner: str | None = None) -> list[Repo]:
    """Return all repos of a kind, newest first."""
    rows = db.execute(
        "SELECT * FROM repos WHERE kind = ? AND owner = coalesce(?, owner) COLLATE NOCASE ORDER BY number DESC",
        (kind, owner),
    )
    return [_repo(row) for row in rows]


def add_repo(db: sqlite3.Connection, kind: Kind, owner: str, name: str, private: bool, app: str | None) -> Repo:
    row = db.execute(
        "INSERT INTO repos (kind, owner, name, private, app, created_seconds) VALUES (?, ?, ?, ?, ?, ?) RETURNING *",
        (kind, owner, name, private, app, time.time()),
    ).fetchone()
    return _repo(row)


def find_commit(db: sqlite3.Connection, repo: Repo, revision: str) -> Commit:
    """Return the commit of a branch, tag, pull request or commit id (7 digits or more). Raises Refusal (404)."""
    rows = _at(db, repo, re.sub("^refs/(heads|tags)/", "", revision), "branch", "pull", "tag")
    if not rows and re.fullmatch("[0-9a-f]{7,40}", revision):
        rows = db.execute(
            "SELECT * FROM commits WHERE repo = ? AND id BETWEEN ? AND ? LIMIT 2",
            (repo.number, revision, revision + "g"),
        ).fetchall()
    if len(rows) != 1:
        raise revision_not_found(revision)
    return _commit(rows[0])


def find_head(db: sqlite3.Connection, repo: Repo, branch: str) -> Commit:
    """Return the last commit of a branch. Raises Refusal (RevisionNotFound) for anything else, also for a tag."""
    rows = _at(db, repo, branch.removeprefix("refs/heads/"), "branch", "pull")
    if not rows:
        raise revision_not_found(branch)
    return _commit(rows[0])


def _at(db: sqlite3.Connection, repo: Repo, name: str, *kinds: str) -> list[sqlite3.Row]:
    query = 'SELECT commits.* FROM refs JOIN commits ON number = "commit" WHERE refs.repo = ? AND name = ? AND type = ?'
    found = (db.execute(query, (repo.number, name, kind)).fetchone() for kind in kinds)
    return [row for row in found if row][:1]


def history(db: sqlite3.Connection, commit: Commit) -> list[Commit]:
    """Return the commit and all commits before it, newest first."""
    rows = db.execute(
        "WITH RECURSIVE line(number) AS (SELECT ? UNION ALL SELECT parent FROM commits JOIN line USING (number))"
        " SELECT commits.* FROM line JOIN commits USING (number) ORDER BY number DESC",
        (commit.number,),
    )
    return [_commit(row) for row in rows]


def add_commit(
    db: sqlite3.Connection, repo: Repo, parent: Commit | None, title: str, author: str, message: str = ""
) -> Commit:
    """Add a commit with the files of its parent. No branch points to it yet."""
    row = db.execute(
        "INSERT INTO commits (repo, id, parent, title, message, author, date_seconds) VALUES (?, ?, ?, ?, ?, ?, ?)"
        " RETURNING *",
        (repo.number, secrets.token_hex(20), parent and parent.number, title, message, author, time.time()),
    ).fetchone()
    commit = _commit(row)
    if parent:
        query = 'INSERT INTO files SELECT ?, path, oid, size_bytes, sha256, changed_in FROM files WHERE "commit" = ?'
        db.execute(query, (commit.number, parent.number))
    return commit


def put_entry(db: sqlite3.Connection, commit: Commit, entry: Entry) -> None:
    """Write a file into a commit that is being made. The same content counts as no change."""
    db.execute(
        "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET oid = excluded.oid,"
        " size_bytes = excluded.size_bytes, sha256 = excluded.sha256, changed_in = excluded.changed_in"
        " WHERE oid IS NOT excluded.oid",
        (commit.number, entry.path, entry.oid, entry.size_bytes, entry.sha256, commit.number),
    )


def point(db: sqlite3.Connection, repo: Repo, kind: str, name: str, commit: Commit) -> None:
    """Point a ref (kind "branch", "tag" or "pull") to a commit."""
    query = 'INSERT OR REPLACE INTO refs (repo, type, name, "commit") VALUES (?, ?, ?, ?)'
    db.execute(query, (repo.number, kind, name, commit.number))


def add_object(db: sqlite3.Connection, repo_number: int, sha256: str, size_bytes: int) -> None:
    db.execute("INSERT OR IGNORE INTO objects VALUES (?, ?, ?, 0)", (repo_number, sha256, size_bytes))


def find_entry(db: sqlite3.Connection, commit: Commit, path: str) -> Entry | None:
    row = db.execute('SELECT * FROM files WHERE "commit" = ? AND path = ?', (commit.number, path)).fetchone()
    return Entry(*tuple(row)[1:]) if row else None


def list_entries(db: sqlite3.Connection, commit: Commit, folder: str = "") -> list[Entry]:
    """Return the files below a folder ("" for all files), sorted by path."""
    # "0" is the character after "/": all paths below the folder are between the two.
    bounds = (f"{folder}/", f"{folder}0") if folder else ("", "\U0010ffff")
    query = 'SELECT * FROM files WHERE "commit" = ? AND path >= ? AND path < ? ORDER BY path'
    return [Entry(*tuple(row)[1:]) for row in db.execute(query, (commit.number, *bounds))]


def _commit(row: sqlite3.Row) -> Commit:
    return Commit(**{key: row[key] for key in row.keys() if key != "repo"})  # noqa: SIM118 - a Row is not a mapping


def _repo(row: sqlite3.Row) -> Repo:
    return Repo(**{**dict(row), "private": bool(row["private"])})
