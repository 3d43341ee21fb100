"""Ask a Hub what a visitor wants to know before a job: which repos exist, who is signed in, which names are free."""

import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from threading import Lock

from huggingface_hub.errors import HfHubHTTPError

from sharding.core.errors import DestinationError, ShardingError, SourceError
from sharding.core.limits import CACHED_SECONDS
from sharding.core.options import OPTIONS, SINGLE_FILE, Options
from sharding.core.origin import Place
from sharding.storage.hub.answers import Person, is_without, parsed, person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import OF_EVERY_NEW_REPO, HubRepo, free_name
from sharding.storage.names import new_repo_id, parse_address

REACHED_COMMITS = 5000
"""Most commits of a repo to search for a commit that somebody named. Few repos of models have thousands."""

REACHED_REFS = 50  # Most branches and tags to search for that commit. Each takes at least one request.
ANSWERS_TIMED = 3  # Small questions to a Hub that are timed, one after another. The first may wait for a connection.
PERSON_SECONDS = 60.0
"""Time that the answer to "whose token is this?" is kept. A page needs it every second; the Hub is asked less often."""

_LONGEST_NAME = 96  # Characters of a repo id, as huggingface_hub 2.4 checks it.


@dataclass(frozen=True, slots=True)
class SourceCard:
    """The Hub's description of a repo, without its files."""

    repo_id: str
    revision: str
    page: str
    license: str | None
    gated: bool
    private: bool


class Lookup:
    """Questions to the Hub at one endpoint. Each is asked with the token of the person who asks."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._lock = Lock()
        self._people: dict[str, tuple[float, Person]] = {}
        self._timed: tuple[float, float] | None = None

    def link(self, text: str) -> str:
        """Return the address on this Hub of the repo, revision and folder that `text` names. Raises SourceError."""
        _refuse_folder(text, SourceError)
        return parse_address(text, self._endpoint).page(self._endpoint)

    def repo_id(self, text: str, owner: Person) -> str:
        """Return the repo id that `text` names; a bare name is in the namespace of `owner`. Raises DestinationError."""
        _refuse_folder(text, DestinationError)
        return owner.own_id(new_repo_id(text, self._endpoint))

    def search(self, text: str, token: str | None = None) -> list[str]:
        """Return ids of a few repos that match `text`, the most popular first. Raises SourceError."""
        hub = Hub(self._endpoint, token)

        def look() -> list[str]:
            models = hub.api.list_models(search=text, sort="downloads", limit=12)
            return [parsed(str, model.id) for model in models]

        return hub.ask(text or "the list of models", SourceError, look)

    def who(self, token: str) -> Person:
        """Return the owner of `token`, as the Hub said within the last minute. Raises DestinationError."""
        key, now = sha256(token.encode()).hexdigest(), time.monotonic()
        with self._lock:
            self._people = {key: told for key, told in self._people.items() if now - told[0] <= PERSON_SECONDS}
            if key in self._people:
                return self._people[key][1]
        hub = Hub(self._endpoint, token)
        person = hub.ask("your account", DestinationError, lambda: person_of(hub.api.whoami()))
        with self._lock:
            self._people[key] = (now, person)
        return person

    def answer_seconds(self, repo_id: str) -> float | None:
        """Return how soon the Hub answers a small question, as timed in the last few minutes; None if it does not."""
        now = time.monotonic()
        with self._lock:
            if self._timed and now - self._timed[0] <= CACHED_SECONDS:
                return self._timed[1]
        try:
            seconds = min(self._time_an_answer(repo_id) for _ in range(ANSWERS_TIMED))
        except SourceError:
            return None
        with self._lock:
            self._timed = now, seconds
        return seconds

    def _time_an_answer(self, repo_id: str) -> float:
        hub, started = Hub(self._endpoint, None), time.monotonic()
        # A refusal is an answer too. So this needs no login.
        with hub.explained(repo_id, SourceError), suppress(HfHubHTTPError):
            hub.refs(repo_id)
        return time.monotonic() - started

    def card(self, source: str, token: str | None = None) -> SourceCard:
        """Return the Hub's description of `source`. Raises SourceError if the token may see no such repo."""
        hub = Hub(self._endpoint, token)
        _refuse_folder(source, SourceError)
        asked = parse_address(source, self._endpoint)

        def look() -> SourceCard:
            info = hub.api.model_info(asked.repo_id, revision=asked.revision or None)
            license, name = getattr(info.card_data, "license", None), parsed(str, info.id)
            license = license if isinstance(license, str) else None
            commit = parsed(str, info.sha or "")
            place = replace(asked, repo_id=name, revision=commit if asked.inside else "")
            return SourceCard(
                place.name, commit, place.page(hub.endpoint), license, bool(info.gated), bool(info.private)
            )

        return hub.ask(asked.repo_id, SourceError, look)

    def remark_on_empty(self, repo_id: str, token: str) -> str:
        """Return a sentence about a repo that exists and is empty, with the address to delete it. Else return ""."""
        hub = Hub(self._endpoint, token)
        with suppress(DestinationError):
            if HubRepo(hub, repo_id).files("main").keys() <= OF_EVERY_NEW_REPO:
                return f"The empty repo {repo_id} is still there. You can delete it at {hub.page(repo_id)}/settings."
        return ""

    def free_name(self, repo_id: str, token: str) -> str:
        """Return the first of `repo_id`, `repo_id`-2, … `repo_id`-99 that no repo has yet. Raises DestinationError."""
        return free_name(Hub(self._endpoint, token), repo_id)


def is_reached(hub: Hub, repo: Place, revision: str | None) -> bool:
    """Return whether a branch or a tag, not a pull request, is known to lead to the commit of `repo`. Raises."""
    if revision in (None, "main"):
        return True
    try:
        refs = hub.refs(repo.repo_id)
        heads = sorted([*(refs.branches or ()), *(refs.tags or ())], key=lambda ref: ref.name != "main")
        if any(repo.revision == ref.commit or revision in (ref.name, ref.ref) for ref in heads):
            return True
        seen = set[str]()
        for ref in heads[:REACHED_REFS]:
            for commit in hub.commits(repo.repo_id, ref.name):
                if commit.id in seen:
                    break
                if len(seen) >= REACHED_COMMITS:
                    return False
                if commit.id == repo.revision:
                    return True
                seen.add(commit.id)
    except Exception as error:
        if not is_without(error):
            raise
    return False


def propose_name(namespace: str, source: str, options: Options) -> str:
    """Return a name for a copy of `source`.

    >>> propose_name("me", "mistralai/Mistral-7B-v0.1", Options("200 MB"))
    'me/Mistral-7B-v0.1-sharded-200MB'
    >>> propose_name("me", "mistralai/Mistral-7B-v0.1", Options("200 MB", dtype="fp16"))
    'me/Mistral-7B-v0.1-fp16-sharded-200MB'
    >>> propose_name("me", "mistralai/Mistral-7B-v0.1", Options("1GB", strategy="pp:2"))
    'me/Mistral-7B-v0.1-pp2-sharded-1GB'
    >>> propose_name("me", "org/Mistral-7B", Options("1GB", adapter="you/Mistral-7B-jokes"))
    'me/Mistral-7B-jokes-merged'
    """
    variant, dtype = options.variant, options.dtype_made
    size = SINGLE_FILE if options.is_single_file else f"sharded-{''.join(str(options.max_shard_size).split())}"
    model = _short_name(source, "model")
    for option in (option for option in OPTIONS.values() if option.role and option.computes):
        if text := getattr(options, option.name):
            size = {"adapter": "merged", "like": "mended"}.get(option.role or "", "filled")
            if size == "merged":
                other = _short_name(text, option.name)
                model = other if other.lower().startswith(model.lower()) else f"{model}-{other}"
    which = f"-{variant}" if re.fullmatch(r"[^\W_]\w{0,19}", variant, re.ASCII) else ""
    cast = "" if dtype in ("keep", variant) else f"-{dtype}"
    machines = f"-{options.strategy.replace(':', '')}" if options.strategy.startswith("pp:") else ""
    end = f"{which}{cast}{machines}-{size}"
    return f"{namespace}/{model[: _LONGEST_NAME - len(namespace) - len(end) - 1]}{end}"


def _short_name(source: str, otherwise: str) -> str:
    with suppress(ShardingError):
        return parse_address(source, "").repo_id.split("/")[-1]
    return otherwise


def _refuse_folder(text: str, family: type[ShardingError]) -> None:
    """Raise a `family` error if the text means a folder: a page never looks into the folders of its machine."""
    if text.strip().startswith((".", "/", "~")):
        raise family(f"{text[:200]!r} is not the name of a repo.", "Write owner/name, or paste the repo's link.")
