"""Read what a link to the page asks for, and write such links. Pure."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from sharding.core.errors import UsageError
from sharding.core.options import Options

SIZES = ("200MB", "500MB", "1GB", "2GB", "5GB")
_LONGEST = 300
_USUAL = {"variant": "", "order": "natural", "strategy": "size", "dtype": "keep"}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a visitor comes for: a form filled in, a job to attach to, or the result in a repo."""

    repo: str = ""
    revision: str = ""
    options: Options = Options(SIZES[0])
    job: str = ""
    result: str = ""


def read_wish(query: Mapping[str, str]) -> Wish:
    """Return what the query of a link asks for; what it does not know, it leaves out.

    >>> wish = read_wish({"repo": "me/model@v2", "size": "300MB", "colour": "red"})
    >>> wish.repo, wish.revision, wish.options.max_shard_size, wish.options.order
    ('me/model', 'v2', '300MB', 'natural')
    """
    given = {name: str(value)[:_LONGEST].strip() for name, value in query.items()}
    repo, _, revision = given.get("repo", "").partition("@")
    size = "".join(given.get("size", "").split())
    asked: dict[str, Any] = {name: given[name] for name in _USUAL if name in given}
    asked |= {"max_shard_size": size.upper() if size.upper() in SIZES else size}
    asked |= {"allow_overflow": given.get("allow_overflow") == "true"}
    options = Options(SIZES[0])
    for name, value in asked.items():
        with suppress(UsageError):
            options = replace(options, **{name: value})
    return Wish(
        repo=repo,
        revision=given.get("revision", "") or revision,
        options=options,
        job=given.get("job", ""),
        result=given.get("result", ""),
    )


def query_of(wish: Wish) -> str:
    """Return the query of the link that `read_wish` reads `wish` from.

    >>> query_of(Wish(repo="me/model", options=Options("300MB"))), query_of(Wish(result="me/model@v2"))
    ('?repo=me/model&size=300MB', '?result=me/model@v2')
    """
    if wish.job or wish.result:
        pairs = {"job": wish.job} if wish.job else {"result": wish.result}
    else:
        source = f"{wish.repo}@{wish.revision}" if wish.revision else wish.repo
        pairs = {"repo": source, "size": str(wish.options.max_shard_size)} if source else {}
        asked = {name: getattr(wish.options, name) for name in _USUAL}
        pairs |= {name: value for name, value in asked.items() if source and value != _USUAL[name]}
        pairs |= {"allow_overflow": "true"} if source and wish.options.allow_overflow else {}
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"


def source_of(repo: str | None, revision: str | None) -> str:
    """Return the source that the two fields name together; what the first says of a revision comes first."""
    repo, revision = (repo or "").strip(), (revision or "").strip()
    names_one = "@" in repo or re.search(r"/(tree|commit)/", repo)
    return f"{repo}@{revision}" if revision and repo and not names_one else repo
