"""Let users ask for access to a gated repo, and let its owners grant it."""

import sqlite3
import time

from sharding.localhub import accounts
from sharding.localhub.info import stable_id
from sharding.localhub.records import Repo
from sharding.localhub.refusals import Refusal, bad_request, forbidden
from sharding.localhub.web import Answer, Call, Rule, iso, text_of

_STATUSES = ("pending", "accepted", "rejected")


def ask(call: Call) -> Answer:
    """Ask for access. An "auto" gate grants it at once. A "manual" one leaves it to the owners."""
    with call.hub.state.writing() as db:
        _, user = accounts.require_user(db, call)
        repo, _ = accounts.reach(db, call, "see")
        if not repo.gated:
            raise bad_request(f"{repo.id} is not gated.")
        db.execute(
            "INSERT OR IGNORE INTO grants VALUES (?, ?, ?, ?)",
            (repo.number, user, "accepted" if repo.gated == "auto" else "pending", time.time()),
        )
        status = db.execute("SELECT status FROM grants WHERE repo = ? AND user = ?", (repo.number, user)).fetchone()[0]
    return {"status": status}


def list_requests(call: Call) -> Answer:
    """List for the owners the requests with a given status."""
    with call.hub.state.reading() as db:
        repo = _own_gated(db, call)
        rows = db.execute(
            "SELECT user, status, asked_seconds FROM grants WHERE repo = ? AND status = ? ORDER BY asked_seconds",
            (repo.number, call.parameters["status"]),
        ).fetchall()
    return [
        {
            "requestId": stable_id(f"request {repo.number} {user}"),
            "user": {"user": user, "fullname": user.title()},
            "status": status,
            "timestamp": iso(asked),
        }
        for user, status, asked in rows
    ]


def handle(call: Call) -> Answer:
    """Set the status of a user's request."""
    wish = call.json()
    status = text_of(wish, "status")
    if status not in _STATUSES:
        raise bad_request(f'"status" must be one of [{", ".join(_STATUSES)}]')
    with call.hub.state.writing() as db:
        repo = _own_gated(db, call)
        changed = db.execute(
            "UPDATE grants SET status = ? WHERE repo = ? AND user = ?", (status, repo.number, text_of(wish, "user"))
        )
        if not changed.rowcount:
            raise Refusal(404, "This user has not asked for access.")
    return {"status": status}


def grant(call: Call) -> Answer:
    """Give access to a user who has not asked."""
    user = text_of(call.json(), "user")
    with call.hub.state.writing() as db:
        repo = _own_gated(db, call)
        if not db.execute("SELECT 1 FROM accounts WHERE name = ?", (user,)).fetchone():
            raise Refusal(404, "User not found")
        db.execute("INSERT OR REPLACE INTO grants VALUES (?, ?, 'accepted', ?)", (repo.number, user, time.time()))
    return {"status": "accepted"}


def _own_gated(db: sqlite3.Connection, call: Call) -> Repo:
    repo, _ = accounts.reach(db, call, "write")
    if not repo.gated:
        raise forbidden(f"{repo.id} is not gated.")
    return repo


RULES = (
    Rule("POST", "/{kind_prefix}/{owner}/{name}/ask-access", ask),
    Rule("POST", "/api/{kind}s/{owner}/{name}/user-access-request/handle", handle),
    Rule("POST", "/api/{kind}s/{owner}/{name}/user-access-request/grant", grant),
    Rule("GET", "/api/{kind}s/{owner}/{name}/user-access-request/{status}", list_requests),
)
