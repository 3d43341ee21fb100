"""Open the folder or the Hub repo that a user names."""

import os
import shlex
from contextlib import suppress
from pathlib import Path

from sharding.core.destination import Destination
from sharding.core.errors import DestinationError, Remedy, SourceError, UsageError
from sharding.core.protocols import Files, Source
from sharding.core.repo import Repo
from sharding.core.values import Address
from sharding.formats.names import CONFIG_NAME, trained_folder
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_names import lies_in, refuse_overlap
from sharding.storage.folder_source import open_folder
from sharding.storage.hub.client import Hub
from sharding.storage.names import is_folder, new_repo_id, parse_address
from sharding.storage.trained_repo import trained_repo


def open_source(text: str, hub: Hub, base: str = "", adapter: str = "") -> Repo:
    """Return the repo that `text` names: a folder, or `owner/name[@revision][/folder]` on `hub`, or a link to it.

    `adapter` names a LoRA to merge in the same way.

    The output of a training run counts as a repo. `base` names the model that was trained, whose files beside the
    weights are added. Raises SourceError, and UsageError for an empty text or a GGUF file. A `base` is also a
    UsageError if `text` has its own configuration or is not from a training run.
    """
    repo = _open_with_base(text, hub, base)
    if not adapter:
        return repo
    if is_folder(adapter):
        return repo.with_adapter(_open(adapter, hub), "")
    address = parse_address(adapter, hub.endpoint)
    if "/" not in address.repo_id:
        hint = "Write owner/name or owner/name/folder. For a folder on this disk, write ./name."
        raise SourceError(f"{adapter[:200]!r} is not the complete name of an adapter.", hint)
    return repo.with_adapter(_open_repo(address._replace(folder=""), hub), address.folder)


def _open_with_base(text: str, hub: Hub, base: str) -> Repo:
    source = _open(text, hub)
    paths = [*(file.path for file in source.files), *source.links_out]
    folder = trained_folder(paths)
    if base and ADAPTER_NAME in paths and folder is None:
        hint = f"To merge it: shard-my-repo shard {shlex.quote(base)} ./merged --adapter {shlex.quote(text)}"
        raise UsageError(f"{text} is an adapter, not the output of a training run.", hint, Remedy("leave_base_out"))
    if base and (folder is None or CONFIG_NAME in {path.removeprefix(folder) for path in paths}):
        raise UsageError(
            f"{text} has a configuration of its own, or is not the output of a training run.",
            "Only a rank-sharded checkpoint without a configuration needs a base model. Leave out --base.",
            Remedy("leave_base_out"),
        )
    if folder is None or not (folder or base):
        return Repo([source])
    return trained_repo(source, folder, _open(base, hub) if base else None)


def _open(text: str, hub: Hub) -> Source:
    _refuse_gguf(text)
    if is_folder(text):
        return open_folder(text)
    return _open_repo(parse_address(text, hub.endpoint), hub)


def _open_repo(address: Address, hub: Hub) -> Source:
    from sharding.storage.hub.source import open_repo

    return open_repo(hub, *address)


def open_destination(
    text: str,
    hub: Hub,
    source: Files,
    *,
    private: bool | None,
    overwrite: bool,
    restart: bool,
    is_shared: bool = False,
) -> Destination:
    """Return the destination that `text` names: a folder, or `owner/name` on `hub`. Changes nothing.

    Raises DestinationError if it and `source` are the same or one lies inside the other. Also if a file of `source`
    lies in it, through a link or because the base model is there.
    """
    if is_folder(text):
        folder = _folder_at(text)
        refuse_overlap(folder, text, source)
        if shared := next((file.path for file in source.files if _is_below(folder, source.path(file.path))), None):
            message = f"The source's file {shared} lies in the destination {text}."
            raise DestinationError(message, "Choose another destination folder.")
    target = find_destination(
        text, hub, source=source, private=private, overwrite=overwrite, restart=restart, is_shared=is_shared
    )
    if (source.ref.kind, source.ref.repo_id) == ("hub", target.ref.repo_id):
        raise DestinationError("The destination is the source itself.", f"Choose another name, such as {text}-sharded.")
    return target


def find_destination(
    text: str,
    hub: Hub,
    *,
    source: Files | None = None,
    private: bool | None = None,
    overwrite: bool = False,
    restart: bool = False,
    is_shared: bool = False,
) -> Destination:
    """Return the destination that `text` names, for a copy of `source` if that is known. Changes nothing.

    A folder that `is_shared` is one that other machines write to as well. Raises DestinationError, and UsageError for
    an empty text or a GGUF file.
    """
    _refuse_gguf(text)
    if is_folder(text):
        folder = _folder_at(text)
        return FolderDestination(folder, overwrite=overwrite, restart=restart, is_shared=is_shared)
    name = new_repo_id(text, hub.endpoint)
    from sharding.storage.hub.destination import HubDestination

    return HubDestination(hub, name, source=source, private=private, overwrite=overwrite, restart=restart)


def _refuse_gguf(text: str) -> None:
    """Raise UsageError if `text` names a GGUF file. A folder or a repo may have such a name too."""
    path = os.path.expanduser(text)
    is_path = is_folder(text) or "/" not in text or os.path.isfile(path)
    if is_path and path.lower().endswith(".gguf") and not os.path.isdir(path):
        message = f"{text[-200:]} is a GGUF file. This version cannot read or write GGUF files."
        raise UsageError(message, "Name a folder or a repo with safetensors weights.")


def _is_below(folder: Path, place: Path | None) -> bool:
    return place is not None and lies_in(place.resolve(), folder)


def _folder_at(text: str) -> Path:
    """Return the path of the folder that `text` names. It need not exist. Raises DestinationError if it cannot."""
    try:
        folder = Path(text).expanduser().resolve()
        with suppress(FileNotFoundError, NotADirectoryError):
            folder.stat()  # refuses a name that is too long, and from Python 3.13 on links in a circle
    except (OSError, RuntimeError, ValueError) as error:  # also an unknown user's home, or links in a circle
        reason = error.strerror if isinstance(error, OSError) else error
        raise DestinationError(f"The folder {text!r} cannot be written: {reason}.", "Choose another folder.") from error
    return folder
