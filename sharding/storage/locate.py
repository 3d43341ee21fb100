"""Tell a folder from a Hub repo by what somebody typed, and open it."""

import re
from pathlib import Path

from sharding.core.errors import DestinationError, SourceError
from sharding.core.protocols import Destination, Source
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_source import open_folder
from sharding.storage.hub_client import Hub

_LINK = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|https?://[^/]+/")
_REPO = re.compile(r"(?P<repo>[\w.-]+(?:/[\w.-]+)?)(?:(?:@|/(?:tree|commit)/)(?P<revision>[^@\s]+))?", re.ASCII)


def is_folder(text: str) -> bool:
    """Return whether `text` means a folder: one that is there, or anything beginning with `.`, `/` or `~`."""
    try:
        return text.startswith((".", "/", "~")) or Path(text).is_dir()
    except (OSError, ValueError):
        return False


def parse_repo(text: str) -> tuple[str, str | None] | None:
    """Return repo id and revision (None: not given) of "owner/name@revision" or a link to it; None if it is neither.

    >>> parse_repo("https://hf.co/owner/name/tree/v2"), parse_repo("gpt2"), parse_repo("a b")
    (('owner/name', 'v2'), ('gpt2', None), None)
    """
    match = _REPO.fullmatch(_LINK.sub("", text.strip(), count=1).rstrip("/"))
    return (match["repo"], match["revision"]) if match else None


def open_source(text: str, hub: Hub) -> Source:
    """Return the source that `text` names: a folder, or `owner/name[@revision]` on `hub`. Raises SourceError."""
    if is_folder(text):
        return open_folder(text)
    place = parse_repo(text)
    if place is None:
        raise SourceError(f"{text!r} is neither a folder nor the name of a repo.", "Write ./folder or owner/name.")
    from sharding.storage.hub_source import open_repo

    return open_repo(hub, *place)


def open_destination(
    text: str, hub: Hub, source: Source, *, private: bool, overwrite: bool, restart: bool
) -> Destination:
    """Return the destination that `text` names: a folder, or `owner/name` on `hub`. Changes nothing.

    Raises DestinationError where it and `source` are the same, or lie inside each other.
    """
    if is_folder(text):
        folder = Path(text).expanduser().resolve()
        if source.folder and (folder.is_relative_to(source.folder) or source.folder.is_relative_to(folder)):
            raise DestinationError(
                f"The destination {text} and the source lie inside each other.", "Choose a folder beside the source."
            )
    target = find_destination(text, hub, private=private, overwrite=overwrite, restart=restart)
    if (source.ref.kind, source.ref.repo_id) == ("hub", target.ref.repo_id):
        raise DestinationError("The destination is the source itself.", f"Choose another, such as {text}-sharded.")
    return target


def find_destination(
    text: str, hub: Hub, *, private: bool | None = None, overwrite: bool = False, restart: bool = False
) -> Destination:
    """Return the destination that `text` names, whatever goes there. Changes nothing. Raises DestinationError."""
    if is_folder(text):
        return FolderDestination(Path(text).expanduser().resolve(), overwrite=overwrite, restart=restart)
    place = parse_repo(text)
    if place is None or place[1]:
        raise DestinationError(f"{text!r} is neither a folder nor the name of a repo.", "Write ./folder or owner/name.")
    from sharding.storage.hub_destination import HubDestination

    return HubDestination(hub, place[0], private=private, restart=restart)
