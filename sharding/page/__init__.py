"""Show the desk to visitors as a Gradio page.

`import_gradio` imports Gradio without the type stubs that it writes, which take a quarter of its import time.
"""

import inspect
from typing import Any


def import_gradio() -> None:
    """Import Gradio without letting it parse and rewrite the source of its components.

    Gradio 6.31 does that for each of its eighty components at every import
    (`component_meta.create_or_modify_pyi`). It skips a component if it cannot find its file, so this hides the files.
    """
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
