"""Open the folder or the Hub repo that a user names."""

import os
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sharding.checkpoint.readers import BESIDE_RUN, trained_folder
from sharding.checkpoint.weight_sets import is_found_by_name
from sharding.core.errors import DestinationError, Remedy, SourceError, UsageError
from sharding.core.options import Request
from sharding.core.origin import Role
from sharding.core.protocols import Destination, Files, Inputs, Source
from sharding.core.values import FileEntry
from sharding.formats.names import CARD_NAME, CONFIG_NAME, is_duplicate, is_training_state, is_weights
from sharding.formats.peft_config import ADAPTER_NAME
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_names import refuse_overlap
from sharding.storage.folder_source import open_folder
from sharding.storage.hub.client import Hub
from sharding.storage.hub.destination import HubDestination
from sharding.storage.hub.source import open_repo
from sharding.storage.names import is_folder, new_repo_id, parse_address


def open_inputs(named: Mapping[Role, str], hub: Hub) -> Inputs:
    """Return the sources that are `named`, by their roles, the model first. Raises SourceError and UsageError.

    What a training run saved counts as a model, and gets the files that its base has beside the weights.
    """
    sources: dict[Role, Source] = {}
    for role, text in named.items():
        if role == "adapter" and not is_folder(text) and "/" not in parse_address(text, hub.endpoint).repo_id:
            hint = "Write owner/name or owner/name/folder. For a folder on this disk, write ./name."
            raise SourceError(f"{text[:200]!r} is not the complete name of an adapter.", hint)
        if role == "base":
            _refuse_base(named["model"], text, sources["model"])
        _refuse_gguf(text)
        sources[role] = open_folder(text) if is_folder(text) else open_repo(hub, parse_address(text, hub.endpoint))
    folder = trained_folder([*(file.path for file in sources["model"].files), *sources["model"].links_out])
    if folder is None:
        return completed(sources) if "like" in sources else Inputs(sources)
    return trained(sources, folder)


def _refuse_base(text: str, base: str, source: Source) -> None:
    """Raise UsageError unless `source`, which is named `text`, is what a training run saved, without configuration."""
    paths = [*(file.path for file in source.files), *source.links_out]
    folder = trained_folder(paths)
    if ADAPTER_NAME in paths and folder is None:
        hint = f"To merge it: shard-my-repo shard {shlex.quote(base)} ./merged --adapter {shlex.quote(text)}"
        raise UsageError(f"{text} is an adapter, not the output of a training run.", hint, Remedy("leave_base_out"))
    if folder is None or not {CONFIG_NAME, folder + CONFIG_NAME, folder + BESIDE_RUN + CONFIG_NAME}.isdisjoint(paths):
        message = f"{text} has a configuration of its own, or is not the output of a training run."
        hint = "Only a rank-sharded checkpoint without a configuration needs a base model. Leave out --base."
        raise UsageError(message, hint, Remedy("leave_base_out"))


def open_job(request: Request, hub: Hub) -> tuple[Inputs, Destination]:
    """Return what `request` reads, and its destination, which takes a copy of that. Changes nothing.

    Raises UsageError, SourceError, and DestinationError, for example if a public copy would show what is hidden.
    """
    if request.options.rank is not None and not is_folder(request.destination):
        message = "The part of one rank is not a complete model, so it cannot be a repo."
        raise UsageError(message, "Name a folder, such as ./part.")
    if request.proof == "stated" and is_folder(request.destination):
        hint = "Have the folder read again, as usual, or write to a repo of a Hub."
        raise UsageError("A folder states no hashes, so nothing can be compared with them.", hint)
    origin, private = open_inputs(request.inputs, hub), request.private
    if origin.is_private and private is False and not request.confirmed:
        named = zip(request.inputs.values(), origin.sources, strict=True)
        hidden = next(name for name, source in named if source.is_private)
        message = f"{hidden} is private or gated, or its Hub does not say. A public copy would show it to everybody."
        hint = "Make the copy private. To do so, leave out --public. Or add --yes if its terms allow a public copy."
        raise DestinationError(message, hint, Remedy("make_private"))
    if private is None:  # as the source, so that a job never makes public what was not
        is_hidden = None if request.confirmed or origin.is_private is None else True
        private = False if origin.is_private is False else is_hidden
    target = _open_destination(request, hub, origin, private)
    try:
        target.check(origin.ref)
    except BaseException:
        target.close()
        raise
    return origin, target


def _open_destination(request: Request, hub: Hub, inputs: Inputs, private: bool | None) -> Destination:
    """Return the destination of `request`, which may not be, hold or lie in one of its `inputs`."""
    text = request.destination
    if is_folder(text):
        refuse_overlap(_folder_at(text), text, inputs)
    may = {"overwrite": request.overwrite, "restart": request.restart}
    target = find_destination(text, hub, source=inputs, private=private, is_shared=bool(request.workers), **may)
    if same := next((place for place in inputs.places if place.is_same(target.ref)), None):
        message = f"The destination is the {same.called} itself."
        raise DestinationError(message, f"Choose another name, such as {text}-sharded.")
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
    """Return the destination that `text` names, for a copy of `source` if that is known. Changes nothing."""
    _refuse_gguf(text)
    if is_folder(text):
        return FolderDestination(_folder_at(text), overwrite=overwrite, restart=restart, is_shared=is_shared)
    name = new_repo_id(text, hub.endpoint)
    return HubDestination(hub, name, source=source, private=private, overwrite=overwrite, restart=restart)


def _refuse_gguf(text: str) -> None:
    """Raise UsageError if `text` names a GGUF file. A folder or a repo may have such a name too."""
    path = os.path.expanduser(text)
    is_path = is_folder(text) or "/" not in text or os.path.isfile(path)
    if is_path and path.lower().endswith(".gguf") and not os.path.isdir(path):
        message = f"{text[-200:]} is a GGUF file, and not a folder or a repo."
        raise UsageError(message, "Name its folder, and the model with --variant.", Remedy("by_hand"))


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


def trained(sources: Mapping[Role, Source], folder: str) -> Inputs:
    """Return the inputs with `folder` and `BESIDE_RUN` of the model as top, and what the base has beside weights."""
    source, base = sources["model"], sources.get("base")
    files: dict[str, FileEntry] = {}
    links = [link.removeprefix(folder) for link in source.links_out]
    if base:
        files |= {file.path: replace(file, source=1) for file in base.files if _is_beside(file.path)}
        links += filter(_is_beside, base.links_out)

    def path_of(file: FileEntry) -> str:
        is_inside = file.path.startswith(folder)
        return file.path.removeprefix(folder).removeprefix(BESIDE_RUN) if is_inside else file.path

    # Of two with one path, the one nearest to the trained weights counts.
    for file in sorted(source.files, key=lambda file: (file.path.startswith(folder), -len(file.path))):
        if (path := path_of(file)) != file.path:
            # Without the store's hash: a file that gets a new name is not copied on the server.
            file = replace(file, path=path, place=file.path, xet_hash=None)
        files[file.path] = file
    return Inputs(sources, (files[path] for path in sorted(files)), links)


def completed(sources: Mapping[Role, Source]) -> Inputs:
    """Return the inputs, with the small files that the model lacks and the original has: configuration, tokenizer …"""
    files = {file.path: file for file in sources["model"].files}
    number = list(sources).index("like")
    for file in sources["like"].files:
        path = file.path
        if path not in files and "/" not in path and path != CARD_NAME and not is_weights(path) and _is_beside(path):
            files[path] = replace(file, source=number)
    return Inputs(sources, (files[path] for path in sorted(files)))


def _is_beside(path: str) -> bool:
    """Return whether to take a file of a base: it is not part of its model or of the state of its training."""
    is_model = is_weights(path) and "/" not in path and not is_found_by_name(path)
    return not (is_model or is_duplicate(path) or is_training_state(path))
