"""Read what a link to the page asks for, and write such links. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import quote, urlencode

from sharding.core.errors import UsageError
from sharding.core.options import Options, of_tool

_LONGEST = 300
_OF_A_COPY = {one.name for one in fields(Options)} - {"max_shard_size"}
"""What a link says of a copy besides its size."""
_ASKED = {option.name: option for option in of_tool("shard") if option.name in _OF_A_COPY}
_USUAL = {name: option.default for name, option in _ASKED.items() if not option.is_switch}
_SWITCHES = tuple(name for name, option in _ASKED.items() if option.is_switch)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a visitor comes for: a form filled in, a job to attach to, or the result in a repo.

    `repo` may name a revision ("owner/name@v2"). Where it is not `sized`, the size of the options is nobody's choice.
    `to` is the repo to write, "" for one that is proposed.
    """

    repo: str = ""
    options: Options = Options()
    sized: bool = True
    to: str = ""
    private: bool = False
    job: str = ""
    result: str = ""


def read_wish(query: Mapping[str, str]) -> Wish:
    """Return what the query of a link asks for; what it does not know, it leaves out.

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
    return Wish(
        repo=f"{repo}@{revision}" if repo and revision and "@" not in repo else repo,
        options=options,
        sized="max_shard_size" in taken,
        to=fields.get("to", ""),
        private=fields.get("private") == "true",
        job=fields.get("job", ""),
        result=fields.get("result", ""),
    )


def query_of(wish: Wish) -> str:
    """Return the query of the link that `read_wish` reads `wish` from.

    >>> query_of(Wish(repo="me/model", options=Options("300MB"))), query_of(Wish(result="me/model@v2"))
    ('?repo=me/model&size=300MB', '?result=me/model@v2')
    """
    if wish.job or wish.result:
        pairs = {"job": wish.job} if wish.job else {"result": wish.result}
    else:
        source = wish.repo
        pairs = {"repo": source} if source else {}
        pairs |= {"size": str(wish.options.max_shard_size)} if source and wish.sized else {}
        asked = {name: getattr(wish.options, name) for name in _USUAL}
        pairs |= {name: value for name, value in asked.items() if source and value != _USUAL[name]}
        pairs |= {name: "true" for name in _SWITCHES if source and getattr(wish.options, name)}
        pairs |= {"to": wish.to} if source and wish.to else {}
        pairs |= {"private": "true"} if source and wish.private else {}
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"
