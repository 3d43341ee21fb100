"""A loopback Hub in this very process: its faults change from one job to the next, and its requests are counted."""

import asyncio
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding.localhub import records
from sharding.localhub.faults import Fault, Faults, parse_fault
from sharding.localhub.hub import Hub, Settings
from sharding.localhub.server import HOST, IDLE_SECONDS, make_app
from tests.localhub.conftest import Server


@dataclass
class InHouse(Server):
    """A Hub whose `rules` and `log` ("METHOD path" of every request) are at hand."""

    rules: list[Fault] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    gates: list["_Gate"] = field(default_factory=list)
    hub: Hub | None = None

    @contextmanager
    def failing(self, *rules: str | Fault) -> Iterator[None]:
        """Break answers by `rules`, and by no others, while the block lasts."""
        self.rules[:] = [parse_fault(rule) if isinstance(rule, str) else rule for rule in rules]
        try:
            yield
        finally:
            self.rules.clear()

    @contextmanager
    def holding(self, pattern: str, after: int = 0) -> Iterator[None]:
        """Have requests in which `pattern` is found wait until the block ends, all but the first `after`."""
        self.gates.append(gate := _Gate(re.compile(pattern), after))
        try:
            yield
        finally:
            self.gates.remove(gate)

    def asked(self, pattern: str) -> int:
        return sum(bool(re.search(pattern, line)) for line in self.log)


@dataclass(eq=False)
class _Gate:
    pattern: re.Pattern[str]
    left: int

    def holds(self, line: str) -> bool:
        """Whether this request has to wait; called once for each."""
        self.left -= bool(self.pattern.search(line))
        return self.left < 0 and bool(self.pattern.search(line))


@contextmanager
def hub_in_house(folder: Path, *more: Middleware, **settings: object) -> Iterator[InHouse]:
    """Serve a Hub kept in `folder` from a thread while the block lasts, behind `more` middleware."""
    # With an explicit protocol asyncio sets TCP_NODELAY, without which each answer takes 40 ms.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind((HOST, 0))
        listener.listen(1024)
        address = f"http://{HOST}:{listener.getsockname()[1]}"
        hub = Hub.open(address, folder, Settings(**settings))  # type: ignore[arg-type]
        served = InHouse(folder, address=address, hub=hub)
        middleware = [Middleware(_Log, served.log, served.gates), Middleware(Faults, served.rules), *more]
        app = make_app(hub, middleware)
        config = uvicorn.Config(app, log_level="critical", lifespan="off", timeout_keep_alive=IDLE_SECONDS)
        server = _Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="hub")
        thread.start()
        try:
            server.is_ready.wait()
            yield served
        finally:
            server.should_exit = True
            server.force_exit = True
            thread.join()
            hub.state.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.is_ready.set()


class _Log:
    """Middleware that notes every request, and holds those that have to wait."""

    def __init__(self, app: ASGIApp, log: list[str], gates: list[_Gate]) -> None:
        self._app, self._log, self._gates = app, log, gates

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            line = f"{scope['method']} {scope['path']}"
            self._log.append(line)
            shut = [gate for gate in self._gates if gate.holds(line)]
            while any(gate in self._gates for gate in shut):
                await asyncio.sleep(0.02)
        await self._app(scope, receive, send)


def ignore_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the Hub make every repo public."""
    usual = records.add_repo

    def add_repo(*given: Any) -> Any:
        db, kind, owner, name, _, app = given
        return usual(db, kind, owner, name, False, app)

    monkeypatch.setattr(records, "add_repo", add_repo)
