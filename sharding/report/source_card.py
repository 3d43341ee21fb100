"""Read the model card of a source, which anybody may have written."""

from dataclasses import replace

from sharding.checkpoint.documents import read_small
from sharding.core.limits import MAX_CARD_BYTES
from sharding.core.protocols import Files
from sharding.core.text import format_bytes
from sharding.formats.model_card import ModelCard, parse_card
from sharding.formats.names import CARD_NAME


def read_card(origin: Files) -> ModelCard:
    """Return the card of `origin`, an empty one if it has none. Raises SourceError if it cannot be fetched.

    If the card comes from the model that was trained, it keeps only the metadata: its text describes another model.
    """
    file = next((file for file in origin.files if file.path == CARD_NAME), None)
    if file is None:
        return ModelCard()
    if file.bytes > MAX_CARD_BYTES:
        return ModelCard(problem=f"the file is larger than {format_bytes(MAX_CARD_BYTES)}")
    card = parse_card(read_small(origin, file, MAX_CARD_BYTES).decode("utf-8-sig", errors="replace"))
    return replace(card, text="") if file.source else card
