"""Show and name revisions: their files, trees and history; branches, tags and pull requests."""

import hashlib
import re
import sqlite3
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from sharding.localhub import accounts, records
from sharding.localhub.blobs import CHUNK_BYTES, lfs_pointer
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Repo
from sharding.localhub.refusals import Refusal, entry_not_found, revision_not_found
from sharding.localhub.web import Answer, Call, Json, is_true, iso, link, page, text_of

_COMMITS, _MOST_COMMITS = 50, 1000
_PREFIXES = {"branch": "refs/heads/", "tag": "refs/tags/", "pull": ""}


def resolve(call: Call) -> Answer:
    """Answer HEAD and GET for a file, with ranges and `If-None-Match`."""
    hub, path = call.hub, call.parameters["path"]
    with hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "read")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        entry = records.find_entry(db, commit, path)
    if entry is None:
        raise entry_not_found(path, commit.id)
    headers = _headers(hub, repo, commit, entry)
    if headers["ETag"] in [tag.strip() for tag in call.headers.get("if-none-match", "").split(",")]:
        return Response(status_code=304, headers=headers)
    range_holds = call.headers.get("if-range", headers["ETag"]) == headers["ETag"]
    span = parse_range(call.headers.get("range"), entry.size_bytes) if range_holds else None
    start, end = span or (0, entry.size_bytes)
    status = 206 if span else 200
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
    headers["Content-Length"] = str(end - start)
    chunks = iter(()) if call.method == "HEAD" else hub.stream(entry, start, end)
    if call.method == "HEAD" or end - start <= CHUNK_BYTES:
        return Response(b"".join(chunks), status, headers, media_type="application/octet-stream")
    return StreamingResponse(chunks, status, headers, media_type="application/octet-stream")


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return the requested range `[start, end)`, None for the whole file (RFC 9110, section 14). Raises Refusal (416).

    >>> parse_range("bytes=-5", 100)
    (95, 100)
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", (header or "").strip())
    if not match or not (match[1] or match[2]):
        return None
    if match[1]:
        start, end = int(match[1]), min(int(match[2]) + 1, size_bytes) if match[2] else size_bytes
        if match[2] and int(match[2]) < start:
            return None
    else:
        start, end = max(0, size_bytes - int(match[2])), size_bytes
    if start >= end:
        raise Refusal(416, "Range Not Satisfiable", **{"Content-Range": f"bytes */{size_bytes}"})
    return start, end


def _headers(hub: Hub, repo: Repo, commit: Commit, entry: Entry) -> dict[str, str]:
    name = quote(entry.path.rpartition("/")[2], safe="")
    headers = {
        "X-Repo-Commit": commit.id,
        "ETag": f'"{entry.etag}"',
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"inline; filename*=UTF-8''{name}",
        # Anybody can upload files: an HTML file among them must not run as a page of this Hub.
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "X-Content-Type-Options": "nosniff",
    }
    if entry.sha256:
        headers |= {"X-Linked-Size": str(entry.size_bytes), "X-Linked-Etag": f'"{entry.etag}"'}
        if file := hub.xet_file(entry):
            token_url = link(hub, "api", f"{repo.kind}s", repo.id, "xet-read-token", commit.id)
            headers |= {"X-Xet-Hash": file.hash, "Link": f'<{token_url}>; rel="xet-auth"'}
    return headers


def tree(call: Call) -> Answer:
    """List a folder in pages. `recursive` lists all below it, `expand` adds the last commit of each item."""
    folder, expand = call.parameters.get("path", "").strip("/"), call.asks("expand")
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        entries = records.list_entries(db, commit, folder)
        if folder and not entries:
            raise entry_not_found(folder, commit.id)
        items = _list_items(call.hub, entries, folder, call.asks("recursive"))
        if expand:
            _add_last_commits(db, items, entries)
    return page(call, items, min(call.hub.settings.page_items, 50) if expand else call.hub.settings.page_items)


def paths_info(call: Call) -> Answer:
    """Describe the files and folders in the form field `paths` that exist. `expand` adds the last commit of each."""
    form, items, entries = call.form(), list[Json](), list[Entry]()
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        for path in dict.fromkeys(path.strip("/") for path in form.get("paths", [])):
            if entry := records.find_entry(db, commit, path):
                items.append(_file(call.hub, entry))
                entries.append(entry)
            elif below := records.list_entries(db, commit, path):
                items.append(_folder(path, below))
                entries += below
        if is_true(form.get("expand", [""])[0]):
            _add_last_commits(db, items, entries)
    return items


def commits(call: Call) -> Answer:
    """List the commits of a revision, newest first. A page has 50 of them, or `limit`, at most 1000."""
    limit = call.query.get("limit", str(_COMMITS))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST_COMMITS):
        raise Refusal(400, f'"limit" must be a number from 1 to {_MOST_COMMITS}')
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        line = records.history(db, records.find_commit(db, repo, call.parameters["revision"]))
    items: list[Json] = []
    for commit in line:
        item = {"id": commit.id, "title": commit.title, "message": commit.message, "date": iso(commit.date_seconds)}
        items.append({**item, "authors": [{"user": commit.author}]})
    return page(call, items, min(call.hub.settings.page_items, int(limit)))


def _list_items(hub: Hub, entries: list[Entry], folder: str, recursive: bool) -> list[Json]:
    start = len(folder) + 1 if folder else 0
    folders: dict[str, list[Entry]] = {}
    files: list[Entry] = []
    for entry in entries:
        *parents, _ = entry.path[start:].split("/")
        for depth in range(1, len(parents) + 1 if recursive else min(len(parents), 1) + 1):
            folders.setdefault(entry.path[:start] + "/".join(parents[:depth]), []).append(entry)
        if recursive or not parents:
            files.append(entry)
    items = [_folder(path, below) for path, below in folders.items()]
    items += [_file(hub, entry) for entry in files]
    return sorted(items, key=lambda item: str(item["path"]).encode())


def _file(hub: Hub, entry: Entry) -> Json:
    item: Json = {"type": "file", "oid": entry.oid, "size": entry.size_bytes, "path": entry.path}
    item |= lfs_part(entry, "oid")
    if file := hub.xet_file(entry):
        item["xetHash"] = file.hash
    return item


def _folder(path: str, below: list[Entry]) -> Json:
    # Not the id of a git tree, but enough: it changes exactly when something below it changes.
    listing = "".join(f"{entry.path}\0{entry.oid}\n" for entry in below)
    oid = hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}


def _add_last_commits(db: sqlite3.Connection, items: list[Json], entries: list[Entry]) -> None:
    for item in items:
        number = max(entry.changed_in for entry in entries if f"{entry.path}/".startswith(f"{item['path']}/"))
        commit = db.execute("SELECT id, title, date_seconds FROM commits WHERE number = ?", (number,)).fetchone()
        item["lastCommit"] = {"id": commit[0], "title": commit[1], "date": iso(commit[2])}


def lfs_part(entry: Entry, name_of_sha256: str) -> Json:
    """Return the part `lfs` of a file's description. It is empty for a regular file."""
    if not entry.sha256:
        return {}
    pointer = lfs_pointer(entry.sha256, entry.size_bytes)
    return {"lfs": {name_of_sha256: entry.sha256, "size": entry.size_bytes, "pointerSize": len(pointer)}}


def list_refs(call: Call) -> Answer:
    """List the branches and tags, and with `include_prs` also the pull requests."""
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        rows = db.execute(
            'SELECT type, name, id FROM refs JOIN commits ON number = "commit" WHERE refs.repo = ? ORDER BY name',
            (repo.number,),
        ).fetchall()
    by_type: dict[str, list[Json]] = {"branch": [], "tag": [], "pull": []}
    for type_, name, commit_id in rows:
        by_type[type_].append({"name": name, "ref": _PREFIXES[type_] + name, "targetCommit": commit_id})
    answer: Json = {"branches": by_type["branch"], "converts": [], "tags": by_type["tag"]}
    return {**answer, "pullRequests": by_type["pull"]} if call.asks("include_prs") else answer


def create_branch(call: Call) -> Answer:
    """Create a branch at a revision, `main` by default."""
    wish = call.json()
    name = _new_name(call.parameters["branch"])
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        commit = records.find_commit(db, repo, text_of(wish, "startingPoint", "main"))
        if _exists(db, repo.number, "branch", name):
            raise Refusal(409, f"Reference already exists: refs/heads/{name}")
        records.point(db, repo, "branch", name, commit)
    return None


def delete_branch(call: Call) -> Answer:
    name = call.parameters["branch"]
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        if name == "main":
            raise Refusal(403, "The branch main cannot be deleted.")
        if not db.execute(
            "DELETE FROM refs WHERE repo = ? AND type IN ('branch', 'pull') AND name = ?", (repo.number, name)
        ).rowcount:
            raise revision_not_found(name)
    return None


def create_tag(call: Call) -> Answer:
    wish = call.json()
    name = _new_name(text_of(wish, "tag"))
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        if _exists(db, repo.number, "tag", name):
            raise Refusal(409, f"Tag reference exists already: {name}")
        records.point(db, repo, "tag", name, commit, text_of(wish, "message", ""))
    return None


def super_squash(call: Call) -> Answer:
    """Replace the history of a branch with one commit that has the same files."""
    message = text_of(call.json(), "message", "")
    branch = call.parameters["branch"]
    with call.hub.state.writing() as db:
        repo, caller = accounts.reach(db, call, "write")
        head = records.find_head(db, repo, branch)
        title = message or f"Super-squash branch '{branch}' using huggingface_hub"
        commit = records.add_commit(db, repo, None, title, caller.name or "")
        records.copy_files(db, head, commit, touched=True)
        records.point(db, repo, "branch", branch, commit)
        _forget_unreferenced(db, repo)
    return None


def _forget_unreferenced(db: sqlite3.Connection, repo: Repo) -> None:
    """Delete the commits that no ref leads to, and stop counting the LFS files that only they point to."""
    db.execute(
        "DELETE FROM commits WHERE repo = ? AND number NOT IN (WITH RECURSIVE line(number) AS ("
        'SELECT "commit" FROM refs WHERE repo = ? UNION SELECT parent FROM commits JOIN line USING (number))'
        " SELECT number FROM line WHERE number IS NOT NULL)",
        (repo.number, repo.number),
    )
    db.execute(
        "UPDATE objects SET referenced = 0 WHERE repo = ? AND sha256 NOT IN"
        ' (SELECT sha256 FROM files JOIN commits ON number = "commit" WHERE repo = ? AND sha256 IS NOT NULL)',
        (repo.number, repo.number),
    )


def _exists(db: sqlite3.Connection, repo: int, kind: str, name: str) -> bool:
    query = "SELECT 1 FROM refs WHERE repo = ? AND type = ? AND name = ?"
    return db.execute(query, (repo, kind, name)).fetchone() is not None


def _new_name(name: str) -> str:
    # The rules of git-check-ref-format, and no name that could be mistaken for a commit.
    wrong = r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|^[/.-]|[/.]$|\.lock$|/\.|^refs/|^[0-9a-f]{40}$"
    if not name or len(name) > 244 or re.search(wrong, name):
        raise Refusal(400, f"Invalid reference name: {name}")
    return name


RULES = (
    ("GET", "/{kind_prefix}/{owner}/{name}/resolve/{revision}/{path:path}", resolve),
    ("GET", "/{kind_prefix}/{owner}/{name}/raw/{revision}/{path:path}", resolve),
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}", tree),
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}/{path:path}", tree),
    ("POST", "/api/{kind}s/{owner}/{name}/paths-info/{revision}", paths_info),
    ("GET", "/api/{kind}s/{owner}/{name}/commits/{revision}", commits),
    ("GET", "/api/{kind}s/{owner}/{name}/refs", list_refs),
    ("POST", "/api/{kind}s/{owner}/{name}/branch/{branch}", create_branch),
    ("DELETE", "/api/{kind}s/{owner}/{name}/branch/{branch}", delete_branch),
    ("POST", "/api/{kind}s/{owner}/{name}/tag/{revision}", create_tag),
    ("POST", "/api/{kind}s/{owner}/{name}/super-squash/{branch}", super_squash),
)
