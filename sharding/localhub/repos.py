"""Create, list, describe, change, copy and delete repos."""

import json
import re
import sqlite3

from sharding.localhub import accounts, records
from sharding.localhub.accounts import Caller
from sharding.localhub.cards import MAX_CARD_BYTES, card_data
from sharding.localhub.commits import Draft, write_commit
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Kind, Repo
from sharding.localhub.refusals import Refusal
from sharding.localhub.revisions import lfs_part
from sharding.localhub.web import Answer, Call, Json, iso, link, page, stable_id, text_of

_LFS_PATTERNS = """
*.7z *.arrow *.bin *.bz2 *.ckpt *.ftz *.gz *.h5 *.joblib *.lfs.* *.mlmodel *.model *.msgpack *.npy *.npz *.onnx *.ot
*.parquet *.pb *.pickle *.pkl *.pt *.pth *.rar *.safetensors saved_model/**/* *.tar.* *.tar *.tflite *.tgz *.wasm
*.xz *.zip *.zst *tfevents*
"""
GIT_ATTRIBUTES = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in _LFS_PATTERNS.split())


def create(call: Call) -> Answer:
    """Create a repo with one commit, which holds `.gitattributes`."""
    wish, blobs = call.json(), call.hub.blobs
    kind = _kind(wish)
    with call.hub.state.writing() as db:
        caller, user = accounts.require_user(db, call)
        repo_id = f"{text_of(wish, 'organization', user)}/{text_of(wish, 'name')}"
        owner, name = _check_new_id(call.hub, db, caller, kind, repo_id)
        repo = records.add_repo(db, kind, owner, name, _is_private(wish), caller.app)
        attributes = Entry(".gitattributes", blobs.put(GIT_ATTRIBUTES.encode()), len(GIT_ATTRIBUTES), None, 0)
        write_commit(db, repo, "main", None, user, Draft("initial commit", [attributes]))
    return {"url": link(call.hub, repo.path), "name": repo.id, "id": str(repo.number)}


def delete(call: Call) -> Answer:
    """Delete a repo with all its commits. The bytes of its files stay on the disk."""
    wish = call.json()
    with call.hub.state.writing() as db:
        _, user = accounts.require_user(db, call)
        repo_id = f"{text_of(wish, 'organization', user)}/{text_of(wish, 'name')}"
        repo, _ = accounts.reach_repo(db, call, "manage", _kind(wish), repo_id)
        db.execute("DELETE FROM repos WHERE number = ?", (repo.number,))
    return None


def move(call: Call) -> Answer:
    """Rename a repo. The old name is free at once, while the real Hub redirects it."""
    wish = call.json()
    with call.hub.state.writing() as db:
        repo, caller = accounts.reach_repo(db, call, "manage", _kind(wish), text_of(wish, "fromRepo"))
        owner, name = _check_new_id(call.hub, db, caller, repo.kind, text_of(wish, "toRepo"))
        db.execute("UPDATE repos SET owner = ?, name = ? WHERE number = ?", (owner, name, repo.number))
    return None


def change_settings(call: Call) -> Answer:
    wish = call.json()
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "manage")
        private, gated = repo.private, repo.gated
        if "visibility" in wish or "private" in wish:
            private = _is_private(wish)
        if "gated" in wish:
            if wish["gated"] not in ("auto", "manual", False):
                raise Refusal(400, '"gated" must be one of [auto, manual, false]')
            gated = wish["gated"] or None
        db.execute("UPDATE repos SET private = ?, gated = ? WHERE number = ?", (private, gated, repo.number))
    return {"private": private, "visibility": "private" if private else "public", "gated": gated or False}


def duplicate(call: Call) -> Answer:
    """Copy the files of a repo's main branch into a new repo."""
    wish = call.json()
    with call.hub.state.writing() as db:
        source, caller = accounts.reach(db, call, "read")
        private = wish.get("visibility") == "private" or (source.private and wish.get("visibility") != "public")
        owner, name = _check_new_id(call.hub, db, caller, source.kind, text_of(wish, "repository"))
        repo = records.add_repo(db, source.kind, owner, name, private, caller.app)
        entries = records.list_entries(db, records.find_head(db, source, "main"))
        write_commit(db, repo, "main", None, caller.name or "", Draft(f"Duplicate from {source.id}", entries))
    return {"url": link(call.hub, repo.path), "filesCopyPending": False}


def show(call: Call) -> Answer:
    """Describe a repo, at a revision if the path names one."""
    with accounts.reading(call, "see") as (db, repo, commit):
        return describe(call.hub, db, repo, commit, blobs=call.asks("blobs"))


def search(call: Call) -> Answer:
    """List the repos that the caller may see, newest first. The query can have `author`, `search`, `limit`, `full`."""
    words, limit = call.query.get("search", "").lower(), call.query.get("limit", "")
    if limit and not limit.isdecimal():
        raise Refusal(400, '"limit" must be a number')
    with call.hub.state.reading() as db:
        caller = accounts.identify(db, call)
        repos = records.list_repos(db, call.parameters["kind"], call.query.get("author"))
        seen = [repo for repo in repos if words in repo.id.lower() and not accounts.judge(caller, repo, "see")]
        heads = [(repo, records.find_commit(db, repo, "main")) for repo in seen]
        items = [describe(call.hub, db, *head, brief=not call.asks("full")) for head in heads]
    return page(call, items, min(max(1, int(limit or 1000)), call.hub.settings.page_items))


def check_access(call: Call) -> Answer:
    with call.hub.state.reading() as db:
        accounts.reach(db, call, "write" if call.address.endswith("/write") else "read")
    return None


def describe(
    hub: Hub, db: sqlite3.Connection, repo: Repo, commit: Commit, *, blobs: bool = False, brief: bool = False
) -> Json:
    """Return the description of a repo at a commit: all of it, or the `brief` one of lists."""
    metadata = card_data(hub.read_text(db, commit, "README.md", MAX_CARD_BYTES))
    answer: Json = {"_id": stable_id(f"{repo.kind} {repo.number}"), "id": repo.id, "author": repo.owner}
    answer |= {"modelId": repo.id} if repo.kind == "model" else {}
    answer |= {"private": repo.private, "gated": repo.gated or False, "disabled": False, "downloads": 0, "likes": 0}
    answer |= {"createdAt": iso(repo.created_seconds), "lastModified": iso(commit.date_seconds), "sha": commit.id}
    answer |= {key: metadata[key] for key in ("library_name", "pipeline_tag", "sdk", "tags") if key in metadata}
    if not brief:
        answer["siblings"] = [_sibling(entry, blobs) for entry in records.list_entries(db, commit)]
        if metadata:
            answer["cardData"] = json.loads(json.dumps(metadata, default=str))
    return answer


def _sibling(entry: Entry, blobs: bool) -> Json:
    if not blobs:
        return {"rfilename": entry.path}
    return {"rfilename": entry.path, "size": entry.size_bytes, "blobId": entry.oid, **lfs_part(entry, "sha256")}


def _check_new_id(hub: Hub, db: sqlite3.Connection, caller: Caller, kind: Kind, repo_id: str) -> tuple[str, str]:
    owner, _, name = repo_id.partition("/")
    # The rules of huggingface_hub.utils.validate_repo_id, and the Hub's own limit.
    if not re.fullmatch(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?", name, re.ASCII) or len(name) > 96 or "--" in name:
        raise Refusal(400, f'Invalid repo name: {repo_id} - only letters, digits, "-", "_" and "." are allowed')
    if ".." in name or name.endswith((".git", ".ipynb")):
        raise Refusal(400, f"Invalid repo name: {repo_id}")
    if refusal := accounts.judge_creation(caller, kind, owner):
        raise refusal
    if there := records.find_repo(db, kind, owner, name):
        raise Refusal(409, f"You already created this {kind} repo: {there.id}", url=link(hub, there.path))
    return owner, name


def _is_private(wish: Json) -> bool:
    return wish.get("visibility") == "private" or wish.get("private") is True


def _kind(wish: Json) -> Kind:
    for kind in records.KINDS:
        if kind == (wish.get("type") or "model"):
            return kind
    raise Refusal(400, f'"type" must be one of [{", ".join(records.KINDS)}]')


RULES = (
    ("POST", "/api/repos/create", create),
    ("DELETE", "/api/repos/delete", delete),
    ("POST", "/api/repos/move", move),
    ("GET", "/api/{kind}s", search),
    ("GET", "/api/{kind}s/{owner}/{name}", show),
    ("GET", "/api/{kind}s/{owner}/{name}/revision/{revision}", show),
    ("GET", "/api/{kind}s/{owner}/{name}/auth-check", check_access),
    ("GET", "/api/{kind}s/{owner}/{name}/auth-check/write", check_access),
    ("PUT", "/api/{kind}s/{owner}/{name}/settings", change_settings),
    ("POST", "/api/{kind}s/{owner}/{name}/duplicate", duplicate),
)
