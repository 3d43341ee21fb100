"""Decide which links that are not followed may be missing in a copy. Pure."""

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
    """Raise SourceError where one of `Source.links_out` is a weight file, or says what the weights are.

    `folders` ("" or ending in "/") hold the weights: a link to one of them, or above it, is refused too.
    """
    folders = set(folders)
    above = {place for folder in folders for place in folders_around(folder)}
    inside = (folder + name for folder in ("", *folders) for name in (CONFIG_NAME, ROUTER_NAME))
    documents = {PIPELINE_NAME, MODULES_NAME, OPEN_CLIP_NAME, SPACY_NAME, *inside}
    for link in links:
        if link in above:
            hint = "Put the folder itself in its place."
            raise SourceError(f"{shown_name(link)} is a link to a folder, which is not followed.", hint)
        if not link.endswith("/") and (link in documents or _is_needed(link)):
            raise SourceError(
                f"{shown_name(link)} is a link that leads out of the folder.",
                "Put the file itself in its place. Only links within the folder, or in a Hub's cache, are followed.",
            )


def describe_links(links: Sequence[str]) -> list[Finding]:
    """Return what a person should know of links that are left out."""
    if not links:
        return []
    names = name_some([link.rstrip("/") for link in links])
    message = f"Left out: {names} (leads out of the folder, or is a link to a folder)."
    return [Finding("warning", "link-outside", message, "Put the file itself in its place if the copy is to have it.")]


def _is_needed(link: str) -> bool:
    is_left_out = is_duplicate(link) or is_training_state(link)
    return not is_left_out and (is_weights(link) or link.rpartition("/")[2] == DCP_METADATA_NAME)
