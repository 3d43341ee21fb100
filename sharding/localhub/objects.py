"""Decide which LFS and Xet files a repo may point to, and how much its namespace may store."""

import sqlite3
from collections.abc import Iterable

from sharding.localhub.hub import Hub
from sharding.localhub.records import Entry, Repo
from sharding.localhub.refusals import forbidden


def known_size(hub: Hub, repo: Repo, sha256: str) -> int | None:
    """Return the size of a file that the repo may point to, or None if it may not.

    A repo may point to files that were uploaded or copied to it. A Xet upload does not record its repo, so every repo
    may point to a file that was uploaded over Xet.
    """
    with hub.state.reading() as db:
        row = db.execute(
            "SELECT size_bytes FROM objects WHERE repo = ? AND sha256 = ?", (repo.number, sha256)
        ).fetchone()
    if row:
        size: int = row[0]
        return size
    file = hub.xet.find(sha256) if hub.xet else None
    return file.size_bytes if file else None


def add_object(db: sqlite3.Connection, repo_number: int, sha256: str, size_bytes: int) -> None:
    """Let a repo point to a file."""
    db.execute("INSERT OR IGNORE INTO objects VALUES (?, ?, ?, 0)", (repo_number, sha256, size_bytes))


def check_quota(hub: Hub, db: sqlite3.Connection, repo: Repo, entries: Iterable[Entry] | None = None) -> None:
    """Raise Refusal (403) if the files would take the namespace over its quota; without files, if it is full."""
    quota = hub.settings.quota_bytes
    if quota is None:
        return
    of_owner = "SELECT size_bytes, sha256, repo FROM objects JOIN repos ON repo = number WHERE referenced AND owner = ?"
    stored = db.execute(of_owner, (repo.owner,)).fetchall()
    here = {sha256 for _, sha256, number in stored if number == repo.number}
    sizes = {entry.sha256: entry.size_bytes for entry in entries or () if entry.sha256 and entry.sha256 not in here}
    used = sum(row[0] for row in stored)
    if used + sum(sizes.values()) > quota or (used == quota and (sizes or entries is None)):
        raise forbidden(f"Storage limit reached: {repo.owner} stores {used} of {quota} bytes.")
