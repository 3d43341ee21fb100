"""Serve the page with its desk: on a Space, or on this machine with `python app.py`."""

import gc
import signal
import sys
from typing import NoReturn

import spaces

from sharding.core.environment import hub_endpoint, keep_loopback_direct
from sharding.core.errors import ShardingError
from sharding.page import import_gradio


@spaces.GPU  # type: ignore[untyped-decorator]
def gpu() -> None:
    """Do nothing. The page needs no GPU, but ZeroGPU hardware starts only programs that declare such a function."""


def main() -> None:
    """Serve the page until the process is stopped. Jobs that run then are interrupted, and can be resumed."""
    signal.signal(signal.SIGTERM, _stop)
    keep_loopback_direct()  # Gradio asks its own page whether it is there
    hub_endpoint()  # before the first import of huggingface_hub, which reads it too
    from sharding.desk import Desk, Settings

    # Before Gradio, which takes seconds to import: an error about the folder of jobs comes at once.
    with Desk(Settings.from_environment()) as desk:
        import_gradio()
        from sharding.core.limits import MAX_CALLS, MAX_SESSIONS_KEPT
        from sharding.page.build import build, theme
        from sharding.page.form import ASSETS
        from sharding.page.serving.guard import MALFORMED, close_side_doors, guarded
        from sharding.page.site import Site

        site = Site.from_environment()
        page = build(desk, site)
        # These objects stay. Scanning them again for every hundred thousand tensors took a third of the time of a plan.
        gc.collect()
        gc.freeze()
        close_side_doors()
        page.launch(
            app_kwargs={"lifespan": guarded(site, desk.results.judge), "exception_handlers": MALFORMED},
            max_threads=MAX_CALLS,
            state_session_capacity=MAX_SESSIONS_KEPT,
            theme=theme(),
            css_paths=[ASSETS / f"{name}.css" for name in ("style", "map", "same")],
            head="".join(
                f"<script>{(ASSETS / f'{name}.js').read_text()}</script>" for name in ("page", "map", "picture")
            ),
            favicon_path=ASSETS / "logo.svg",
            footer_links=["api"],
            mcp_server=True,
            run_history=False,
            ssr_mode=False,
        )


def _stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main()
    except ShardingError as error:
        print(error.message, error.hint, sep="\n", file=sys.stderr)
        sys.exit(error.exit_status)
