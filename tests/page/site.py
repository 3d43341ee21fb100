"""The page served in a process of its own, as a Space of a loopback Hub or on somebody's machine, asked over HTTP."""

import base64
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from pathlib import Path
from random import SystemRandom
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import httpx

from sharding.core.options import of_tool
from tests.conftest import LONGEST_SECONDS, ROOT, environment
from tests.localhub.conftest import Server

NUMBERS = count()
Headers = Mapping[str, str]
NONE: Headers = {}
PATIENTLY: dict[str, Any] = {"timeout": LONGEST_SECONDS, "verify": False}
"""How httpx asks. Nothing speaks TLS here, and to read the certificates that it would verify takes long."""


@dataclass
class Site:
    """`python app.py` in a process of its own."""

    hub: Server
    folder: Path
    settings: dict[str, str]
    port: int = 0
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> "Site":
        self.port = self.port or free_port()
        self.folder.mkdir(exist_ok=True)
        env = {
            **{name: value for name, value in environment().items() if not name.startswith("HF_")},
            "HF_ENDPOINT": self.hub.address,
            "HF_HOME": str(self.folder / "home"),
            "SHARD_FOLDER": str(self.folder / "desk"),
            "GRADIO_SERVER_PORT": str(self.port),
            # Gradio leaves an event loop open; to show that in the midst of an import trips Python 3.11 (gh-106176).
            "PYTHONWARNINGS": "ignore::ResourceWarning",
            **self.settings,
        }
        with (self.folder / "log.txt").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(ROOT / "app.py")], env=env, cwd=self.folder, stdout=log, stderr=log, text=True
            )
        deadline = time.monotonic() + LONGEST_SECONDS
        while True:
            assert self.process.poll() is None, self.log
            try:
                with urlopen(self.address, timeout=5):
                    return self
            except (URLError, ConnectionError, TimeoutError):
                assert time.monotonic() < deadline, self.log
                time.sleep(0.05)

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(timeout=LONGEST_SECONDS)


def free_port() -> int:
    """A port that nobody is given who asks for any: those lie above (ip(7), `ip_local_port_range`)."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port


def as_space(hub: Server) -> dict[str, str]:
    """The environment of a Space with a secret HF_TOKEN, which is not for its visitors."""
    return {
        "SYSTEM": "spaces",
        "SPACE_ID": "carol/shard-my-repo",
        "SPACE_AUTHOR_NAME": "carol",
        "HF_TOKEN": "hf_alice",
        "OAUTH_CLIENT_ID": "app",
        "OAUTH_CLIENT_SECRET": "secret",
        "OAUTH_SCOPES": "openid profile contribute-repos gated-repos read-repos",
        "OPENID_PROVIDER_URL": hub.address,
    }


def copy_name(kind: str = "copy") -> str:
    """A name that no repo has yet."""
    return f"{kind}-{next(NUMBERS)}"


def ask(site: Site, method: str, path: str, headers: Headers = NONE, body: Any = None) -> httpx.Response:
    """Ask as no browser would let one: any header, `Host` among them."""
    return httpx.request(method, site.address + path, headers=headers, json=body, **PATIENTLY)


def call(site: Site, endpoint: str, arguments: list[Any], headers: Headers = NONE) -> tuple[int, str]:
    """Call an endpoint as any page could; return the status, and what it answered in the end."""
    began = ask(site, "POST", f"/gradio_api/call/{endpoint}", headers, {"data": arguments})
    if began.status_code != 200:
        return began.status_code, began.text
    followed = ask(site, "GET", f"/gradio_api/call/{endpoint}/{began.json()['event_id']}", headers)
    return followed.status_code, followed.text


def choices(tool: str, **chosen: Any) -> list[Any]:
    """The arguments of an endpoint that are options, in its order: those `chosen`, the others as by default."""
    return [chosen.get(option.name, option.default) for option in of_tool(tool)]


def answer_in(said: str) -> Any:
    """What an endpoint answered in the end, in what it said."""
    return json.loads(said.rpartition("event: complete\ndata: ")[2].partition("\n")[0])[0]


@cache
def functions(address: str) -> dict[str, int]:
    """The numbers of the functions behind the page."""
    listed = httpx.get(f"{address}/config", **PATIENTLY).json()["dependencies"]
    return {one["api_name"]: one["id"] for one in listed}


def event(site: Site, function: str, *data: Any) -> dict[str, Any]:
    """What the scripts of the page ask for when a `function` of its events is to be called."""
    number, session = functions(site.address)[function], copy_name("session")
    return {"data": data, "fn_index": number, "session_hash": session, "trigger_id": None}


def follow(site: Site, asked: dict[str, Any], headers: Headers = NONE) -> str:
    """Have an `event` happen; return what the page says until it is over."""
    joined = ask(site, "POST", "/gradio_api/queue/join", headers, asked)
    if joined.status_code != 200:
        return f"status {joined.status_code}"
    address, heard = f"{site.address}/gradio_api/queue/data?session_hash={asked['session_hash']}", ""
    with httpx.stream("GET", address, headers=headers, **PATIENTLY) as stream:
        for line in stream.iter_lines():  # the stream of a browser stays open for what it asks next
            heard += f"{line}\n"
            if '"process_completed"' in line:
                break
    return heard


def session_of(site: Site, user: str) -> str:
    """Sign `user` in to a Space as a browser would, without one; return the cookie that it keeps."""
    began = ask(site, "GET", "/login/huggingface?_target_url=/")
    agreed = httpx.get(f"{began.headers['Location']}&user={user}", **PATIENTLY)
    back = {"Cookie": f"session={began.cookies['session']}"}
    return httpx.get(agreed.headers["Location"], headers=back, **PATIENTLY).cookies["session"]


def token_of(session: str) -> str:
    """Return what the login in a cookie of a Space may show to the Hub."""
    token: str = json.loads(base64.b64decode(session.split(".")[0] + "=="))["oauth_info"]["access_token"]
    return token
