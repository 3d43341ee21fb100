"""Serve files: whole, in ranges, or only their headers."""

import re
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from sharding.localhub import accounts, records
from sharding.localhub.blobs import CHUNK_BYTES
from sharding.localhub.hub import Hub
from sharding.localhub.records import Commit, Entry, Repo
from sharding.localhub.refusals import Refusal, entry_not_found
from sharding.localhub.web import Answer, Call, link


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
    span = parse_range(call.headers.get("range"), entry.size_bytes) if _range_holds(call, headers["ETag"]) else None
    start, end = span or (0, entry.size_bytes)
    status = 206 if span else 200
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{entry.size_bytes}"
    headers["Content-Length"] = str(end - start)
    if call.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type="application/octet-stream")
    chunks = hub.stream(entry, start, end)
    if end - start <= CHUNK_BYTES:
        return Response(b"".join(chunks), status, headers, media_type="application/octet-stream")
    return StreamingResponse(chunks, status, headers, media_type="application/octet-stream")


def parse_range(header: str | None, size_bytes: int) -> tuple[int, int] | None:
    """Return the requested range `[start, end)`, or None for the whole file (RFC 9110, section 14).

    A malformed header, or one with several ranges, is ignored, as the standard allows. Raises Refusal (416) for a
    range beyond the end.

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


def _range_holds(call: Call, etag: str) -> bool:
    return call.headers.get("if-range", etag) == etag


def _headers(hub: Hub, repo: Repo, commit: Commit, entry: Entry) -> dict[str, str]:
    name = entry.path.rsplit("/", 1)[-1]
    headers = {
        "X-Repo-Commit": commit.id,
        "ETag": f'"{entry.etag}"',
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"inline; filename*=UTF-8''{quote(name, safe='')}",
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


RULES = (
    ("GET", "/{kind_prefix}/{owner}/{name}/resolve/{revision}/{path:path}", resolve),
    ("GET", "/{kind_prefix}/{owner}/{name}/raw/{revision}/{path:path}", resolve),
)
