"""Write a picture to a file."""

from pathlib import Path

from sharding.core.errors import DestinationError


def save_picture(path: str, svg: str) -> None:
    """Write an SVG file. Raises DestinationError if it cannot be written."""
    try:
        Path(path).write_text(svg, encoding="utf-8")
    except OSError as error:
        hint = "Choose a file in an existing folder that you may write to."
        raise DestinationError(f"The picture cannot be written to {path}: {error.strerror or error}.", hint) from error
