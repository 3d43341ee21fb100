"""Decide which links a copy can do without, if they are not followed. Pure."""

from collections.abc import Iterable, Sequence

from sharding.checkpoint.documents import (
    MODULES_NAME,
    OPEN_CLIP_NAME,
    PIPELINE_NAME,
    ROUTER_NAME,
    SPACY_NAME,
)
from sharding.core.errors import SourceError
from sharding.core.text import name_some, shown_name
from sharding.core.values import Finding, folders_around
from sharding.formats.model_config import CONFIG_NAME
from sharding.formats.names import DCP_METADATA_NAME, is_duplicate, is_training_state, is_weights


def refuse_links(links: Iterable[str], folders: Iterable[str] = ("",)) -> None:
    """Raise SourceError if one of `links` (`Source.links_out`) is a weight file, or a file that describes the weights.

    `folders` ("" or ending in "/") hold the weights. A link in place of one of them, or of a folder above it, is
    refused too.
    """
    folders = set(folders)
    above = {place for folder in folders for place in folders_around(folder)}
    inside = (folder + name for folder in ("", *folders) for name in (CONFIG_NAME, ROUTER_NAME))
    documents = {PIPELINE_NAME, MODULES_NAME, OPEN_CLIP_NAME, SPACY_NAME, *inside}
    for link in links:
        if link in above:
            hint = "Replace the link with the folder itself."
            raise SourceError(f"{shown_name(link)} is a link to a folder. Such links are not followed.", hint)
        if not link.endswith("/") and (link in documents or _is_needed(link)):
            raise SourceError(
                f"{shown_name(link)} is a link to a file outside the folder.",
                "Replace the link with the file itself. Links are followed only within the folder or in a Hub cache.",
            )


def describe_links(links: Sequence[str]) -> list[Finding]:
    """Return a finding about the links that are left out, if there are any."""
    if not links:
        return []
    names = name_some([link.rstrip("/") for link in links])
    message = f"Left out: {names} (a link to a folder, or to a file outside the source)."
    hint = "If the copy needs it, replace the link with the file or folder itself."
    return [Finding("warning", "link-outside", message, hint)]


def _is_needed(link: str) -> bool:
    is_left_out = is_duplicate(link) or is_training_state(link)
    return not is_left_out and (is_weights(link) or link.rpartition("/")[2] == DCP_METADATA_NAME)
