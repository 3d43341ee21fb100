"""Show the contents of a revision: its tree, its files, its history."""

import hashlib
import json
import sqlite3

from sharding.localhub import accounts, contents, records
from sharding.localhub.hub import Hub
from sharding.localhub.info import MAX_INDEX_BYTES, lfs_part
from sharding.localhub.records import Commit, Entry
from sharding.localhub.refusals import bad_request, entry_not_found
from sharding.localhub.web import Answer, Call, Json, Rule, is_true, iso, page

_EXPANDED_ITEMS = 50
_COMMITS, _MOST_COMMITS = 50, 1000


def tree(call: Call) -> Answer:
    """List a folder in pages. `recursive` lists all below it, `expand` adds the last commit of each item."""
    folder = call.parameters.get("path", "").strip("/")
    expand = call.asks("expand")
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        entries = records.list_entries(db, commit, folder)
        if folder and not entries:
            raise entry_not_found(folder, commit.id)
        items = _list_items(call.hub, db, entries, folder, call.asks("recursive"), expand)
    size = call.hub.settings.page_items
    return page(call, items, min(size, _EXPANDED_ITEMS) if expand else size)


def paths_info(call: Call) -> Answer:
    """Describe the files and folders in the form field `paths`. Those that do not exist are left out."""
    form = call.form()
    expand = is_true(form.get("expand", [""])[0])
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        items: list[Json] = []
        for path in dict.fromkeys(path.strip("/") for path in form.get("paths", [])):
            if entry := records.find_entry(db, commit, path):
                items.append(_file(call.hub, db, entry, expand))
            elif below := records.list_entries(db, commit, path):
                items.append(_folder(db, path, below, expand))
    return items


def commits(call: Call) -> Answer:
    """List the commits of a revision, newest first. A page has 50 of them, or `limit`, at most 1000."""
    limit = call.query.get("limit", str(_COMMITS))
    if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:9]) <= _MOST_COMMITS):
        raise bad_request(f'"limit" must be a number from 1 to {_MOST_COMMITS}')
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        line = records.history(db, records.find_commit(db, repo, call.parameters["revision"]))
    items = [
        {
            "id": commit.id,
            "title": commit.title,
            "message": commit.message,
            "date": iso(commit.date_seconds),
            "authors": [{"user": commit.author}],
        }
        for commit in line
    ]
    return page(call, items, min(call.hub.settings.page_items, int(limit)))


def safetensors_metadata(call: Call) -> Answer:
    """Return the headers of all files of an index, read from main."""
    path = call.parameters["path"]
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "read")
        commit = records.find_commit(db, repo, "main")
        entry = records.find_entry(db, commit, path)
        if not entry:
            raise entry_not_found(path, commit.id)
        try:
            index = json.loads(contents.read_text(call.hub, db, commit, path, MAX_INDEX_BYTES))
            files = sorted(set(index["weight_map"].values()))
            headers = {file: _header(call.hub, db, commit, file) for file in files}
            return {"index": {"metadata": index.get("metadata")}, "headers": headers}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise bad_request(f"{path} is not an index of safetensors files: {error}") from error


def _header(hub: Hub, db: sqlite3.Connection, commit: Commit, path: str) -> dict[str, object]:
    entry = records.find_entry(db, commit, path)
    if not entry:
        raise entry_not_found(path, commit.id)
    return contents.read_safetensors_header(hub, entry)


def _list_items(
    hub: Hub, db: sqlite3.Connection, entries: list[Entry], folder: str, recursive: bool, expand: bool
) -> list[Json]:
    """Return files and folders sorted by path, each folder before its contents."""
    start = len(folder) + 1 if folder else 0
    folders: dict[str, list[Entry]] = {}
    files: list[Entry] = []
    for entry in entries:
        *parents, _ = entry.path[start:].split("/")
        for depth in range(1, len(parents) + 1 if recursive else min(len(parents), 1) + 1):
            folders.setdefault(entry.path[:start] + "/".join(parents[:depth]), []).append(entry)
        if recursive or not parents:
            files.append(entry)
    items = [_folder(db, path, below, expand) for path, below in folders.items()]
    items += [_file(hub, db, entry, expand) for entry in files]
    return sorted(items, key=lambda item: str(item["path"]).encode())


def _file(hub: Hub, db: sqlite3.Connection, entry: Entry, expand: bool) -> Json:
    item: Json = {"type": "file", "oid": entry.oid, "size": entry.size_bytes, "path": entry.path}
    item |= lfs_part(entry, "oid")
    if file := contents.xet_file(hub, entry):
        item["xetHash"] = file.hash
    if expand:
        item["lastCommit"] = _last_commit(db, entry.changed_in)
        item["securityFileStatus"] = {"status": "unscanned", "avScan": None, "pickleImportScan": None}
    return item


def _folder(db: sqlite3.Connection, path: str, below: list[Entry], expand: bool) -> Json:
    # Not the id of a git tree, but enough: it changes exactly when something below it changes.
    listing = "".join(f"{entry.path}\0{entry.oid}\n" for entry in below)
    oid = hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()
    item: Json = {"type": "directory", "oid": oid, "size": 0, "path": path}
    if expand:
        item["lastCommit"] = _last_commit(db, max(entry.changed_in for entry in below))
    return item


def _last_commit(db: sqlite3.Connection, number: int) -> Json:
    commit = records.commit_by_number(db, number)
    return {"id": commit.id, "title": commit.title, "date": iso(commit.date_seconds)}


RULES = (
    Rule("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}", tree),
    Rule("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}/{path:path}", tree),
    Rule("POST", "/api/{kind}s/{owner}/{name}/paths-info/{revision}", paths_info),
    Rule("GET", "/api/{kind}s/{owner}/{name}/commits/{revision}", commits),
    Rule("GET", "/api/{kind}s/{owner}/{name}/safetensors-metadata/{path:path}", safetensors_metadata),
)
