"""Read what a link to the page asks for, and write such links. Pure."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args
from urllib.parse import quote, urlencode

from sharding.core.options import Dtype, Order

SIZES = ("200MB", "500MB", "1GB", "2GB", "5GB")
OTHER_SIZE = "Other"
STAGES = "stages"
FEWEST_STAGES = 2
_LONGEST = 300


@dataclass(frozen=True, slots=True)
class Wish:
    """What a visitor comes for: a form filled in, a job to attach to, or the result in a repo."""

    repo: str = ""
    revision: str = ""
    size: str = SIZES[0]
    order: str = "natural"
    job: str = ""
    result: str = ""
    strategy: str = "size"
    dtype: str = "keep"
    variant: str = ""
    allow_overflow: bool = False

    @property
    def choice(self) -> tuple[str, str]:
        """Return the size as one of the choices offered, and in free text."""
        return (self.size, "") if self.size in SIZES else (OTHER_SIZE, self.size)

    @property
    def kind(self) -> tuple[str, int]:
        """Return the strategy as one of the choices offered, and the number of stages."""
        kind, _, count = self.strategy.partition(":")
        return kind, int(count or FEWEST_STAGES)


def wish_of(
    repo: str | None, revision: str | None, variant: str, choice: str, other: str, order: str, kind: str,
    count: float, dtype: str, allow_overflow: bool,
) -> Wish:  # fmt: skip
    """Return what the fields of the form ask for together.

    >>> wish_of("me/model", "", "fp16", "Other", "300MB", "natural", "stages", 4, "keep", False).strategy
    'stages:4'
    """
    return Wish(
        repo=source_of(repo, revision),
        size=(other if choice == OTHER_SIZE else choice).strip(),
        order=order,
        strategy=f"{kind}:{int(count or 0)}" if kind == STAGES else kind,
        dtype=dtype,
        variant=variant,
        allow_overflow=allow_overflow,
    )


def read_wish(query: Mapping[str, str]) -> Wish:
    """Return what the query of a link asks for; what it does not know, it leaves out.

    >>> wish = read_wish({"repo": "me/model@v2", "size": "300MB", "colour": "red"})
    >>> wish.repo, wish.revision, wish.size, wish.order
    ('me/model', 'v2', '300MB', 'natural')
    """
    given = {name: str(value)[:_LONGEST].strip() for name, value in query.items()}
    repo, _, revision = given.get("repo", "").partition("@")
    size = "".join(given.get("size", "").split())
    size = size.upper() if size.upper() in SIZES else size
    order, strategy, dtype = (given.get(name, "") for name in ("order", "strategy", "dtype"))
    return Wish(
        repo=repo,
        revision=given.get("revision", "") or revision,
        size=size if re.fullmatch(r"[\d.]+[A-Za-z]*", size) else SIZES[0],
        order=order if order in get_args(Order) else "natural",
        job=given.get("job", ""),
        result=given.get("result", ""),
        strategy=strategy if re.fullmatch(r"size|blocks|stages:[1-9]\d{0,3}", strategy, re.ASCII) else "size",
        dtype=dtype if dtype in get_args(Dtype) else "keep",
        variant=given.get("variant", ""),
        allow_overflow=given.get("allow_overflow") == "true",
    )


def query_of(wish: Wish) -> str:
    """Return the query of the link that `read_wish` reads `wish` from.

    >>> query_of(Wish(repo="me/model", size="300MB")), query_of(Wish(result="me/model@v2"))
    ('?repo=me/model&size=300MB', '?result=me/model@v2')
    """
    if wish.job or wish.result:
        pairs = {"job": wish.job} if wish.job else {"result": wish.result}
    else:
        source = f"{wish.repo}@{wish.revision}" if wish.revision else wish.repo
        pairs = {"repo": source, "size": wish.size} if source else {}
        usual = {"variant": "", "order": "natural", "strategy": "size", "dtype": "keep"}
        asked = {name: getattr(wish, name) for name in usual}
        pairs |= {name: value for name, value in asked.items() if source and value != usual[name]}
        pairs |= {"allow_overflow": "true"} if source and wish.allow_overflow else {}
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"


def source_of(repo: str | None, revision: str | None) -> str:
    """Return the source that the two fields name together; what the first says of a revision comes first."""
    repo, revision = (repo or "").strip(), (revision or "").strip()
    names_one = "@" in repo or re.search(r"/(tree|commit)/", repo)
    return f"{repo}@{revision}" if revision and repo and not names_one else repo
