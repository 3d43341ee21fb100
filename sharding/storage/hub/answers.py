"""Parse the answers of a Hub, each field checked, and retry what may pass: a busy server, a broken connection."""

import json
import random
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import httpx2
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.utils import parse_ratelimit_headers
from pydantic import BaseModel, Field, StrictBool, TypeAdapter, ValidationError

from sharding.core.limits import LONGEST_WAIT_SECONDS
from sharding.core.values import FileEntry

if TYPE_CHECKING:
    from huggingface_hub import RepoFile

NETWORK_TRIES = 6  # Attempts at a request, and attempts at a read after the last byte arrived.
NETWORK_WAIT_SECONDS = 0.25  # Half the wait before the second attempt. The wait doubles with each attempt.
LONGEST_JITTER_SECONDS = 10.0  # Twice the most that is added to a wait, so that readers do not come back together.
BUSY = (408, 429, 500, 502, 503, 504)  # The status of an answer to a request that may succeed later.
UNREADABLE = (json.JSONDecodeError, UnicodeDecodeError)  # The errors for an answer that is not JSON.


class GarbledAnswer(Exception):  # noqa: N818 - it is the answer that is garbled
    """An answer that was cut, or that a proxy sent instead. The message is the request."""


class StoreAway(Exception):  # noqa: N818 - it is the store that is away
    """The store that a Hub names does not answer. The message is its host, and what happened."""


class OddAnswer(Exception):  # noqa: N818 - it is the answer that is odd
    """An answer that no Hub sends, so the request is not repeated. The message is the end of a sentence."""

    request = ""  # The request, if it is known.


def may_pass(error: Exception) -> bool:
    """Return whether the same request may succeed later. hf-xet raises RuntimeError for a broken transfer."""
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in BUSY
    # A proxy, or a certificate that is not trusted, stands in the way each time.
    is_final = isinstance(error, (StoreAway, httpx2.ProxyError)) or "CERTIFICATE_VERIFY_FAILED" in str(error)
    if is_final or isinstance(error.__cause__, OddAnswer) or refuses_argument(error):
        return False
    passing = (ConnectionError, TimeoutError, httpx2.TransportError, GarbledAnswer, *UNREADABLE)
    return type(error) is RuntimeError or isinstance(error, passing)


def is_without(error: Exception) -> bool:
    """Return whether a Hub lacks an endpoint. An existing endpoint sends an error code that says what is missing."""
    if not isinstance(error, HfHubHTTPError) or error.response.status_code not in (404, 405, 501):
        return False
    is_of_file = "/resolve/" in error.response.request.url.path
    return not is_of_file and not error.response.headers.get("X-Error-Code")


def stumbles_over_answer(error: Exception) -> bool:
    """Return whether a library could not read an answer that it got."""
    stumbles = (ValueError, LookupError, TypeError, AttributeError, AssertionError, RecursionError)
    is_status = isinstance(error, HfHubHTTPError)  # some of which are ValueErrors too
    return isinstance(error, stumbles) and not is_status and _is_of_library(error)


def _is_of_library(error: Exception) -> bool:
    """Return whether a library that asks a Hub raised `error`. An error of our own code is a fault of this program."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    roots = [frame.f_globals.get("__name__", "").partition(".")[0] for frame in frames]
    known = [root for root in roots if root in ("sharding", "huggingface_hub", "httpx2", "json")]
    return bool(known) and known[-1] != "sharding"


def refuses_argument(error: Exception) -> bool:
    """Return whether the client refused to send a request: an address, a name or a header is not valid."""
    of_client = (HFValidationError, OfflineModeIsEnabled, UnicodeEncodeError)
    of_requests = (httpx2.UnsupportedProtocol, httpx2.InvalidURL, httpx2.LocalProtocolError)
    # A plain ValueError comes from the client's own checks. A parser raises a subclass of it.
    return isinstance(error, (*of_client, *of_requests)) or (type(error) is ValueError and _is_of_library(error))


def wait_to_retry(error: Exception, tries: int) -> None:
    """Sleep before the next try: as long as the server asks, or twice as long each time. Raises `error` at last."""
    asked = seconds_asked(getattr(getattr(error, "response", None), "headers", {}))
    seconds = NETWORK_WAIT_SECONDS * 2**tries if asked is None else asked
    if tries >= NETWORK_TRIES or seconds > LONGEST_WAIT_SECONDS:
        raise error
    time.sleep(seconds + random.uniform(0, min(seconds, LONGEST_JITTER_SECONDS) / 2))


def seconds_asked(headers: Mapping[str, str]) -> float | None:
    """Return how long a server asks to wait: the longer of `Retry-After` and a used up `RateLimit`."""
    after, limit = headers.get("Retry-After", ""), parse_ratelimit_headers(headers)
    asked = [float(after)] if after.isdecimal() else []
    asked += [limit.reset_in_seconds + 1.0] if limit and limit.remaining == 0 else []
    return max(asked, default=None)


_T = TypeVar("_T")
_ENTRY = TypeAdapter(FileEntry)
Sha = Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
SHA: TypeAdapter[str] = TypeAdapter(Sha)  # The commit that a Hub names.
FLAG: TypeAdapter[bool] = TypeAdapter(StrictBool)
_NO_SENSE = "gives an answer that makes no sense"


class Ref(BaseModel):
    """A branch, a tag or a pull request, and the commit that it points to."""

    name: str
    ref: str
    commit: Sha = Field(alias="targetCommit")


class Refs(BaseModel):
    """The branches, tags and pull requests of a repo. A Hub may answer `null` for an empty list."""

    branches: list[Ref] | None = None
    tags: list[Ref] | None = None
    pull_requests: list[Ref] | None = Field(None, alias="pullRequests")


class Commit(BaseModel):
    """A commit of a history."""

    id: Sha
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
    may_show_later: bool = True  # Whether this login may change the visibility of a repo that it has created.

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
