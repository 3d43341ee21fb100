"""Tell what somebody has typed or pasted: a folder, a repo at a revision, a repo that may be new. Opens nothing."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sharding.core.errors import DestinationError, ShardingError, SourceError, UsageError
from sharding.core.limits import MAX_LINK_CHARACTERS

_REPO = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^@\s?#]+))?", re.ASCII)
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OWN_SCHEME = re.compile(r"hf://(?:models/)?", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/+|[\w.-]+@[\w.-]+:", re.IGNORECASE | re.ASCII)
"""What an address begins with: `s3://`, `file:/`, `git@github.com:`."""
_HUB_SCHEME = re.compile(r"(?:https?|hf)://", re.IGNORECASE)


def is_folder(text: str) -> bool:
    """Return whether `text` means a folder: one that is there, or anything beginning with `.`, `/` or `~`.

    An address (`s3://…`) means none, nor does an empty text: its path would be that of the current folder.
    """
    if text.startswith((".", "/", "~")):
        return True
    try:
        return bool(text.strip()) and not _SCHEME.match(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def parse_repo(text: str, endpoint: str, family: type[ShardingError] = SourceError) -> tuple[str, str | None]:
    """Return repo id and revision (None: not given) of "owner/name@revision", or of a link to a repo or a file in it.

    Links are those of the public Hub and of the one at `endpoint`, `hf://…` among them. Raises a `family` error for
    what is neither, such as an address of another kind (`s3://…`), and UsageError for an empty text.

    >>> parse_repo("https://hf.co/owner/name/blob/v2/config.json", "https://huggingface.co"), parse_repo("gpt2", "")
    (('owner/name', 'v2'), ('gpt2', None))
    """
    text = text.strip()
    if not text:
        raise UsageError("A name is empty.", "Write owner/name for a repo, or the path of a folder: . for this one.")
    if len(text) > MAX_LINK_CHARACTERS:
        raise family(f"{text[:100]!r}… is too long for the name of a repo.", "Write owner/name, or paste its link.")
    if (scheme := _SCHEME.match(text)) and not _HUB_SCHEME.match(text):
        hint = "Write owner/name for a repo of the Hub, or the path of a folder."
        raise family(f"Addresses that begin with {scheme[0][:100]} are not supported.", hint)
    host = _host_in(text, endpoint)
    bare = _OWN_SCHEME.sub("", text, count=1)
    match = None if host else _REPO.fullmatch(bare)
    if match:
        revision = match["revision"]
        if revision and {".", ".."} & set(unquote(revision).split("/")):
            raise family(f"{text[:200]!r} names no revision.", "Write owner/name@revision.")
        return match["repo"], unquote(revision) if revision and bare != text else revision
    if host and host not in (*_HUB_HOSTS, urlsplit(endpoint).hostname):
        hint = "Only repos of the Hub are read: write owner/name, or paste a link to its page there."
        raise family(f"{host} is not the Hub.", hint)
    place = _parse_link(text if host or _OWN_SCHEME.match(text) else f"{_HUB_HOSTS[0]}/{text}", endpoint, family)
    if place is None:
        raise family(f"{text[:200]!r} is not the name of a repo.", "Write owner/name, or paste its link.")
    return place


def new_repo_id(text: str, endpoint: str) -> str:
    """Return the id ("owner/name", or a mere name) that `text` gives a repo which may be new.

    Raises DestinationError for what the Hub takes as none: huggingface_hub knows the rules. An empty text is a
    UsageError.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if text.strip().startswith("/") or text.strip().endswith("/"):
        raise DestinationError(f"{text[:200]!r} has no name for the new repo.", "Write owner/name.")
    repo_id, revision = parse_repo(text, endpoint, DestinationError)
    if revision:
        raise DestinationError(f"{text[:200]!r} names a revision.", "A result is main of its repo: write owner/name.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        hint = "Take letters, digits, '-', '_' and '.', at most 96, without '--', '..' or '.git' at the end."
        raise DestinationError(f"{repo_id!r} is no name that the Hub takes.", hint) from error
    return repo_id


def _host_in(text: str, endpoint: str) -> str:
    """Return the name of the host that `text` begins with, "" where it is no link."""
    first, slash, rest = text.partition("/")
    has_scheme = re.match(r"https?://", text, re.IGNORECASE)
    # Names of repos may have dots: without a scheme, only a third part tells "github.com/owner/name".
    named = slash and (first.lower() in (*_HUB_HOSTS, urlsplit(endpoint).netloc) or ("." in first[1:] and "/" in rest))
    try:
        return urlsplit(text if has_scheme else f"//{text}").hostname or "" if has_scheme or named else ""
    except ValueError:
        return ""


def _parse_link(link: str, endpoint: str, family: type[ShardingError]) -> tuple[str, str | None] | None:
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    # The Hub's own parser knows neither of these: old models without an owner, and a page of one commit.
    start, _, path = link.partition("://")[2].partition("/") if "://" in link else link.partition("/")
    if path and (alone := re.fullmatch(r"([\w.-]+)/?(?:[?#].*)?", path, re.ASCII)) and not _OWN_SCHEME.match(link):
        return alone[1], None
    link = link if "://" in link else f"https://{link}"
    link = link.replace("://www.", "://", 1).replace("/commit/", "/tree/", 1)
    try:
        uri = parse_hf_uri(link, endpoint=endpoint)
    except (HfUriError, ValueError):
        return None
    if uri.type != "model":
        raise family(f"{uri.id} is a {uri.type}, not a model.", "Name a repo of the kind model.")
    return uri.id, uri.revision
