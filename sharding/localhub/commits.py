"""Make commits with all of their changes, or none."""

import base64
import binascii
import fnmatch
import json
import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sharding.localhub import accounts, cards, records
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Repo
from sharding.localhub.refusals import Refusal, entry_not_found
from sharding.localhub.web import Answer, Call, Json, link, text_of

REGULAR_BYTES = 10_000_000  # Larger files are always LFS files, whatever their name.

MAX_PREUPLOAD_FILES = 256


@dataclass(frozen=True, slots=True)
class Draft:
    """What a commit is to do. A deletion is a path, and whether it is a folder. `parent` is what a client has seen."""

    summary: str
    entries: Sequence[Entry]
    deletions: Sequence[tuple[str, bool]] = ()
    description: str = ""
    parent: str | None = None


def preupload(call: Call) -> Answer:
    """Return for each file how to upload it (regular or LFS), and its present id."""
    wish = call.json()
    files = wish.get("files")
    if not isinstance(files, list) or len(files) > MAX_PREUPLOAD_FILES:
        raise Refusal(400, f'"files" must be an array of at most {MAX_PREUPLOAD_FILES} files')
    with accounts.reading(call, "propose" if call.asks("create_pr") else "write") as (db, _, head):
        patterns = lfs_patterns(call.hub.read_text(db, head, ".gitattributes", REGULAR_BYTES))
        answers: list[Json] = []
        for file in files:
            path, size = _check_path(text_of(file, "path")), file.get("size")
            if not isinstance(size, int):
                raise Refusal(400, '"size" must be a number')
            mode = "lfs" if size > REGULAR_BYTES or is_matched(path, patterns) else "regular"
            answer: Json = {"path": path, "uploadMode": mode, "shouldIgnore": False}
            if entry := records.find_entry(db, head, path):
                answer["oid"] = entry.etag
            answers.append(answer)
    return {"files": answers}


def commit(call: Call) -> Answer:
    """Make a commit on a branch, or with `create_pr` on a new pull request for that branch."""
    hub, branch, as_pull = call.hub, call.parameters["revision"], call.asks("create_pr")
    with hub.state.reading() as db:  # before any byte is kept
        repo, _ = accounts.reach(db, call, "propose" if as_pull else "write")
    draft = parse_commit(hub, repo, call.body)
    with hub.state.writing() as db:
        repo, caller = accounts.reach(db, call, "propose" if as_pull else "write")
        head = records.find_head(db, repo, branch)
        if draft.parent and not head.id.startswith(draft.parent):
            raise Refusal(412, "A commit has happened since. Please refresh and try again.")
        number = db.execute("SELECT count(*) + 1 FROM refs WHERE repo = ? AND type = 'pull'", (repo.number,))
        target = f"refs/pr/{number.fetchone()[0]}" if as_pull else branch.removeprefix("refs/heads/")
        new_commit = write_commit(db, repo, target, head, caller.name or "", draft)
        hub.check_quota(db, repo)  # else all of this is undone
    page = link(hub, repo.path)
    url = f"{page}/discussions/{target.removeprefix('refs/pr/')}" if as_pull else None
    answer = {"success": True, "commitOid": new_commit.id, "commitUrl": f"{page}/commit/{new_commit.id}"}
    return {**answer, "hookOutput": "", "pullRequestUrl": url}


def write_commit(
    db: sqlite3.Connection, repo: Repo, branch: str, parent: Commit | None, author: str, draft: Draft
) -> Commit:
    """Add a commit to a branch: first the deletions, then the files. Raises Refusal, also for a file below a file."""
    new_commit = records.add_commit(db, repo, parent, draft.summary, author, draft.description)
    for place, is_folder in draft.deletions:
        gone = records.list_entries(db, new_commit, place.strip("/")) if is_folder else []
        if not is_folder and (entry := records.find_entry(db, new_commit, place)):
            gone = [entry]
        if not gone:
            raise entry_not_found(place, parent.id if parent else new_commit.id)
        paths = [(new_commit.number, entry.path) for entry in gone]
        db.executemany('DELETE FROM files WHERE "commit" = ? AND path = ?', paths)
    for entry in draft.entries:
        records.put_entry(db, new_commit, entry)
    for entry in draft.entries:
        parts = entry.path.split("/")
        above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
        is_below = any(records.find_entry(db, new_commit, path) for path in above)
        if is_below or records.list_entries(db, new_commit, entry.path):
            raise Refusal(400, f"{entry.path} cannot be both a file and a folder.")
    stored = [(repo.number, entry.sha256, entry.size_bytes) for entry in draft.entries if entry.sha256]
    db.executemany("INSERT INTO objects VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET referenced = 1", stored)
    records.point(db, repo, "pull" if branch.startswith("refs/pr/") else "branch", branch, new_commit)
    return new_commit


def parse_commit(hub: Hub, repo: Repo, body: bytes) -> Draft:
    """Parse the lines of a commit. Regular files are kept as blobs. Raises Refusal (400)."""
    header: Json | None = None
    entries: list[Entry] = []
    deletions: list[tuple[str, bool]] = []
    try:
        for item in map(json.loads, filter(bytes.strip, body.splitlines())):
            key, value = item["key"], item["value"]
            if key == "header":
                header = value
            elif key in ("deletedFile", "deletedFolder"):
                deletions.append((text_of(value, "path"), key == "deletedFolder"))
            else:
                entries.append(_parse_entry(hub, repo, key, value))
    except (ValueError, KeyError, TypeError) as error:
        raise Refusal(400, f"A line of the commit is invalid: {error}") from error
    if header is None or not text_of(header, "summary", ""):
        raise Refusal(400, '"summary" is required')
    parent = header.get("parentCommit")
    if parent is not None and not (isinstance(parent, str) and re.fullmatch("[0-9a-f]{7,40}", parent)):
        raise Refusal(400, '"parentCommit" must be a commit id')
    return Draft(text_of(header, "summary"), entries, deletions, text_of(header, "description", ""), parent)


def _parse_entry(hub: Hub, repo: Repo, key: str, value: Json) -> Entry:
    """Return a file to write. Raises Refusal (400) for a wrong size, or a card with wrong metadata."""
    path = _check_path(text_of(value, "path"))
    if key == "lfsFile":
        sha256, wanted = text_of(value, "oid"), value.get("size")
        if value.get("algo") != "sha256" or not re.fullmatch("[0-9a-f]{64}", sha256):
            raise Refusal(400, f"{path}: the oid must be a sha256")
        size = hub.known_size(repo, sha256)
        if size is None or wanted not in (None, size):  # a copy states no size
            message = "Your push was rejected because an LFS pointer pointed to a file that does not exist"
            raise Refusal(400, f"{message}: {path}")
        return records.lfs_entry(path, sha256, size)
    if key != "file":
        raise Refusal(400, f"Unknown operation: {key}")
    try:
        content = text_of(value, "content")
        data = base64.b64decode(content, validate=True) if value.get("encoding") == "base64" else content.encode()
    except binascii.Error as error:
        raise Refusal(400, f"{path}: the content is not base64") from error
    if len(data) > REGULAR_BYTES:
        raise Refusal(400, f"{path}: files larger than 10 MB must be LFS files")
    if path == "README.md" and (errors := cards.find_errors(data.decode(errors="replace"))):
        raise Refusal(400, f"Invalid metadata in README.md: {'; '.join(errors)}")
    return Entry(path, hub.blobs.put(data), len(data), None, 0)


def lfs_patterns(attributes: str) -> tuple[str, ...]:
    lines = (line.split() for line in attributes.splitlines())
    return tuple(words[0] for words in lines if len(words) > 1 and "filter=lfs" in words[1:])


def is_matched(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches the path, or only its last part if the pattern has no slash."""
    name = path.rsplit("/", 1)[-1]
    return any(fnmatch.fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)


def _check_path(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..", ".git") for part in parts) or "\0" in path or len(path) > 1000:
        raise Refusal(400, f"Invalid path in repo: {path}")
    return path


RULES = (
    ("POST", "/api/{kind}s/{owner}/{name}/preupload/{revision}", preupload),
    ("POST", "/api/{kind}s/{owner}/{name}/commit/{revision}", commit),
)
