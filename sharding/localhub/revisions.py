"""Show the contents of a revision: its tree, its files, its history."""

import hashlib
import sqlite3

from sharding.localhub import accounts, records
from sharding.localhub.hub import Hub
from sharding.localhub.info import lfs_part
from sharding.localhub.records import Entry
from sharding.localhub.refusals import bad_request, entry_not_found
from sharding.localhub.web import Answer, Call, Json, is_true, iso, page

_COMMITS, _MOST_COMMITS = 50, 1000


def tree(call: Call) -> Answer:
    """List a folder in pages. `recursive` lists all below it."""
    folder = call.parameters.get("path", "").strip("/")
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        entries = records.list_entries(db, commit, folder)
        if folder and not entries:
            raise entry_not_found(folder, commit.id)
        items = _list_items(call.hub, entries, folder, call.asks("recursive"))
    return page(call, items, call.hub.settings.page_items)


def paths_info(call: Call) -> Answer:
    """Describe the files and folders in the form field `paths`. Those that do not exist are left out.

    `expand` adds the last commit of each file.
    """
    form = call.form()
    expand = is_true(form.get("expand", [""])[0])
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        items: list[Json] = []
        for path in dict.fromkeys(path.strip("/") for path in form.get("paths", [])):
            if entry := records.find_entry(db, commit, path):
                items.append(_file(call.hub, entry) | (_last_commit(db, entry.changed_in) if expand else {}))
            elif below := records.list_entries(db, commit, path):
                items.append(_folder(path, below))
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


def _list_items(hub: Hub, entries: list[Entry], folder: str, recursive: bool) -> list[Json]:
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


def _last_commit(db: sqlite3.Connection, number: int) -> Json:
    commit = records.commit_by_number(db, number)
    return {"lastCommit": {"id": commit.id, "title": commit.title, "date": iso(commit.date_seconds)}}


RULES = (
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}", tree),
    ("GET", "/api/{kind}s/{owner}/{name}/tree/{revision}/{path:path}", tree),
    ("POST", "/api/{kind}s/{owner}/{name}/paths-info/{revision}", paths_info),
    ("GET", "/api/{kind}s/{owner}/{name}/commits/{revision}", commits),
)
