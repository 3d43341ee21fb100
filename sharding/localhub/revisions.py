"""Show and name revisions: their files, trees and history; branches, tags and pull requests."""

import re
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
    """Answer HEAD and GET for a file, with ranges."""
    hub, path = call.hub, call.parameters["path"]
    with accounts.reading(call, "read") as (db, repo, commit):
        entry = records.find_entry(db, commit, path)
    if entry is None:
        raise entry_not_found(path, commit.id)
    headers = _headers(hub, repo, commit, entry)
    span = parse_range(call.headers.get("range"), entry.size_bytes)
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
    """List a folder in pages. `recursive` lists all below it."""
    folder, size = call.parameters.get("path", "").strip("/"), call.hub.settings.page_items
    with accounts.reading(call, "see") as (db, _, commit):
        entries = records.list_entries(db, commit, folder)
        if folder and not entries:
            raise entry_not_found(folder, commit.id)
    return page(call, _list_items(call.hub, entries, folder, call.asks("recursive")), size)


def paths_info(call: Call) -> Answer:
    """Describe the files and folders in the form field `paths` that exist. `expand` adds the last commit of each."""
    form, items = call.form(), list[Json]()
    with accounts.reading(call, "see") as (db, _, commit):
        for path in dict.fromkeys(path.strip("/") for path in form.get("paths", [])):
            entry = records.find_entry(db, commit, path)
            if not (below := [entry] if entry else records.list_entries(db, commit, path)):
                continue
            item = _file(call.hub, entry) if entry else _folder(path)
            if is_true(form.get("expand", [""])[0]):
                last = (max(entry.changed_in for entry in below),)
                row = db.execute("SELECT id, title, date_seconds FROM commits WHERE number = ?", last).fetchone()
                item["lastCommit"] = {"id": row[0], "title": row[1], "date": iso(row[2])}
            items.append(item)
    return items


def commits(call: Call) -> Answer:
    """List the commits of a revision, newest first. A page has 50 of them, or `limit`, at most 1000."""
    limit = call.query.get("limit", str(_COMMITS))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST_COMMITS):
        raise Refusal(400, f'"limit" must be a number from 1 to {_MOST_COMMITS}')
    with accounts.reading(call, "see") as (db, _, head):
        line = records.history(db, head)
    items: list[Json] = []
    for commit in line:
        item = {"id": commit.id, "title": commit.title, "message": commit.message, "date": iso(commit.date_seconds)}
        items.append({**item, "authors": [{"user": commit.author}]})
    return page(call, items, min(call.hub.settings.page_items, int(limit)))


def _list_items(hub: Hub, entries: list[Entry], folder: str, recursive: bool) -> list[Json]:
    first = folder.count("/") + 2 if folder else 1
    items: dict[str, Json] = {}
    for entry in entries:
        parts = entry.path.split("/")
        for depth in range(first, len(parts) + 1 if recursive else first + 1):
            path = "/".join(parts[:depth])
            items[path] = _file(hub, entry) if depth == len(parts) else _folder(path)
    return [items[path] for path in sorted(items, key=str.encode)]


def _file(hub: Hub, entry: Entry) -> Json:
    item: Json = {"type": "file", "oid": entry.oid, "size": entry.size_bytes, "path": entry.path}
    item |= lfs_part(entry, "oid")
    if file := hub.xet_file(entry):
        item["xetHash"] = file.hash
    return item


def _folder(path: str) -> Json:
    return {"type": "directory", "oid": "0" * 40, "size": 0, "path": path}  # nobody asks for the tree of git


def lfs_part(entry: Entry, name_of_sha256: str) -> Json:
    if not entry.sha256:
        return {}
    pointer = lfs_pointer(entry.sha256, entry.size_bytes)
    return {"lfs": {name_of_sha256: entry.sha256, "size": entry.size_bytes, "pointerSize": len(pointer)}}


def list_refs(call: Call) -> Answer:
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
    return _create_ref(call, "branch", call.parameters["branch"], text_of(call.json(), "startingPoint", "main"))


def create_tag(call: Call) -> Answer:
    return _create_ref(call, "tag", text_of(call.json(), "tag"), call.parameters["revision"])


def _create_ref(call: Call, kind: str, name: str, revision: str) -> Answer:
    # The rules of git-check-ref-format, and no name that could be mistaken for a commit.
    wrong = r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|^[/.-]|[/.]$|\.lock$|/\.|^refs/|^[0-9a-f]{40}$"
    if not name or len(name) > 244 or re.search(wrong, name):
        raise Refusal(400, f"Invalid reference name: {name}")
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        commit = records.find_commit(db, repo, revision)
        query = "SELECT 1 FROM refs WHERE repo = ? AND type = ? AND name = ?"
        if db.execute(query, (repo.number, kind, name)).fetchone():
            raise Refusal(409, f"Reference already exists: {_PREFIXES[kind]}{name}")
        records.point(db, repo, kind, name, commit)
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


RULES = (
    ("GET", "/{kind_prefix}/{owner}/{name}/resolve/{revision}/{path:path}", resolve),
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}", tree),
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}/{path:path}", tree),
    ("POST", "/api/{kind}s/{owner}/{name}/paths-info/{revision}", paths_info),
    ("GET", "/api/{kind}s/{owner}/{name}/commits/{revision}", commits),
    ("GET", "/api/{kind}s/{owner}/{name}/refs", list_refs),
    ("POST", "/api/{kind}s/{owner}/{name}/branch/{branch}", create_branch),
    ("DELETE", "/api/{kind}s/{owner}/{name}/branch/{branch}", delete_branch),
    ("POST", "/api/{kind}s/{owner}/{name}/tag/{revision}", create_tag),
)
