"""Receive uploads over git LFS, in one piece or in parts, at URLs that hold a signed right to write for an hour."""

import hashlib
import hmac
import re
import time
from collections.abc import Iterable
from itertools import chain
from urllib.parse import urlencode

from starlette.responses import JSONResponse, Response

from sharding.localhub import accounts
from sharding.localhub.blobs import read_file
from sharding.localhub.hub import Hub
from sharding.localhub.records import Repo, add_object
from sharding.localhub.refusals import Refusal
from sharding.localhub.web import Answer, Call, Json, link, text_of

_URL_SECONDS = 3600


def batch(call: Call) -> Answer:
    """Return for each object where to send it, except for objects that the repo already has."""
    wish = call.json()
    if wish.get("operation") != "upload" or not isinstance(wish.get("objects"), list):
        raise Refusal(400, "Only uploads are possible here.")
    objects = [_parse_object(item) for item in wish["objects"]]
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "write")
        call.hub.check_quota(db, repo, wants_room=True)
    answers: list[Json] = []
    for sha256, size in objects:
        answer: Json = {"oid": sha256, "size": size}
        if call.hub.known_size(repo, sha256) != size:
            answer["actions"] = _actions(call.hub, repo, sha256, size)
        answers.append(answer)
    in_parts = any(size > call.hub.settings.part_bytes for _, size in objects)
    body = {"transfer": "multipart" if in_parts else "basic", "objects": answers, "hash_algo": "sha256"}
    return JSONResponse(body, media_type="application/vnd.git-lfs+json")


def verify(call: Call) -> Answer:
    sha256, size = _parse_object(call.json())
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "write")
    if call.hub.known_size(repo, sha256) != size:
        raise Refusal(422, f"The object {sha256} has not arrived with {size} bytes.")
    return {}


def put(call: Call) -> Answer:
    repo, sha256, size = _check_signature(call)
    if number := call.parameters.get("number"):
        call.hub.blobs.upload_part(f"{repo}-{sha256}", int(number)).write_bytes(call.body)
    else:
        _keep(call.hub, repo, sha256, size, [call.body])
    return Response(headers={"ETag": f'"{hashlib.sha256(call.body).hexdigest()}"'})


def complete(call: Call) -> Answer:
    repo, sha256, size = _check_signature(call)
    numbers = [str(part.get("partNumber")) for part in call.json().get("parts", []) if isinstance(part, dict)]
    count = -(-size // call.hub.settings.part_bytes)
    if sorted(numbers) != sorted(map(str, range(1, count + 1))):
        raise Refusal(400, f"{count} parts were expected, numbered from 1.")
    upload = f"{repo}-{sha256}"
    parts = (call.hub.blobs.upload_part(upload, number) for number in range(1, count + 1))
    try:
        _keep(call.hub, repo, sha256, size, chain.from_iterable(map(read_file, parts)))
    except FileNotFoundError as error:
        raise Refusal(400, "A part has not arrived.") from error
    call.hub.blobs.drop_upload(upload)
    return {}


def _keep(hub: Hub, repo: int, sha256: str, size: int, chunks: Iterable[bytes]) -> None:
    try:
        hub.blobs.keep_stream(chunks, sha256, size)
    except ValueError as error:
        raise Refusal(400, f"Not the object {sha256}: {error}") from error
    with hub.state.writing() as db:
        if not db.execute("SELECT 1 FROM repos WHERE number = ?", (repo,)).fetchone():
            raise Refusal(404, "The repo is gone.")
        add_object(db, repo, sha256, size)


def _actions(hub: Hub, repo: Repo, sha256: str, size: int) -> Json:
    verify_url = link(hub, f"{repo.path}.git", "info/lfs/objects/verify")
    if size <= hub.settings.part_bytes:
        upload = {"href": _sign(hub, f"/lfs/{sha256}/content", repo, size)}
        return {"upload": upload, "verify": {"href": verify_url}}
    part_bytes = hub.settings.part_bytes
    header = {"chunk_size": str(part_bytes)}
    for number in range(1, -(-size // part_bytes) + 1):
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


def _parse_object(item: object) -> tuple[str, int]:
    if not isinstance(item, dict) or not isinstance(item.get("size"), int) or item["size"] < 0:
        raise Refusal(400, "An object must have a sha256 and a size.")
    sha256 = text_of(item, "oid")
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        raise Refusal(400, f"Invalid oid: {sha256}")
    return sha256, item["size"]


RULES = (
    ("POST", "/{kind_prefix}/{owner}/{name}.git/info/lfs/objects/batch", batch),
    ("POST", "/{kind_prefix}/{owner}/{name}.git/info/lfs/objects/verify", verify),
    ("PUT", "/lfs/{sha256}/content", put),
    ("PUT", "/lfs/{sha256}/parts/{number}", put),
    ("POST", "/lfs/{sha256}/complete", complete),
)
