"""Write a picture to a file, and texts into it."""

from html import escape
from pathlib import Path

from sharding.core.errors import DestinationError


def save_picture(path: str, svg: str) -> None:
    """Write an SVG file. Raises DestinationError if it cannot be written."""
    try:
        Path(path).write_text(svg, encoding="utf-8")
    except OSError as error:
        hint = "Choose a file in an existing folder that you may write to."
        raise DestinationError(f"The picture cannot be written to {path}: {error.strerror or error}.", hint) from error


def visible(text: str) -> str:
    """Return `text` with a question mark for each character that XML forbids or nobody sees."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def svg_text(text: str) -> str:
    """Return any text, such as a name from a file of a stranger, as it stands in an SVG."""
    return escape(visible(text))
