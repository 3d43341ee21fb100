"""Identify callers, and decide what they may do with a repo."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from sharding.localhub.records import Commit, Repo, find_commit, find_repo
from sharding.localhub.refusals import Refusal, bad_credentials
from sharding.localhub.web import Call

Right = Literal["see", "read", "propose", "write", "manage"]  # Each also allows what stands before it.
_SCOPES_BY_RIGHT = {
    "read": {"read-repos", "write-repos", "manage-repos"},
    "propose": {"write-repos", "manage-repos"},
    "write": {"write-repos", "manage-repos"},
    "create": {"contribute-repos", "manage-repos"},
    "manage": {"manage-repos"},
}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, and with which kind of token. `name` is None for an anonymous caller."""

    name: str | None = None
    token: Literal["none", "read", "write", "oauth"] = "none"
    scopes: frozenset[str] = frozenset()
    app: str | None = None
    expires_seconds: float | None = None
    namespaces: frozenset[str] = frozenset()  # The caller's own name, and the organisations that they may write to.


def identify(db: sqlite3.Connection, call: Call) -> Caller:
    """Return the caller of a request. Raises Refusal (401) for a token that is unknown or has expired."""
    header = call.headers.get("authorization")
    if not header:
        return Caller()
    token = header.removeprefix("Bearer ").strip()
    name = token.removeprefix("hf_").removesuffix("_read")
    row = db.execute("SELECT name FROM accounts WHERE name = ? AND type = 'user'", (name,)).fetchone()
    if row and token in (f"hf_{name}", f"hf_{name}_read"):
        user = str(row[0])
        return Caller(user, "read" if token.endswith("_read") else "write", namespaces=_namespaces(db, user))
    row = db.execute("SELECT * FROM oauth_tokens WHERE token = ?", (token,)).fetchone()
    if not row or row["expires_seconds"] <= time.time():
        raise bad_credentials()
    user, scopes = row["user"], frozenset(row["scopes"].split())
    return Caller(user, "oauth", scopes, row["app"], row["expires_seconds"], _namespaces(db, user))


def require_user(db: sqlite3.Connection, call: Call) -> tuple[Caller, str]:
    """Return the caller of a request and their name. Raises Refusal (401) for an anonymous caller."""
    caller = identify(db, call)
    if caller.name is None:
        raise _sign_in_first()
    return caller, caller.name


def reach(db: sqlite3.Connection, call: Call, right: Right) -> tuple[Repo, Caller]:
    """Return the repo in the path of a request, and the caller, if they have that right. Raises Refusal."""
    parameters = call.parameters
    return reach_repo(db, call, right, parameters["kind"], f"{parameters['owner']}/{parameters['name']}")


@contextmanager
def reading(call: Call, right: Right) -> Iterator[tuple[sqlite3.Connection, Repo, Commit]]:
    """Yield the database, and the repo and the commit (`main` by default) in the path of a request, as `reach` does."""
    with call.hub.state.reading() as db:
        repo, _ = reach(db, call, right)
        yield db, repo, find_commit(db, repo, call.parameters.get("revision", "main"))


def reach_repo(db: sqlite3.Connection, call: Call, right: Right, kind: str, repo_id: str) -> tuple[Repo, Caller]:
    """Do the same as `reach` for a repo that is not named in the path."""
    caller = identify(db, call)
    owner, _, name = repo_id.partition("/")
    repo = find_repo(db, kind, owner, name)
    if repo is None:
        raise _repo_not_found(caller)
    if refusal := judge(caller, repo, right):
        raise refusal
    return repo, caller


def judge(caller: Caller, repo: Repo, right: Right) -> Refusal | None:
    """Return why `caller` does not have that right to `repo`, or None. A gate is open to the namespace of its repo."""
    if repo.private and repo.owner not in caller.namespaces:
        return _repo_not_found(caller)
    if repo.private and not _covers(caller, repo, "read"):
        return _lacks_scope("read")
    if right == "see":
        return None
    if right == "read":
        return _judge_gate(caller, repo)
    if caller.name is None:
        return _sign_in_first()
    if right == "propose" and caller.token == "write":
        return _judge_gate(caller, repo)
    if repo.owner not in caller.namespaces:
        return Refusal(403, f"You have no right to write to {repo.id}.")
    if caller.token == "read":
        return Refusal(403, "This token can only read. Use one with the role write.")
    return None if _covers(caller, repo, right) else _lacks_scope(right)


def judge_creation(caller: Caller, kind: str, owner: str) -> Refusal | None:
    if caller.name is None:
        return _sign_in_first()
    if owner not in caller.namespaces or caller.token == "read":
        return Refusal(403, f'You don\'t have the rights to create a {kind} under the namespace "{owner}"')
    if caller.token == "oauth" and not caller.scopes & _SCOPES_BY_RIGHT["create"]:
        return _lacks_scope("create")
    return None


def _judge_gate(caller: Caller, repo: Repo) -> Refusal | None:
    message = f"Access to {repo.kind} {repo.id} is restricted."
    if not repo.gated or (repo.owner in caller.namespaces and _covers(caller, repo, "read")):
        return None
    if caller.name is None:
        return Refusal(401, f"{message} You must have access to it and be authenticated to access it.", "GatedRepo")
    if repo.owner not in caller.namespaces:
        return Refusal(403, f"{message} You are not in the authorized list.", "GatedRepo")
    if "gated-repos" not in caller.scopes:
        return Refusal(403, f"{message} The application was not given the scope gated-repos.", "GatedRepo")
    return None


def _covers(caller: Caller, repo: Repo, right: str) -> bool:
    if caller.token != "oauth":
        return True
    contributed = repo.app is not None and repo.app == caller.app and "contribute-repos" in caller.scopes
    needed = _SCOPES_BY_RIGHT[right]
    return bool(caller.scopes & needed) or (contributed and right != "manage")


def _sign_in_first() -> Refusal:
    return Refusal(401, "Invalid username or password.")


def _repo_not_found(caller: Caller) -> Refusal:
    # Also for a repo that is hidden: the caller must not see which of the two it is.
    return Refusal(404 if caller.name else 401, "Repository not found", "RepoNotFound")


def _lacks_scope(right: str) -> Refusal:
    scopes = " or ".join(sorted(_SCOPES_BY_RIGHT[right]))
    return Refusal(403, f"The application does not have the right to do this. It needs the scope {scopes}.")


def _namespaces(db: sqlite3.Connection, user: str) -> frozenset[str]:
    orgs = db.execute("SELECT org FROM members WHERE user = ?", (user,))
    return frozenset({user, *(row[0] for row in orgs)})
