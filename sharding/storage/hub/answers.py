"""Parse the answers of a Hub: the fields that this tool uses, each checked."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from sharding.core.values import FileEntry
from sharding.storage.hub.retry import OddAnswer

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

_T = TypeVar("_T")
_ENTRY = TypeAdapter(FileEntry)
_NO_SENSE = "gives an answer that makes no sense"


class Ref(BaseModel):
    """A branch, a tag or a pull request, and the commit that it points to."""

    name: str
    ref: str
    commit: str = Field(alias="targetCommit")


class Refs(BaseModel):
    """The branches, tags and pull requests of a repo. A Hub may answer `null` for an empty list."""

    branches: list[Ref] | None = None
    tags: list[Ref] | None = None
    pull_requests: list[Ref] | None = Field(None, alias="pullRequests")


class Commit(BaseModel):
    """A commit of a history."""

    id: str
    title: str


class _WhoAmI(BaseModel):
    class Org(BaseModel):
        name: str
        role: str | None = Field(None, alias="roleInOrg")

    class Auth(BaseModel):
        type: str | None = None
        scopes: list[str] | None = None

    name: Annotated[str, Field(min_length=1)]
    orgs: list[Org] | None = None
    auth: Auth | None = None


@dataclass(frozen=True, slots=True)
class Person:
    """The signed-in person, and the namespaces that they may write to: their own first, then their organisations'."""

    name: str
    namespaces: tuple[str, ...]
    may_show_later: bool = True
    """Whether this login may change the visibility of a repo that it has created."""

    def own_id(self, name: str) -> str:
        """Return the full repo id for `name`. Without a namespace, the repo is in this person's own."""
        return name if "/" in name else f"{self.name}/{name}"


def parsed(kind: type[_T] | TypeAdapter[_T], answer: Any) -> _T:
    """Return `answer` as a `kind`. Raises OddAnswer if it does not fit."""
    adapter: TypeAdapter[_T] = kind if isinstance(kind, TypeAdapter) else TypeAdapter(kind)
    try:
        return adapter.validate_python(answer)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"]))
        raise OddAnswer(f"{_NO_SENSE}: {place}{': ' * bool(place)}{problem['msg']:.200}") from error


def checked_commit(answer: Any) -> str:
    """Return the commit that a Hub names. Raises OddAnswer unless it is a SHA-1 in hex."""
    if not isinstance(answer, str) or not re.fullmatch("[0-9a-f]{40}", answer):
        raise OddAnswer(f"{_NO_SENSE}: {answer!r:.100} is not a commit")
    return answer


def checked_flag(answer: Any) -> bool:
    """Return the true or false that a Hub answers. Raises OddAnswer for anything else."""
    if not isinstance(answer, bool):
        raise OddAnswer(f"{_NO_SENSE}: {answer!r:.100} is neither true nor false")
    return answer


def person_of(answer: Any) -> Person:
    """Return the person that a Hub names in answer to "who am I". Raises OddAnswer if it names nobody."""
    who = parsed(_WhoAmI, answer)
    orgs = [org.name for org in who.orgs or () if org.role not in ("read", "no_access")]
    # A login through an application may have no right to change a repo that it has created.
    may_show = who.auth is None or who.auth.type != "oauth" or "manage-repos" in (who.auth.scopes or ())
    return Person(who.name, (who.name, *orgs), may_show)


def listed_files(items: "Iterable[RepoFile | Any]") -> Iterator[FileEntry]:
    """Yield the files of a listing, without its folders. Raises OddAnswer for a file with a field that is not valid."""
    from huggingface_hub import RepoFile

    for item in items:
        if isinstance(item, RepoFile):
            sha256, git_sha1 = (item.lfs.sha256, None) if item.lfs else (None, item.blob_id)
            fields = {"path": item.path, "bytes": item.size, "sha256": sha256, "git_sha1": git_sha1}
            yield parsed(_ENTRY, fields | {"xet_hash": item.xet_hash})
