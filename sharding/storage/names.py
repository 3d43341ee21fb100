"""Parse what a user typed or pasted: a folder, a repo at a revision, or a new repo. Opens nothing."""

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sharding.core.errors import DestinationError, ShardingError, SourceError, UsageError
from sharding.core.limits import MAX_LINK_CHARACTERS
from sharding.core.origin import Place

_REPO = re.compile(
    r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>(?:refs/\w+/)?[^@\s?#/]+))?(?P<folder>/[^?#]*)?", re.ASCII
)
_PLAIN = re.compile(r"[^./\\<>\x00-\x1f\x7f-\x9f][^/\\<>\x00-\x1f\x7f-\x9f]*")
"""The name of a folder that a report may name: see `bounds.File`."""
_FILE = re.compile(r"\.(?:safetensors|gguf|json|bin|md|txt)$")
"""How the names of files end that somebody may name instead of their folder."""
_PAGE = re.compile(r"[\w.-]+/[\w.-]+/(?:tree|blob|resolve|raw|commit)/", re.ASCII)
"""How the rest of a link starts behind the host, if it is to a folder or a file."""
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OWN_SCHEME = re.compile(r"hf://(?:models/)?", re.IGNORECASE)
_KIND = re.compile(r"(dataset|space|bucket|kernel)s/", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/+|[\w.-]+@[\w.-]+:", re.IGNORECASE | re.ASCII)
"""How an address starts: `s3://`, `file:/`, `git@github.com:`."""
_HUB_SCHEME = re.compile(r"(?:https?|hf)://", re.IGNORECASE)


def is_folder(text: str) -> bool:
    """Return whether `text` means a folder: one that exists, or any text that starts with `.`, `/` or `~`."""
    if text.startswith((".", "/", "~")):
        return True
    try:
        # An empty text would be the current folder.
        return bool(text.strip()) and not _SCHEME.match(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def parse_address(text: str, endpoint: str, family: type[ShardingError] = SourceError) -> Place:
    """Return what "owner/name[@revision][/folder]" means, or a link to a repo, or to a folder or a file in it.

    A file means its folder. A revision with a slash is written with %2F, or is one of the Hub's own, such as refs/pr/1.
    A link may lead to the public Hub or to the one at `endpoint`, and may start with `hf://`. Raises a `family` error
    for any other text, and UsageError for an empty one.

    >>> parse_address("https://hf.co/owner/name/blob/v2/config.json", "https://huggingface.co")
    Place(store='hub', repo_id='owner/name', revision='v2', inside='', role='model')
    >>> parse_address("owner/name@v2/lora/small", "")
    Place(store='hub', repo_id='owner/name', revision='v2', inside='lora/small/', role='model')
    """
    text = text.strip()
    link_hint = "Write owner/name, or paste the repo's link."
    if not text:
        hint = "Write owner/name for a repo, or the path of a folder. A single dot is the current folder."
        raise UsageError("The name of a repo or a folder is empty.", hint)
    if len(text) > MAX_LINK_CHARACTERS:
        raise family(f"{text[:100]!r}… is too long for the name of a repo.", link_hint)
    if (scheme := _SCHEME.match(text)) and not _HUB_SCHEME.match(text):
        hint = "Write owner/name for a Hub repo, or the path of a folder."
        raise family(f"Addresses that start with {scheme[0][:100]} are not supported.", hint)
    host = _host_in(text, endpoint)
    if host and host not in (*_HUB_HOSTS, urlsplit(endpoint).hostname):
        hint = "This tool reads repos of the Hub only. Write owner/name, or paste the link to the repo's page there."
        raise family(f"{host} is not the Hub.", hint)
    link = f"{_HUB_HOSTS[0]}/{text}" if _PAGE.match(text) else text if host else ""
    place = _parse_link(link, endpoint, family) if link else _parse_own(text, family)
    if place is None:
        raise family(f"{text[:200]!r} is not the name of a repo.", link_hint)
    if place.revision and {"", ".", ".."} & set(place.revision.split("/")):
        raise family(f"{text[:200]!r} does not name a valid revision.", "Write owner/name@revision.")
    if place.inside and not all(map(_PLAIN.fullmatch, place.inside.split("/")[:-1])):
        raise family(f"{text[:200]!r} does not name a folder in a repo.", "Write owner/name/folder.")
    return place


def new_repo_id(text: str, endpoint: str) -> str:
    """Return the id ("owner/name" or "name") that `text` gives a repo. Raises DestinationError and UsageError."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if text.strip().startswith("/") or text.strip().endswith("/"):
        raise DestinationError(f"{text[:200]!r} is not the complete name of a repo.", "Write owner/name.")
    place = parse_address(text, endpoint, DestinationError)
    if not place.revision and place.name.count("/") == 1:  # a name that the Hub does not accept looks like a folder
        place = replace(place, repo_id=place.name, inside="")
    if place.revision or place.inside:
        revised = "names a revision, but a result always goes to main"
        inside = "names a folder in a repo, but a result is always a whole repo"
        raise DestinationError(f"{text[:200]!r} {revised if place.revision else inside}.", "Write owner/name.")
    try:
        validate_repo_id(place.repo_id)
    except HFValidationError as error:
        hint = (
            "Use at most 96 letters, digits, '-', '_' and '.', without '--', '..', and '.git' at the end. "
            "A name cannot start or end with '-' or '.'."
        )
        raise DestinationError(f"The Hub does not accept the name {place.repo_id!r}.", hint) from error
    return place.repo_id


def _host_in(text: str, endpoint: str) -> str:
    """Return the host name that `text` starts with, "" if it is not a link."""
    first, slash, rest = text.partition("/")
    has_scheme = re.match(r"https?://", text, re.IGNORECASE)
    # A repo name may contain dots. Without a scheme, only a third part shows that "github.com/owner/name" is a link.
    named = slash and (first.lower() in (*_HUB_HOSTS, urlsplit(endpoint).netloc) or ("." in first[1:] and "/" in rest))
    try:
        return urlsplit(text if has_scheme else f"//{text}").hostname or "" if has_scheme or named else ""
    except ValueError:
        return ""


def _parse_own(text: str, family: type[ShardingError]) -> Place | None:
    """Return what "owner/name@revision/folder" means, with or without "hf://". None for any other text."""
    scheme = _OWN_SCHEME.match(text)
    if scheme and (kind := _KIND.match(text[scheme.end() :])):
        raise family(f"{text[:200]} is a {kind[1]}, not a model.", "Name a model repo.")
    match = _REPO.fullmatch(text[scheme.end() :] if scheme else text)
    if not match:
        return None
    folder = (match["folder"] or "").strip("/")
    folder = folder.rpartition("/")[0] if _FILE.search(folder) else folder
    return Place("hub", match["repo"], unquote(match["revision"] or ""), f"{folder}/" if folder else "")


def _parse_link(link: str, endpoint: str, family: type[ShardingError]) -> Place | None:
    """Return what a link to the page of a repo, of a folder or of a file means. None for any other page."""
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    link = link if "://" in link else f"https://{link}"
    link = re.sub(r"^(\w+://(?:[^/]+/){3})commit/", r"\1tree/", link.replace("://www.", "://", 1))
    if "revision=" in urlsplit(link).query:
        raise family(f"{link[:200]!r} names a revision behind '?'.", "Write owner/name@revision.")
    # The Hub's own parser lacks old models, which have no owner.
    start, _, path = link.partition("://")[2].partition("/")
    alone = re.fullmatch(r"([\w.-]+)(?:/(?:tree|blob|resolve|raw)/.*)?/?(?:[?#].*)?", path, re.ASCII)
    for owner in ("", "x/") if alone else ("",):
        try:
            uri = parse_hf_uri(f"{link.partition('://')[0]}://{start}/{owner}{path}", endpoint=endpoint)
        except (HfUriError, ValueError):
            continue
        if uri.type != "model":
            raise family(f"{uri.id} is a {uri.type}, not a model.", "Name a model repo.")
        is_file = re.search(r"/(?:blob|resolve|raw)/", link)
        folder = uri.path_in_repo.rpartition("/")[0] if is_file else uri.path_in_repo
        return Place("hub", uri.id.removeprefix(owner), uri.revision or "", f"{folder}/" if folder else "")
    return None
