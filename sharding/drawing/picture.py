"""Write a picture where somebody wants it."""

from pathlib import Path

from sharding.core.errors import DestinationError


def save_picture(path: str, svg: str) -> None:
    """Write an SVG file. Raises DestinationError where that cannot be done."""
    try:
        Path(path).write_text(svg, encoding="utf-8")
    except OSError as error:
        hint = "Give a file in a folder that is there and that you may write to."
        raise DestinationError(
            f"The picture could not be written to {path}: {error.strerror or error}.", hint
        ) from error
