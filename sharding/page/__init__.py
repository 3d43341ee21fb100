"""What a visitor sees: one Gradio page over a desk. Here: import Gradio without the type stubs that it writes.

That is a quarter of its import.
"""

import inspect
from typing import Any


def import_gradio() -> None:
    """Import Gradio so that it finds no source of its components, and so does not parse and rewrite it.

    Gradio 6.31 does that for each of its eighty components at every import
    (`component_meta.create_or_modify_pyi`), and leaves alone those whose file it does not find.
    """
    find = inspect.getfile

    def find_others(thing: Any) -> str:
        if isinstance(thing, type) and thing.__module__.startswith("gradio."):
            raise OSError(f"{thing} is not looked for")
        return find(thing)

    inspect.getfile = find_others  # type: ignore[assignment]
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = find
