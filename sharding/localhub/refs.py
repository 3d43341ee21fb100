"""Manage the names of revisions: branches, tags and pull requests."""

import re
import sqlite3

from sharding.localhub import accounts, records
from sharding.localhub.records import Repo
from sharding.localhub.refusals import Refusal, bad_request, revision_not_found
from sharding.localhub.web import Answer, Call, Json, text_of

_PREFIXES = {"branch": "refs/heads/", "tag": "refs/tags/", "pull": ""}


def list_refs(call: Call) -> Answer:
    """List the branches and tags, and with `include_prs` also the pull requests."""
    with call.hub.state.reading() as db:
        repo, _ = accounts.reach(db, call, "see")
        rows = db.execute(
            'SELECT type, name, id FROM refs JOIN commits ON number = "commit" WHERE refs.repo = ? ORDER BY name',
            (repo.number,),
        ).fetchall()
    by_type: dict[str, list[Json]] = {"branch": [], "tag": [], "pull": []}
    for type_, name, commit_id in rows:
        by_type[type_].append({"name": name, "ref": _PREFIXES[type_] + name, "targetCommit": commit_id})
    answer: Json = {"branches": by_type["branch"], "converts": [], "tags": by_type["tag"]}
    return {**answer, "pullRequests": by_type["pull"]} if call.asks("include_prs") else answer


def create_branch(call: Call) -> Answer:
    """Create a branch at a revision, `main` by default."""
    wish = call.json()
    name = _new_name(call.parameters["branch"])
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        commit = records.find_commit(db, repo, text_of(wish, "startingPoint", "main"))
        if _exists(db, repo.number, "branch", name):
            raise Refusal(409, f"Reference already exists: refs/heads/{name}")
        records.point(db, repo, "branch", name, commit)
    return None


def delete_branch(call: Call) -> Answer:
    """Delete a branch. Its commits can still be reached by their ids."""
    name = call.parameters["branch"]
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        if name == "main":
            raise Refusal(403, "The branch main cannot be deleted.")
        if not db.execute(
            "DELETE FROM refs WHERE repo = ? AND type IN ('branch', 'pull') AND name = ?", (repo.number, name)
        ).rowcount:
            raise revision_not_found(name)
    return None


def create_tag(call: Call) -> Answer:
    """Create a tag at a revision."""
    wish = call.json()
    name = _new_name(text_of(wish, "tag"))
    with call.hub.state.writing() as db:
        repo, _ = accounts.reach(db, call, "write")
        commit = records.find_commit(db, repo, call.parameters["revision"])
        if _exists(db, repo.number, "tag", name):
            raise Refusal(409, f"Tag reference exists already: {name}")
        records.point(db, repo, "tag", name, commit, text_of(wish, "message", ""))
    return None


def super_squash(call: Call) -> Answer:
    """Replace the history of a branch with one commit that has the same files."""
    message = text_of(call.json(), "message", "")
    branch = call.parameters["branch"]
    with call.hub.state.writing() as db:
        repo, caller = accounts.reach(db, call, "write")
        head = records.find_head(db, repo, branch)
        title = message or f"Super-squash branch '{branch}' using huggingface_hub"
        commit = records.add_commit(db, repo, None, title, caller.name or "")
        records.copy_files(db, head, commit, touched=True)
        records.point(db, repo, "branch", branch, commit)
        _forget_unreferenced(db, repo)
    return None


def _forget_unreferenced(db: sqlite3.Connection, repo: Repo) -> None:
    """Delete the commits that no ref leads to, and stop counting the LFS files that only they point to."""
    heads = db.execute('SELECT DISTINCT "commit" FROM refs WHERE repo = ?', (repo.number,)).fetchall()
    kept: set[int] = set()
    for (head,) in heads:
        kept |= {commit.number for commit in records.history(db, records.commit_by_number(db, head))}
    all_commits = db.execute("SELECT number FROM commits WHERE repo = ?", (repo.number,)).fetchall()
    db.executemany("DELETE FROM commits WHERE number = ?", [(n,) for (n,) in all_commits if n not in kept])
    db.execute(
        "UPDATE objects SET referenced = 0 WHERE repo = ? AND sha256 NOT IN"
        ' (SELECT sha256 FROM files JOIN commits ON number = "commit" WHERE repo = ? AND sha256 IS NOT NULL)',
        (repo.number, repo.number),
    )


def _exists(db: sqlite3.Connection, repo: int, kind: str, name: str) -> bool:
    query = "SELECT 1 FROM refs WHERE repo = ? AND type = ? AND name = ?"
    return db.execute(query, (repo, kind, name)).fetchone() is not None


def _new_name(name: str) -> str:
    # The rules of git-check-ref-format, and no name that could be mistaken for a commit.
    wrong = r"[\x00-\x20~^:?*\[\\\x7f]|\.\.|@\{|//|^[/.-]|[/.]$|\.lock$|/\.|^refs/|^[0-9a-f]{40}$"
    if not name or len(name) > 244 or re.search(wrong, name):
        raise bad_request(f"Invalid reference name: {name}")
    return name


RULES = (
    ("GET", "/api/{kind}s/{owner}/{name}/refs", list_refs),
    ("POST", "/api/{kind}s/{owner}/{name}/branch/{branch}", create_branch),
    ("DELETE", "/api/{kind}s/{owner}/{name}/branch/{branch}", delete_branch),
    ("POST", "/api/{kind}s/{owner}/{name}/tag/{revision}", create_tag),
    ("POST", "/api/{kind}s/{owner}/{name}/super-squash/{branch}", super_squash),
)
