"""Ask a Hub what a visitor wants to know before a job: which repos there are, who they are, what a name is worth."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock

from sharding.core.errors import DestinationError, SourceError
from sharding.core.limits import PERSON_SECONDS
from sharding.core.options import Options
from sharding.storage.hub_client import Hub
from sharding.storage.locate import parse_repo

_SUGGESTIONS = 12
_LONGEST_NAME = 96
"""Characters of a repo id, as huggingface_hub 2.4 checks it."""


@dataclass(frozen=True, slots=True)
class Person:
    """Who signed in, and the namespaces open to them: their own first, then those of their organisations."""

    name: str
    namespaces: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SourceCard:
    """What the Hub says of a repo, beside its files."""

    repo_id: str
    revision: str
    page: str
    license: str | None
    gated: bool
    private: bool


class Lookup:
    """Questions to the Hub at one endpoint; every answer is seen with the token of who asks."""

    def __init__(self, endpoint: str) -> None:
        """Ask the Hub at `endpoint`."""
        self._endpoint = endpoint
        self._lock = Lock()
        self._people: dict[str, tuple[float, Person]] = {}

    def link(self, text: str) -> str:
        """Return the address of the repo and revision that somebody typed or pasted, on this Hub.

        An address means no folder of this machine, whatever is there. Raises SourceError for what is no repo.
        """
        place = None if text.strip().startswith((".", "/", "~")) else parse_repo(text)
        if place is None:
            raise SourceError(f"{text[:200]!r} is not the name of a repo.", "Write owner/name, or paste its link.")
        repo_id, revision = place
        return f"{self._endpoint}/{repo_id}" + (f"@{revision}" if revision else "")

    def repo_id(self, text: str, owner: str) -> str:
        """Return the repo id that somebody typed for a result; a bare name is in the namespace of `owner`.

        Raises DestinationError for what is none.
        """
        place = None if text.strip().startswith((".", "/", "~")) else parse_repo(text)
        if place is None or place[1]:
            raise DestinationError(f"{text[:200]!r} is not the name of a repo.", "Write owner/name.")
        return place[0] if "/" in place[0] else f"{owner}/{place[0]}"

    def search(self, text: str, token: str | None = None) -> list[str]:
        """Return ids of a few repos that match `text`, the most popular first. Raises SourceError."""
        hub = Hub(self._endpoint, token)
        models = hub.ask(
            text or "the list of models",
            SourceError,
            lambda: list(hub.api.list_models(search=text, sort="downloads", limit=_SUGGESTIONS)),
        )
        return [model.id for model in models]

    def who(self, token: str) -> Person:
        """Return who bears `token`, as the Hub said within the last minute. Raises DestinationError."""
        key, now = sha256(token.encode()).hexdigest(), time.monotonic()
        with self._lock:
            # In order of age, as every entry is new when it is put in.
            while self._people and now - next(iter(self._people.values()))[0] > PERSON_SECONDS:
                del self._people[next(iter(self._people))]
            if key in self._people:
                return self._people[key][1]
        hub = Hub(self._endpoint, token)
        me = hub.ask("your account", DestinationError, hub.api.whoami)
        orgs = [org["name"] for org in me.get("orgs", ()) if org.get("roleInOrg") not in ("read", "no_access")]
        person = Person(me["name"], (me["name"], *orgs))
        with self._lock:
            self._people.pop(key, None)
            self._people[key] = (now, person)
        return person

    def card(self, source: str, token: str | None = None) -> SourceCard:
        """Return what the Hub says of `source`. Raises SourceError where there is no such repo to be seen."""
        hub = Hub(self._endpoint, token)
        repo_id, _, revision = self.link(source).removeprefix(f"{self._endpoint}/").partition("@")
        info = hub.ask(repo_id, SourceError, lambda: hub.api.model_info(repo_id, revision=revision or None))
        license = getattr(info.card_data, "license", None)
        return SourceCard(
            info.id,
            info.sha or "",
            hub.page(info.id),
            license if isinstance(license, str) else None,
            bool(info.gated),
            bool(info.private),
        )

    def remark_on_empty(self, repo_id: str, token: str) -> str:
        """Return a sentence on a repo that is there and empty, with the address where it can be deleted; else ""."""
        hub = Hub(self._endpoint, token)
        with suppress(DestinationError):
            files = hub.ask(repo_id, DestinationError, lambda: hub.api.list_repo_files(repo_id))
            if set(files) <= {".gitattributes"}:
                return f"The empty repo {repo_id} is still there: {hub.page(repo_id)}/settings."
        return ""

    def free_name(self, repo_id: str, token: str) -> str:
        """Return `repo_id` if no repo has that name yet, otherwise the first of `repo_id`-2, -3 … that none has.

        Raises DestinationError where the Hub does not answer.
        """
        hub = Hub(self._endpoint, token)
        for name in (repo_id, *(f"{repo_id}-{number}" for number in range(2, 100))):
            if not hub.ask(name, DestinationError, lambda name=name: hub.api.repo_exists(name)):  # type: ignore[misc]
                return name
        raise DestinationError(f"{repo_id} and all names like it are taken.", "Choose another name.")


def propose_name(namespace: str, source: str, options: Options) -> str:
    """Return a name for a copy of `source`.

    >>> propose_name("me", "mistralai/Mistral-7B-v0.1", Options("200 MB"))
    'me/Mistral-7B-v0.1-sharded-200MB'
    >>> propose_name("me", "mistralai/Mistral-7B-v0.1", Options("200 MB", dtype="fp16"))
    'me/Mistral-7B-v0.1-fp16-sharded-200MB'
    """
    variant, dtype, size = options.variant, options.dtype, str(options.max_shard_size)
    place = parse_repo(source)
    model = place[0].split("/")[-1] if place else "model"
    which = f"-{variant}" if re.fullmatch(r"[^\W_]\w{0,19}", variant, re.ASCII) else ""
    cast = "" if dtype in ("keep", variant) else f"-{dtype}"
    end = f"{which}{cast}-sharded-{''.join(size.split())}"
    return f"{namespace}/{model[: _LONGEST_NAME - len(namespace) - len(end) - 1]}{end}"
