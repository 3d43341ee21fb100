"""Receive uploads over git LFS, in one piece or in parts, at URLs that hold a signed right to write for an hour."""

import hashlib
import hmac
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sharding.localhub import accounts
from sharding.localhub.blobs import read_file
from sharding.localhub.hub import Hub
from sharding.localhub.records import Repo, add_object, lfs_entry
from sharding.localhub.refusals import Refusal
from sharding.localhub.web import Answer, Call, Json, link, text_of, to_call

MAX_PARTS = 10_000
_URL_SECONDS = 3600
_WRITE_BYTES = 1 << 20


def batch(call: Call) -> Answer:
    """Return for each object where to send it, except for objects that the repo already has."""
    wish = call.json()
    if wish.get("operation") != "upload" or not isinstance(wish.get("objects"), list):
        raise Refusal(400, "Only uploads are possible here.")
    objects = [_parse_object(item) for item in wish["objects"]]
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "write")
        call.hub.check_quota(db, repo, [lfs_entry("", sha256, size) for sha256, size in objects])
    in_parts = "multipart" in wish.get("transfers", [])
    above = call.hub.settings.multipart_above_bytes
    multipart = in_parts and any(size > above for _, size in objects)
    answers: list[Json] = []
    for sha256, size in objects:
        answer: Json = {"oid": sha256, "size": size}
        if call.hub.known_size(repo, sha256) != size:
            answer["actions"] = _actions(call.hub, repo, sha256, size, in_parts and size > above)
        answers.append(answer)
    body = {"transfer": "multipart" if multipart else "basic", "objects": answers, "hash_algo": "sha256"}
    return JSONResponse(body, media_type="application/vnd.git-lfs+json")


def verify(call: Call) -> Answer:
    sha256, size = _parse_object(call.json())
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "write")
    if call.hub.known_size(repo, sha256) != size:
        raise Refusal(422, f"The object {sha256} has not arrived with {size} bytes.")
    return {}


def complete(call: Call) -> Answer:
    """Join the parts of a multipart upload, in the order of their numbers."""
    repo, sha256, size = _check_signature(call)
    numbers = [str(part.get("partNumber")) for part in call.json().get("parts", []) if isinstance(part, dict)]
    count = -(-size // call.hub.settings.part_bytes)
    if sorted(numbers) != sorted(map(str, range(1, count + 1))):
        raise Refusal(400, f"{count} parts were expected, numbered from 1.")
    upload = _upload_name(repo, sha256)

    def parts() -> Iterator[bytes]:
        for number in range(1, count + 1):
            yield from read_file(call.hub.blobs.upload_part(upload, number))

    try:
        call.hub.blobs.keep_stream(parts(), sha256, size)
    except FileNotFoundError as error:
        raise Refusal(400, "A part has not arrived.") from error
    except ValueError as error:
        raise Refusal(400, f"Not the object {sha256}: {error}") from error
    _add(call.hub, repo, sha256, size)
    call.hub.blobs.drop_upload(upload)
    return {}


def upload_routes(hub: Hub) -> list[Route]:
    """Return the routes that receive bytes and write them to disk as they arrive."""

    async def put(request: Request) -> Response:
        call = to_call(hub, request)
        repo, sha256, size = _check_signature(call)
        number, arrived = call.parameters.get("number"), hub.blobs.new_part()
        try:
            digest = await _receive(request, arrived, hub.settings.part_bytes if number else size)
            if number:
                arrived.replace(hub.blobs.upload_part(_upload_name(repo, sha256), int(number)))
                return Response(headers={"ETag": f'"{digest[:32]}"'})
            if digest != sha256 or arrived.stat().st_size != size:
                raise Refusal(400, f"The content has sha256 {digest}, not {sha256}.")
            await run_in_threadpool(hub.blobs.keep, arrived, sha256)
            await run_in_threadpool(_add, hub, repo, sha256, size)
            return Response(headers={"ETag": f'"{sha256}"'})
        finally:
            arrived.unlink(missing_ok=True)

    paths = ("/lfs/{sha256}/content", "/lfs/{sha256}/parts/{number}")
    return [Route(path, put, methods=["PUT"]) for path in paths]


async def _receive(request: Request, target: Path, most_bytes: int) -> str:
    """Write a request's body to `target`; return its sha256. Raises Refusal (413) beyond `most_bytes`."""
    digest, received, buffer = hashlib.sha256(), 0, bytearray()

    def flush() -> None:
        digest.update(buffer)
        file.write(buffer)
        buffer.clear()

    with target.open("wb", buffering=0) as file:
        async for chunk in request.stream():
            received += len(chunk)
            if received > most_bytes:
                raise Refusal(413, f"More than {most_bytes} bytes arrived.")
            buffer += chunk
            if len(buffer) >= _WRITE_BYTES:
                await run_in_threadpool(flush)
        await run_in_threadpool(flush)
    return digest.hexdigest()


def _actions(hub: Hub, repo: Repo, sha256: str, size: int, in_parts: bool) -> Json:
    verify_url = link(hub, f"{repo.path}.git", "info/lfs/objects/verify")
    if not in_parts:
        upload = {"href": _sign(hub, f"/lfs/{sha256}/content", repo, size)}
        return {"upload": upload, "verify": {"href": verify_url}}
    part_bytes = hub.settings.part_bytes
    count = -(-size // part_bytes)
    if count > MAX_PARTS:
        raise Refusal(400, f"{size} bytes are more than {MAX_PARTS} parts of {part_bytes} bytes.")
    header = {"chunk_size": str(part_bytes)}
    for number in range(1, count + 1):
        header[f"{number:05d}"] = _sign(hub, f"/lfs/{sha256}/parts/{number}", repo, size)
    href = _sign(hub, f"/lfs/{sha256}/complete", repo, size)
    return {"upload": {"href": href, "header": header}, "verify": {"href": verify_url}}


def _sign(hub: Hub, path: str, repo: Repo, size: int) -> str:
    query = urlencode({"repo": repo.number, "size": size, "expires": int(time.time()) + _URL_SECONDS})
    return f"{hub.address}{path}?{query}&signature={_signature(hub, path, query)}"


def _signature(hub: Hub, path: str, query: str) -> str:
    return hmac.new(hub.signing_key, f"{path}?{query}".encode(), "sha256").hexdigest()


def _check_signature(call: Call) -> tuple[int, str, int]:
    query = urlencode({name: call.query.get(name, "") for name in ("repo", "size", "expires")})
    signature = _signature(call.hub, call.address.removeprefix(call.hub.address), query)
    if not hmac.compare_digest(signature, call.query.get("signature", "")):
        raise Refusal(403, "The signature of this URL does not match.")
    if int(call.query["expires"]) < time.time():
        raise Refusal(403, "This URL has expired.")
    return int(call.query["repo"]), call.parameters["sha256"], int(call.query["size"])


def _add(hub: Hub, repo: int, sha256: str, size: int) -> None:
    with hub.state.writing() as db:
        if not db.execute("SELECT 1 FROM repos WHERE number = ?", (repo,)).fetchone():
            raise Refusal(404, "The repo is gone.")
        add_object(db, repo, sha256, size)


def _parse_object(item: object) -> tuple[str, int]:
    if not isinstance(item, dict) or not isinstance(item.get("size"), int) or item["size"] < 0:
        raise Refusal(400, "An object must have a sha256 and a size.")
    sha256 = text_of(item, "oid")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise Refusal(400, f"Invalid oid: {sha256}")
    return sha256, item["size"]


def _upload_name(repo: int, sha256: str) -> str:
    return f"{repo}-{sha256}"


RULES = (
    ("POST", "/{kind_prefix}/{owner}/{name}.git/info/lfs/objects/batch", batch),
    ("POST", "/{kind_prefix}/{owner}/{name}.git/info/lfs/objects/verify", verify),
    ("POST", "/lfs/{sha256}/complete", complete),
)
