"""Parse what a user typed or pasted: a folder, a repo at a revision, or a new repo. Opens nothing."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sharding.core.errors import DestinationError, ShardingError, SourceError, UsageError
from sharding.core.limits import MAX_LINK_CHARACTERS

_REPO = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^@\s?#]+))?", re.ASCII)
_IN_REPO = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+(?:@(?:refs/\w+/)?[^@\s?#/]+)?)(?:/(?P<folder>.*))?", re.ASCII)
_FOLDER_LINK = re.compile(
    r"(?P<repo>(?:https?://[^/\s]+|(?:www\.)?huggingface\.co|hf\.co)/[\w.-]+/[\w.-]+"
    r"(?:/(?P<route>tree|blob|resolve)/(?:refs/\w+/)?[^/\s?#]+)?)(?:/(?P<folder>[^\s?#]*))?"
    r"(?:\?(?!\S*revision=)[^\s#]*)?(?:#\S*)?",
    re.ASCII,
)
_HUB_HOSTS = ("huggingface.co", "www.huggingface.co", "hf.co")
_OWN_SCHEME = re.compile(r"hf://(?:models/)?", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:/+|[\w.-]+@[\w.-]+:", re.IGNORECASE | re.ASCII)
"""How an address starts: `s3://`, `file:/`, `git@github.com:`."""
_HUB_SCHEME = re.compile(r"(?:https?|hf)://", re.IGNORECASE)


def is_folder(text: str) -> bool:
    """Return whether `text` means a folder: one that exists, or any text that starts with `.`, `/` or `~`.

    An address (`s3://…`) is not a folder. Neither is an empty text, whose path would be the current folder.
    """
    if text.startswith((".", "/", "~")):
        return True
    try:
        return bool(text.strip()) and not _SCHEME.match(text) and Path(text).is_dir()
    except (OSError, ValueError):
        return False


def split_folder(text: str) -> tuple[str, str]:
    """Return the repo in "owner/name[@revision][/folder]" or in a link, and the folder: "" or ending in "/".

    A revision with a slash counts only if it is one of the Hub's own, such as refs/pr/1, or if a link encodes it.

    >>> split_folder("owner/name@v2/lora/small"), split_folder("owner/name@refs/pr/1")
    (('owner/name@v2', 'lora/small/'), ('owner/name@refs/pr/1', ''))
    >>> split_folder("https://huggingface.co/owner/name/tree/v2/lora")
    ('https://huggingface.co/owner/name/tree/v2', 'lora/')
    """
    if link := _FOLDER_LINK.fullmatch(text.strip()):
        repo, folder = link["repo"], unquote(link["folder"] or "").strip("/")
        if link["route"] in ("blob", "resolve"):  # a file, which means its folder
            repo, folder = repo.replace(f"/{link['route']}/", "/tree/", 1), folder.rpartition("/")[0]
        if {".", "..", ""} & set((folder or "x").split("/")):
            return text, ""
        return repo, f"{folder}/" if folder else ""
    scheme = _OWN_SCHEME.match(text.strip())
    start = scheme[0] if scheme else ""
    match = _IN_REPO.fullmatch(text.strip()[len(start) :])
    if not match or {".", "..", ""} & set((match["folder"] or "x").strip("/").split("/")):
        return text, ""
    folder = (match["folder"] or "").strip("/")
    return start + match["repo"], f"{folder}/" if folder else ""


def parse_repo(text: str, endpoint: str, family: type[ShardingError] = SourceError) -> tuple[str, str | None]:
    """Return repo id and revision (None: not given) of "owner/name@revision", or of a link to a repo or a file in it.

    A link may lead to the public Hub or to the one at `endpoint`, and may start with `hf://`. Raises a `family` error
    for any other text, such as `s3://…`, and UsageError for an empty text.

    >>> parse_repo("https://hf.co/owner/name/blob/v2/config.json", "https://huggingface.co"), parse_repo("gpt2", "")
    (('owner/name', 'v2'), ('gpt2', None))
    """
    text = text.strip()
    if not text:
        hint = "Write owner/name for a repo, or the path of a folder. A single dot is the current folder."
        raise UsageError("The name of a repo or a folder is empty.", hint)
    if len(text) > MAX_LINK_CHARACTERS:
        raise family(
            f"{text[:100]!r}… is too long for the name of a repo.", "Write owner/name, or paste the repo's link."
        )
    if (scheme := _SCHEME.match(text)) and not _HUB_SCHEME.match(text):
        hint = "Write owner/name for a Hub repo, or the path of a folder."
        raise family(f"Addresses that start with {scheme[0][:100]} are not supported.", hint)
    host = _host_in(text, endpoint)
    bare = _OWN_SCHEME.sub("", text, count=1)
    # As in huggingface_hub, a slash after the revision of an hf:// address starts a folder.
    has_folder = bare != text and "/" in bare.partition("@")[2]
    match = None if host or has_folder else _REPO.fullmatch(bare)
    if match:
        revision = match["revision"]
        if revision and {".", ".."} & set(unquote(revision).split("/")):
            raise family(f"{text[:200]!r} does not name a valid revision.", "Write owner/name@revision.")
        return match["repo"], unquote(revision) if revision and bare != text else revision
    if host and host not in (*_HUB_HOSTS, urlsplit(endpoint).hostname):
        hint = "This tool reads repos of the Hub only. Write owner/name, or paste the link to the repo's page there."
        raise family(f"{host} is not the Hub.", hint)
    place = _parse_link(text if host or _OWN_SCHEME.match(text) else f"{_HUB_HOSTS[0]}/{text}", endpoint, family)
    if place is None:
        raise family(f"{text[:200]!r} is not the name of a repo.", "Write owner/name, or paste the repo's link.")
    return place


def new_repo_id(text: str, endpoint: str) -> str:
    """Return the id ("owner/name", or only "name") that `text` gives a repo, which may be new.

    Raises DestinationError if the Hub would not accept it (huggingface_hub checks that), and UsageError for an empty
    text.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    if text.strip().startswith("/") or text.strip().endswith("/"):
        raise DestinationError(f"{text[:200]!r} is not the complete name of a repo.", "Write owner/name.")
    repo_id, revision = parse_repo(text, endpoint, DestinationError)
    if revision:
        message = f"{text[:200]!r} names a revision, but a result always goes to main."
        raise DestinationError(message, "Write owner/name.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        hint = (
            "Use at most 96 letters, digits, '-', '_' and '.', without '--', '..', and '.git' at the end. "
            "A name cannot start or end with '-' or '.'."
        )
        raise DestinationError(f"The Hub does not accept the name {repo_id!r}.", hint) from error
    return repo_id


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


def _parse_link(link: str, endpoint: str, family: type[ShardingError]) -> tuple[str, str | None] | None:
    from huggingface_hub import parse_hf_uri
    from huggingface_hub.errors import HfUriError

    # The Hub's own parser lacks two forms: old models without an owner, and the page of a commit.
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
        raise family(f"{uri.id} is a {uri.type}, not a model.", "Name a model repo.")
    is_file = re.search(r"/(?:blob|resolve)/", link)
    if folder := uri.path_in_repo.rpartition("/")[0] if is_file else uri.path_in_repo:
        hint = "Download the folder, and name its path. Or write owner/name for the whole repo."
        raise family(f"{link[:200]!r} names the folder {folder[:100]!r}, but only a whole repo can be used here.", hint)
    if "revision=" in urlsplit(link).query:
        raise family(f"{link[:200]!r} names a revision behind '?'.", "Write owner/name@revision.")
    return uri.id, uri.revision
