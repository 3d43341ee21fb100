"""Describe a repo in JSON, as the Hub does."""

import hashlib
import json
import sqlite3

from sharding.localhub.blobs import lfs_pointer
from sharding.localhub.cards import MAX_CARD_BYTES, card_data, card_tags
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Repo, list_entries
from sharding.localhub.web import Json, iso


def describe(
    hub: Hub,
    db: sqlite3.Connection,
    repo: Repo,
    commit: Commit,
    *,
    blobs: bool = False,
    brief: bool = False,
) -> Json:
    """Return the description of a repo at a commit: all of it, or the `brief` one of lists."""
    metadata = card_data(hub.read_text(db, commit, "README.md", MAX_CARD_BYTES))
    answer = _facts(repo, commit, metadata)
    if brief:
        return answer
    answer["siblings"] = [_sibling(entry, blobs) for entry in list_entries(db, commit)]
    if metadata:
        answer["cardData"] = json.loads(json.dumps(metadata, default=str))
    return answer


def _facts(repo: Repo, commit: Commit, metadata: Json) -> Json:
    """Return the parts that need no reading of files."""
    return {
        "_id": stable_id(f"{repo.kind} {repo.number}"),
        "id": repo.id,
        **({"modelId": repo.id} if repo.kind == "model" else {}),
        "author": repo.owner,
        "private": repo.private,
        "gated": repo.gated or False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "sha": commit.id,
        "createdAt": iso(repo.created_seconds),
        "lastModified": iso(commit.date_seconds),
        "tags": [*card_tags(metadata), "region:us"],
        **{key: metadata[key] for key in ("library_name", "pipeline_tag", "sdk") if key in metadata},
    }


def stable_id(text: str) -> str:
    """Return 24 hexadecimal digits as the id of a repo or an account."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _sibling(entry: Entry, blobs: bool) -> Json:
    if not blobs:
        return {"rfilename": entry.path}
    return {"rfilename": entry.path, "size": entry.size_bytes, "blobId": entry.oid, **lfs_part(entry, "sha256")}


def lfs_part(entry: Entry, name_of_sha256: str) -> Json:
    """Return the part `lfs` of a file's description. It is empty for a regular file."""
    if not entry.sha256:
        return {}
    pointer = lfs_pointer(entry.sha256, entry.size_bytes)
    return {"lfs": {name_of_sha256: entry.sha256, "size": entry.size_bytes, "pointerSize": len(pointer)}}
