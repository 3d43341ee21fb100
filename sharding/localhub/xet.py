"""Give clients access to the Xet store, and serve it over HTTP with the endpoints that hf-xet 1.8 uses."""

import hashlib
import secrets
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from blake3 import blake3
from starlette.responses import JSONResponse, Response, StreamingResponse

from sharding.localhub import accounts, records
from sharding.localhub.blobs import new_file, read_file
from sharding.localhub.refusals import Refusal, bad_credentials
from sharding.localhub.revisions import parse_range
from sharding.localhub.store import VIEW_SECONDS, Right, XetStore, hash_at, name_of_grant, parse_shard
from sharding.localhub.web import Answer, Call, Json, text_of

_HEADER_BYTES = 8
_BINARY = "application/octet-stream"
_RECORD_BYTES, _FOOTER_BYTES = 48, 200
_END = b"\xff" * 32 + bytes(16)
_ASKED_FOR = 1024  # Clients ask about one chunk in so many, and about the first chunk of every file.
_KNOWN_SECONDS = 7 * 86400  # How long clients may rely on an answer about a chunk.


def give_access(call: Call) -> Answer:
    """Return the address and token to read the files of a repo, or to write files for it."""
    store, to_write = call.hub.xet, call.address.split("/")[-2] == "xet-write-token"
    if store is None:
        raise Refusal(404, "Xet is not enabled on this Hub.")
    with call.hub.state.reading() as db:
        if to_write:
            repo, _ = accounts.reach(db, call, "propose" if call.asks("create_pr") else "write")
            call.hub.check_quota(db, repo, wants_room=True)
        else:
            repo, _ = accounts.reach(db, call, "read")
            records.find_commit(db, repo, call.parameters["revision"])
    if store.grants:
        return _answer(store.grants.endpoint, *store.grants.token("write" if to_write else "read"))
    # A local store checks no token, but clients need one.
    endpoint, seconds = (store.url, call.hub.settings.xet_seconds) if to_write else (store.lend_view(), VIEW_SECONDS)
    return _answer(endpoint, f"xet_{secrets.token_hex(16)}", int(time.time()) + seconds)


def duplicate(call: Call) -> Answer:
    """Let the target repo point to files of this one. The caller must be allowed to read these."""
    wish = call.json()
    target, files = wish.get("target"), wish.get("files")
    if not isinstance(target, dict) or not isinstance(files, list):
        raise Refusal(400, '"target" and "files" are required')
    failed, done = list[Json](), list[str]()
    with call.hub.state.writing() as db:
        source, _ = accounts.reach(db, call, "read")
        repo, _ = accounts.reach_repo(db, call, "write", text_of(target, "type", "model"), text_of(target, "name"))
        for file in files:
            sha256 = text_of(file, "sha256")
            query = "SELECT size_bytes FROM objects WHERE repo = ? AND sha256 = ? AND referenced"
            row = db.execute(query, (source.number, sha256)).fetchone()
            if row:
                records.add_object(db, repo.number, sha256, row[0])
                done.append(sha256)
            else:
                failed.append({"sha256": sha256, "error": f"{source.id} has no such file"})
    return {"success": done, "failed": failed}


def _answer(endpoint: str, token: str, expires: int) -> JSONResponse:
    headers = {"X-Xet-Cas-Url": endpoint, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(expires)}
    return JSONResponse({"casUrl": endpoint, "accessToken": token, "exp": expires}, headers=headers)


def put_xorb(call: Call) -> Answer:
    with new_file(_served(call, "write").xorb(_hash(call))) as file:
        file.write(call.body)
    return {"was_inserted": True}


def put_shard(call: Call) -> Answer:
    store = _served(call, "write")
    try:
        files = parse_shard(call.body)
    except ValueError as error:
        raise Refusal(400, str(error)) from error
    if missing := [part.xorb for file in files for part in file.segments if not store.xorb(part.xorb).exists()]:
        raise Refusal(400, f"The xorb {missing[0]} has not arrived.")
    with new_file(store.shards / f"{hashlib.sha256(call.body).hexdigest()}.mdb") as file:
        file.write(call.body)
    return {"result": 1}


def reconstruct(call: Call) -> Answer:
    """Return the xorbs, and their bytes, that hold the requested range of a file."""
    store, name = _served(call, "read"), _hash(call)
    file = store.find(name)
    if file is None:
        raise Refusal(404, f"The store has no file {name}.")
    start, end = parse_range(call.headers.get("range"), file.size_bytes) or (0, file.size_bytes)
    terms: list[Json] = []
    parts: dict[str, list[Json]] = {}
    offset = position = 0
    granted = name_of_grant(call.headers["authorization"])
    for segment in file.segments:
        chunks = _chunks(store.xorb(segment.xorb))[segment.first : segment.end]
        held: list[tuple[int, int, int, int]] = []
        for number, (place, packed, size) in enumerate(chunks, segment.first):
            if position < end and position + size > start:
                offset = start - position if not terms and not held else offset
                held.append((number, place, place + packed, size))
            position += size
        if held:
            span = {"start": held[0][0], "end": held[-1][0] + 1}
            terms.append({"hash": segment.xorb, "unpacked_length": sum(chunk[3] for chunk in held), "range": span})
            url = f"{call.hub.address}/cas/xorbs/{segment.xorb}?grant={granted}"
            url_range = {"start": held[0][1], "end": held[-1][2] - 1}
            parts.setdefault(segment.xorb, []).append({"range": span, "url": url, "url_range": url_range})
    return {"offset_into_first_range": offset, "terms": terms, "fetch_info": parts}


def get_xorb(call: Call) -> Answer:
    """Send a range of a xorb. Anyone with its address may read it: the real Hub signs such addresses."""
    store = call.hub.xet
    path = store.xorb(_hash(call)) if store and store.grants else Path()
    if not path.is_file():
        raise Refusal(404, "The store has no such xorb.")
    size = path.stat().st_size
    start, end = parse_range(call.headers.get("range"), size) or (0, size)
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{size}", "Content-Length": str(end - start)}
    return StreamingResponse(read_file(path, start, end), 206, headers, media_type=_BINARY)


def find_chunk(call: Call) -> Answer:
    """Return the xorbs that were uploaded together with a chunk, so that the client need not send their chunks."""
    store, name = _served(call, "read"), _hash(call)
    shard = next((path for path in store.shards.glob("*.mdb") if name in chunks_to_ask_for(path)), None)
    if store.grants is None or shard is None:
        raise Refusal(404, f"The store does not know the chunk {name}.")
    key, now = hashlib.sha256(b"chunks" + store.grants.key).digest(), int(time.time())
    return Response(keyed_shard(shard.read_bytes(), key, now, now + _KNOWN_SECONDS), media_type=_BINARY)


def hear(call: Call) -> Answer:
    """Accept the telemetry of clients and discard it. They wait for an answer before they end."""
    return {}


def _served(call: Call, right: Right) -> XetStore:
    store = call.hub.xet
    if store is None or store.grants is None:
        raise Refusal(404, "The Xet store is not served over HTTP.")
    if not store.grants.allows(call.headers.get("authorization", ""), right):
        raise bad_credentials()
    return store


def _hash(call: Call) -> str:
    name = call.parameters["hash"]
    if len(name) != 64 or not name.isalnum():
        raise Refusal(400, "The hash must have 64 digits.")
    return name


@lru_cache(maxsize=1000)
def _chunks(path: Path) -> tuple[tuple[int, int, int], ...]:
    """Return place, size with header and unpacked size of each chunk of a xorb; the footer begins with no zero."""
    chunks, place = [], 0
    with path.open("rb") as xorb:
        while (header := xorb.read(_HEADER_BYTES)) and header[0] == 0:
            packed, size = int.from_bytes(header[1:4], "little"), int.from_bytes(header[5:8], "little")
            chunks.append((place, _HEADER_BYTES + packed, size))
            place = xorb.seek(packed, 1)
    return tuple(chunks)


@lru_cache(maxsize=1000)
def chunks_to_ask_for(path: Path) -> frozenset[str]:
    """Return the hashes of the chunks of an uploaded shard that clients may ask for."""
    shard = path.read_bytes()
    starts = {(file.segments[0].xorb, file.segments[0].first) for file in parse_shard(shard) if file.segments}
    hashes = ((hash_at(shard, place), chunk) for place, chunk in _records(shard) if chunk)
    return frozenset(name for name, chunk in hashes if chunk in starts or int(name[-16:], 16) % _ASKED_FOR == 0)


def keyed_shard(shard: bytes, key: bytes, created: int, expires: int) -> bytes:
    """Return the xorbs of an uploaded shard without its files, valid between two times in seconds since 1970. Chunks
    are hashed with a key of 32 bytes, which the answer states. So only those who have a chunk recognize it."""
    records = bytearray()
    for place, chunk in _records(shard):
        record = shard[place : place + _RECORD_BYTES]
        records += blake3(record[:32], key=key).digest() + record[32:] if chunk else record
    start = 2 * _RECORD_BYTES  # after the header and an empty list of files
    end = start + len(records) + _RECORD_BYTES
    # Three empty tables of 0 entries follow the lists. A client then reads the lists.
    places = struct.pack("<9Q", 1, _RECORD_BYTES, start, end, 0, end, 0, end, 0)
    footer = places + key + struct.pack("<2Q", created, expires) + bytes(72) + struct.pack("<Q", end)
    return shard[:40] + struct.pack("<Q", _FOOTER_BYTES) + _END + records + _END + footer


def _records(shard: bytes) -> Iterator[tuple[int, tuple[str, int] | None]]:
    """Yield where each record of a xorb or a chunk starts, and for a chunk its xorb and number. A xorb has one with
    its hash and number of chunks, then one for each chunk. A hash of ones ends the list."""
    place = next(
        place for place in range(_RECORD_BYTES, len(shard), _RECORD_BYTES) if shard.startswith(_END[:32], place)
    )
    place += _RECORD_BYTES
    while place < len(shard) and not shard.startswith(_END[:32], place):
        xorb, (chunks,) = hash_at(shard, place), struct.unpack_from("<I", shard, place + 36)
        yield place, None
        for number in range(chunks):
            place += _RECORD_BYTES
            yield place, (xorb, number)
        place += _RECORD_BYTES


RULES = (
    ("GET", "/api/{kind}s/{owner}/{name}/xet-read-token/{revision}", give_access),
    ("GET", "/api/{kind}s/{owner}/{name}/xet-write-token/{revision}", give_access),
    ("POST", "/api/{kind}s/{owner}/{name}/lfs-files/duplicate", duplicate),
    ("GET", "/cas/xorbs/{hash}", get_xorb),
    ("GET", "/cas/v1/reconstructions/{hash}", reconstruct),
    ("POST", "/cas/v1/xorbs/default/{hash}", put_xorb),
    ("POST", "/cas/v1/shards", put_shard),
    ("POST", "/v1/telemetry", hear),
    ("GET", "/cas/v1/chunks/default/{hash}", find_chunk),
)
