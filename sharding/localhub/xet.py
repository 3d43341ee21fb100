"""Give clients access to the Xet store, and copy its files between repos without moving a byte."""

import secrets
import time

from starlette.responses import JSONResponse

from sharding.localhub import accounts, records
from sharding.localhub.refusals import Refusal, bad_request
from sharding.localhub.store import VIEW_SECONDS, XetStore
from sharding.localhub.web import Answer, Call, Json, text_of


def read_token(call: Call) -> Answer:
    """Return the address and token to read the files of a repo."""
    store = _store(call)
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "read")
        records.find_commit(db, repo, call.parameters["revision"])
    if store.grants:
        return _answer(store.grants.endpoint, *store.grants.token("read"))
    return _anything(store.lend_view(), VIEW_SECONDS)


def write_token(call: Call) -> Answer:
    """Return the address and token to write files for a repo."""
    store = _store(call)
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "propose" if call.asks("create_pr") else "write")
        call.hub.check_quota(db, repo)
    if store.grants:
        return _answer(store.grants.endpoint, *store.grants.token("write"))
    return _anything(store.url, call.hub.settings.xet_seconds)


def duplicate(call: Call) -> Answer:
    """Let the target repo point to files of this one. The caller must be allowed to read these."""
    wish = call.json()
    target, files = wish.get("target"), wish.get("files")
    if not isinstance(target, dict) or not isinstance(files, list):
        raise bad_request('"target" and "files" are required')
    failed: list[Json] = []
    done: list[str] = []
    with call.hub.state.writing() as db:
        source, _ = accounts.reach(db, call, "read")
        repo, _ = accounts.reach_repo(db, call, "write", text_of(target, "type", "model"), text_of(target, "name"))
        for file in files:
            sha256 = text_of(file, "sha256")
            row = db.execute(
                "SELECT size_bytes FROM objects WHERE repo = ? AND sha256 = ? AND referenced", (source.number, sha256)
            ).fetchone()
            if row:
                records.add_object(db, repo.number, sha256, row[0])
                done.append(sha256)
            else:
                failed.append({"sha256": sha256, "error": f"{source.id} has no such file"})
    return {"success": done, "failed": failed}


def _store(call: Call) -> XetStore:
    if call.hub.xet is None:
        raise Refusal(404, "Xet is not enabled on this Hub.")
    return call.hub.xet


def _anything(endpoint: str, seconds: int) -> JSONResponse:
    # A local store checks no token, but clients need one.
    return _answer(endpoint, f"xet_{secrets.token_hex(16)}", int(time.time()) + seconds)


def _answer(endpoint: str, token: str, expires: int) -> JSONResponse:
    headers = {"X-Xet-Cas-Url": endpoint, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(expires)}
    return JSONResponse({"casUrl": endpoint, "accessToken": token, "exp": expires}, headers=headers)


RULES = (
    ("GET", "/api/{kind}s/{owner}/{name}/xet-read-token/{revision}", read_token),
    ("GET", "/api/{kind}s/{owner}/{name}/xet-write-token/{revision}", write_token),
    ("POST", "/api/{kind}s/{owner}/{name}/lfs-files/duplicate", duplicate),
)
