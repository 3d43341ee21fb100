"""A loopback Hub in a process of its own, and the real client to talk to it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import pytest

# Before huggingface_hub and hf-xet are imported: they read it once.
os.environ.setdefault("HF_XET_LOG_DEST", os.devnull)
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

from huggingface_hub import HfApi  # noqa: E402

from tests.conftest import environment  # noqa: E402

NUMBERS = count()
SIGN_IN = {
    **{"response_type": "code", "client_id": "app", "redirect_uri": "http://127.0.0.1:1/login/callback?_target_url=/"},
    **{"scope": "openid profile", "state": "s 1", "nonce": "n"},
}
"""What an application asks of the Hub."""


@dataclass
class Reply:
    """What the Hub answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class _Stay(HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass
class Server:
    """A loopback Hub in a process of its own."""

    folder: Path
    options: tuple[str, ...] = ()
    address: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def start(self, *more: str, entry: Sequence[str] = ("sharding.localhub",)) -> "Server":
        command = [sys.executable, "-m", *entry, "--folder", str(self.folder), *self.options, *more]
        env = {**environment(), "HF_HOME": str(self.folder / "home")}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        assert self.process.stdout
        word, _, self.address = self.process.stdout.readline().strip().partition(" ")
        assert word == "ready"
        return self

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process and self.process.stdout
        self.process.send_signal(number)
        status = self.process.wait(timeout=60)
        self.process.stdout.close()
        return status

    def api(self, token: str | bool = "hf_alice") -> HfApi:
        return HfApi(endpoint=self.address, token=token)

    def put(self, repo_id: str, path: str, data: Any = b"x", token: str = "hf_alice", **more: Any) -> str:
        """Put a file into a repo; return the commit."""
        return str(self.api(token).upload_file(path_or_fileobj=data, path_in_repo=path, repo_id=repo_id, **more).oid)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        token: str | None = "hf_alice",
        form: dict[str, str] | None = None,
        **headers: str,
    ) -> Reply:
        """Ask by hand, following no redirect; `body` is sent as JSON unless it is bytes."""
        data = urlencode(form).encode() if form is not None else body
        if body is not None and not isinstance(body, bytes):
            data = json.dumps(body).encode()
        url = path if path.startswith("http") else self.address + path
        request = Request(url, data, {name.replace("_", "-"): value for name, value in headers.items()}, method=method)
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with build_opener(_Stay()).open(request, timeout=60) as answer:
                return Reply(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except HTTPError as error:
            with error:
                return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def commit(self, repo_id: str, lines: list[Any], token: str | None = "hf_alice") -> Reply:
        """Ask for a commit on main by hand: its header and other `lines`."""
        body = [{"key": "header", "value": {"summary": "x"}}, *lines]
        return self.ask("POST", f"/api/models/{repo_id}/commit/main", "\n".join(map(json.dumps, body)).encode(), token)

    def login(self, user: str, scope: str, app: str = "app") -> dict[str, Any]:
        """Sign `user` in to an application; return what its token endpoint gets."""
        code = self.code(user=user, scope=scope, client_id=app)
        return self.exchange(code, client_id=app).json()  # type: ignore[no-any-return]

    def code(self, **query: str) -> str:
        """Sign alice in to an application, or as `query` says; return the code that its browser brings back."""
        asked = self.ask("GET", f"/oauth/authorize?{urlencode({**SIGN_IN, 'user': 'alice', **query})}", token=None)
        assert asked.status == 302 and asked.headers["location"].startswith(f"{SIGN_IN['redirect_uri']}&")
        answer = parse_qs(urlsplit(asked.headers["location"]).query)
        assert answer["state"] == ["s 1"]
        return answer["code"][0]

    def exchange(self, code: str, **more: str) -> Reply:
        """Exchange a code for a login, as the application does."""
        app = {"redirect_uri": SIGN_IN["redirect_uri"], "client_id": "app"}
        form = {"grant_type": "authorization_code", "code": code, **app, **more}
        return self.ask("POST", "/oauth/token", form=form, token=None)


@pytest.fixture(scope="session")
def hub(served: Callable[..., Server]) -> Server:
    """The Hub that most tests share: Xet, and pages of four items so that every list has several."""
    return served("--page", "4", "--org", "acme=alice,bob", "--user", "alice", "--user", "bob", "--user", "carol")


@pytest.fixture
def repo(hub: Server) -> str:
    """A new repo of alice."""
    repo_id = f"alice/repo-{next(NUMBERS)}"
    hub.api().create_repo(repo_id)
    return repo_id


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., str]:
    """Run Python lines in a process whose client was told `HF_HUB_DISABLE_XET`; `api` is ready there."""

    def script(server: Server, code: str) -> str:
        begin = "from huggingface_hub import *; import io, os, sys, json, pathlib\n"
        begin += f"api = HfApi(endpoint={server.address!r}, token='hf_alice'); here = pathlib.Path({str(tmp_path)!r})\n"
        env = {**environment(), "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run([sys.executable, "-c", begin + code], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return script


def payload(size: int, seed: int = 0) -> bytes:
    """Bytes that no compression shortens, the same at every call."""
    import random

    return random.Random(seed).randbytes(size)
