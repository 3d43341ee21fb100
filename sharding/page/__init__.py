"""Show the desk to visitors as a Gradio page."""

import inspect
from typing import Any


def import_gradio() -> None:
    """Import Gradio. At every import it parses and rewrites the source of its components (6.31,
    `create_or_modify_pyi`), except those whose file it cannot find, so this hides the files."""
    find = inspect.getfile

    def find_others(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError(f"The source of {thing} is hidden.")
        return find(thing)

    inspect.getfile = find_others  # type: ignore[assignment]
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = find
