"""Describe a repo in JSON, as the Hub does."""

import hashlib
import json
import math
import sqlite3
from collections import Counter
from typing import Any

from sharding.localhub import contents
from sharding.localhub.blobs import lfs_pointer
from sharding.localhub.cards import MAX_CARD_BYTES, card_data, card_tags
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Repo, list_entries
from sharding.localhub.web import Json, iso

INDEX = "model.safetensors.index.json"
MAX_INDEX_BYTES = 50_000_000


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
    metadata = card_data(contents.read_text(hub, db, commit, "README.md", MAX_CARD_BYTES))
    answer = _facts(repo, commit, metadata)
    if brief:
        return answer
    entries = list_entries(db, commit)
    answer["siblings"] = [_sibling(entry, blobs) for entry in entries]
    if metadata:
        answer["cardData"] = json.loads(json.dumps(metadata, default=str))
    if repo.kind == "model" and (counts := _count_parameters(hub, db, entries)):
        answer["safetensors"] = {"parameters": counts, "total": sum(counts.values())}
    if config := _read_json(hub, entries, "config.json"):
        answer["config"] = {key: config[key] for key in ("architectures", "model_type") if key in config}
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


def _count_parameters(hub: Hub, db: sqlite3.Connection, entries: list[Entry]) -> dict[str, int]:
    """Return the numbers of parameters by dtype in the files of the index, or in `model.safetensors`."""
    index = _read_json(hub, entries, INDEX).get("weight_map")
    names = set(index.values()) if isinstance(index, dict) else {"model.safetensors"}
    total: Counter[str] = Counter()
    for entry in entries:
        if entry.path in names and entry.sha256:
            total.update(_parameters_of(hub, db, entry))
    return dict(total)


def _parameters_of(hub: Hub, db: sqlite3.Connection, entry: Entry) -> dict[str, int]:
    row = db.execute("SELECT counts_json FROM parameters WHERE sha256 = ?", (entry.sha256,)).fetchone()
    if row:
        known: dict[str, int] = json.loads(row[0])
        return known
    counts: Counter[str] = Counter()
    try:
        for name, tensor in contents.read_safetensors_header(hub, entry).items():
            if name != "__metadata__" and isinstance(tensor, dict):
                counts[tensor["dtype"]] += math.prod(tensor["shape"])
    except (ValueError, KeyError, TypeError):
        counts.clear()  # not a safetensors file: the Hub then shows no numbers
    with hub.state.writing() as writer:
        writer.execute("INSERT OR REPLACE INTO parameters VALUES (?, ?)", (entry.sha256, json.dumps(counts)))
    return dict(counts)


def _read_json(hub: Hub, entries: list[Entry], path: str) -> dict[str, Any]:
    entry = next((entry for entry in entries if entry.path == path and entry.size_bytes <= MAX_INDEX_BYTES), None)
    try:
        value = json.loads(contents.read(hub, entry, 0, entry.size_bytes)) if entry else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
