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
_OPTIONS = sorted(of_tool("shard"), key=lambda option: option.is_switch)
_ASKED = {option.name: option for option in _OPTIONS if option.name in _OF_A_COPY}
_UNUSUAL = {"private": (True, "true"), "measure": (True, "true"), "engine": ("classic",) * 2, "proof": ("stated",) * 2}
"""The fields of a `Wish` with two values: the one that a link names, and its word there."""
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
    asked: dict[str, Any] = {name: fields[name] for name in _ASKED if name in fields}
    asked |= {name: text == "true" for name, text in asked.items() if _ASKED[name].is_switch}
    asked |= {"max_shard_size": "".join(fields["size"].split())} if "size" in fields else {}
    options, taken = Options(), set()
    for name, value in asked.items():
        with suppress(UsageError):
            options = replace(options, **{name: value})
            taken.add(name)
    goal = goal_for(options) or fields.get("goal", "")
    more: dict[str, Any] = {field: fields.get(name, "") for field, name in _AS_IT_IS.items()}
    more |= {name: value for name, (value, word) in _UNUSUAL.items() if fields.get(name) == word}
    return Wish(
        repo=_at(repo, revision),
        options=options,
        goal=goal if goal in GOALS else "",
        sized="max_shard_size" in taken,
        misspelt="" if "max_shard_size" in taken else fields.get("size", ""),
        **more,
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
        named = {"size": str(wish.options.max_shard_size)} if wish.sized else {}
        asked = ((option, getattr(wish.options, name)) for name, option in _ASKED.items())
        named |= {one.name: "true" if one.is_switch else value for one, value in asked if value != one.default}
        named |= {"to": wish.to} if wish.to else {}
        named |= {name: word for name, (value, word) in _UNUSUAL.items() if getattr(wish, name) == value}
        goal = {"goal": wish.goal} if wish.goal else {}
        pairs = {"repo": wish.repo, **goal, **named} if wish.repo else goal
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"
