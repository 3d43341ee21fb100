"""Read and write the links to the page. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import quote, urlencode

from sharding.core.errors import UsageError
from sharding.core.options import Engine, Options, Proving, of_tool
from sharding.page.goals import GOALS, goal_for

_LONGEST = 300
_OF_A_COPY = {one.name for one in fields(Options)} - {"max_shard_size"}  # Without its size.
_ASKED = {option.name: option for option in of_tool("shard") if option.name in _OF_A_COPY}
_USUAL = {name: option.default for name, option in _ASKED.items() if not option.is_switch}
_SWITCHES = tuple(name for name, option in _ASKED.items() if option.is_switch)
_AS_IT_IS = {"to": "to", "job": "job", "result": "result", "compare": "compare", "against": "with"}
"""The fields of a `Wish` that a link has as they are, each with its name there."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a link opens: the form filled in, a job, a result, or a comparison. `sized` is false if it gives no size, or
    only a `misspelt` one. `to` is the repo to write, "" if the page is to propose one."""

    repo: str = ""
    options: Options = Options()
    goal: str = ""
    sized: bool = True
    misspelt: str = ""
    to: str = ""
    private: bool = False
    measure: bool = False
    engine: Engine = "stream"
    proof: Proving = "read"
    job: str = ""
    result: str = ""
    compare: str = ""
    against: str = ""


def read_wish(query: Mapping[str, str]) -> Wish:
    """Return what the query of a link opens. Unknown keys and invalid values are ignored.

    >>> wish = read_wish({"repo": "me/model@v2", "size": "300MB", "colour": "red"})
    >>> wish.repo, wish.options.max_shard_size, wish.options.order, wish.sized
    ('me/model@v2', '300MB', 'natural', True)
    """
    fields = {name: str(value)[:_LONGEST].strip() for name, value in query.items()}
    repo, revision = fields.get("repo", ""), fields.get("revision", "")
    asked: dict[str, Any] = {name: fields[name] for name in _USUAL if name in fields}
    asked |= {"max_shard_size": "".join(fields["size"].split())} if "size" in fields else {}
    asked |= {name: fields.get(name) == "true" for name in _SWITCHES}
    options, taken = Options(), set()
    for name, value in asked.items():
        with suppress(UsageError):
            options = replace(options, **{name: value})
            taken.add(name)
    goal = goal_for(options) or fields.get("goal", "")
    return Wish(
        repo=_at(repo, revision),
        options=options,
        goal=goal if goal in GOALS else "",
        sized="max_shard_size" in taken,
        misspelt="" if "max_shard_size" in taken else fields.get("size", ""),
        private=fields.get("private") == "true",
        measure=fields.get("measure") == "true",
        engine="classic" if fields.get("engine") == "classic" else "stream",
        proof="stated" if fields.get("proof") == "stated" else "read",
        **{field: fields.get(name, "") for field, name in _AS_IT_IS.items()},
    )


def _at(repo: str, revision: str) -> str:
    """Return the name of a repo, or of a folder in it, at a revision that stands beside it in a link.

    >>> _at("me/model", "v2"), _at("me/model/sub", "v2"), _at("me/model@v1", "v2"), _at("me/model", "")
    ('me/model@v2', 'me/model@v2/sub', 'me/model@v1', 'me/model')
    """
    if not repo or not revision or "@" in repo or "://" in repo:
        return repo
    owner_and_name, folder = repo.split("/", 2)[:2], repo.split("/", 2)[2:]
    at = revision if revision.startswith("refs/") else revision.replace("%", "%25").replace("/", "%2F")
    return "/".join([f"{'/'.join(owner_and_name)}@{at}", *folder])[:_LONGEST]


def query_of(wish: Wish) -> str:
    """Return the query of the link for `wish`, which `read_wish` reads back.

    >>> query_of(Wish(repo="me/model", options=Options("300MB"))), query_of(Wish(result="me/model@v2"))
    ('?repo=me/model&size=300MB', '?result=me/model@v2')
    >>> query_of(Wish(compare="me/model", against="me/copy"))
    '?compare=me/model&with=me/copy'
    """
    if wish.job or wish.result:
        pairs = {"job": wish.job} if wish.job else {"result": wish.result}
    elif wish.compare or wish.against:
        pairs = {"compare": wish.compare, "with": wish.against}
    else:
        asked = {name: getattr(wish.options, name) for name in _ASKED}
        named = {"size": str(wish.options.max_shard_size)} if wish.sized else {}
        named |= {name: asked[name] for name, usual in _USUAL.items() if asked[name] != usual}
        named |= {name: "true" for name in _SWITCHES if asked[name]}
        named |= {"to": wish.to} if wish.to else {}
        named |= {name: "true" for name in ("private", "measure") if getattr(wish, name)}
        named |= {"engine": wish.engine} if wish.engine != "stream" else {}
        named |= {"proof": wish.proof} if wish.proof != "read" else {}
        goal = {"goal": wish.goal} if wish.goal else {}
        pairs = {"repo": wish.repo, **goal, **named} if wish.repo else goal
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"
