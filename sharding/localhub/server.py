"""Build the Hub as an application, and serve it on this machine only."""

import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.types import ASGIApp

from sharding.localhub import cards, commits, lfs, oidc, pages, repos, revisions, xet
from sharding.localhub.hub import Hub, Settings
from sharding.localhub.refusals import Refusal
from sharding.localhub.web import refuse, routes, with_raw_paths

HOST = "127.0.0.1"
_THREADS = 100  # reading a large file from the Xet store can occupy one for seconds
IDLE_SECONDS = 60  # longer than clients keep a connection, so that none uses one that is being closed
_GOODBYE_SECONDS = 5

# The most frequent first. Pages last, because their path /{owner}/{name} matches the most.
_ROOMS = (revisions, xet, commits, lfs, repos, cards, oidc, pages)


def make_app(hub: Hub, middleware: Sequence[Middleware] = ()) -> ASGIApp:
    """Return the Hub as an ASGI application inside `middleware`. The first middleware is the outermost."""
    rules = [rule for room in _ROOMS for rule in room.RULES]
    app = Starlette(
        routes=routes(hub, rules),
        middleware=middleware,
        exception_handlers=dict.fromkeys((Refusal, HTTPException, Exception), refuse),
    )
    app.router.redirect_slashes = False
    return with_raw_paths(app)


def serve(
    port: int,
    folder: Path,
    settings: Settings,
    fill: Callable[[Hub], None] | None = None,
    middleware: Sequence[Middleware] = (),
    *,
    access_log: bool = False,
) -> None:
    """Serve the Hub in `folder` until SIGTERM or SIGINT. Port 0 takes a free one. `fill` can add repos first. Prints
    `ready http://127.0.0.1:PORT` once it accepts connections. Raises OSError if the port is in use."""
    # With an explicit protocol asyncio sets TCP_NODELAY on the socket, so answers are sent without delay.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1024)
        hub = Hub.open(_address(listener), folder, settings)
        with closing(hub.state):
            if fill:
                fill(hub)
            config = uvicorn.Config(
                make_app(hub, middleware),
                log_level="info" if access_log else "critical" if middleware else "warning",
                access_log=access_log,
                lifespan="off",
                timeout_keep_alive=IDLE_SECONDS,
                timeout_graceful_shutdown=_GOODBYE_SECONDS,
            )
            # After it has stopped cleanly, uvicorn raises the signal again. It is ignored then.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            _Server(config).run(sockets=[listener])


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS
        await super().startup(sockets)
        (listener,) = sockets or []
        print(f"ready {_address(listener)}", flush=True)


def _address(listener: socket.socket) -> str:
    return f"http://{HOST}:{listener.getsockname()[1]}"
