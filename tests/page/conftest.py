"""The page served in a process of its own, as a Space of a loopback Hub or on somebody's machine, and a browser."""

import asyncio
import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.error import URLError
from urllib.request import urlopen

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright
from safetensors.numpy import save_file
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sharding import job
from tests.conftest import LONGEST_SECONDS, ROOT, environment, random_tensors, write_checkpoint
from tests.inhouse import InHouse, hub_in_house
from tests.localhub.conftest import Server

NUMBERS = count()
PATIENCE_MS = 1000 * LONGEST_SECONDS
"""How long a browser waits for what must come; nothing is asserted about time."""

expect.set_options(timeout=PATIENCE_MS)

CARD = "---\nlicense: apache-2.0\n---\n# A model\n"


def browser_path() -> str | None:
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = browser_path()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("There is no Chromium, and in CI the page must be shown in one.")
        pytest.skip("There is no Chromium: `apt-get install chromium`.")
    with sync_playwright() as playwright:
        # As root, which build machines are, Chromium cannot make its sandbox. On a Space, Gradio asks the public Hub
        # about it and for fonts; here nothing but this machine has a name.
        alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", alone])
        yield browser
        browser.close()


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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Hold:
    """What the Hub holds back: requests that match `pattern`, once it has let the first `left` pass."""

    pattern: re.Pattern[str]
    left: int


HOLDS: list[Hold] = []


class Holding:
    """Middleware of the Hub that holds back requests for as long as a test wants."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = f"{scope.get('method', '')} {scope['path']}" if scope["type"] == "http" else ""
        for hold in [hold for hold in HOLDS if hold.pattern.search(line)]:
            hold.left -= 1
            while hold.left < 0 and hold in HOLDS:
                await asyncio.sleep(0.02)
        await self._app(scope, receive, send)


@contextmanager
def held(pattern: str, after: int = 0) -> Iterator[None]:
    """Have the Hub hold back requests ("METHOD path") while the block lasts, once it has answered `after` of them."""
    HOLDS.append(hold := Hold(re.compile(pattern), after))
    try:
        yield
    finally:
        HOLDS.remove(hold)


def held_job(name: str, after: int = 0) -> AbstractContextManager[None]:
    """Have a job into the repo `name` get no further than `after` shards: for each it asks for leave to upload."""
    return held(f"GET .*/{name}/xet-write", after)


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    orgs = {"acme": ("alice", "bob")}
    # Over HTTP a test may upload while a job does: a folder as store takes one at a time.
    folder = tmp_path_factory.mktemp("hub")
    with hub_in_house(folder, Middleware(Holding), orgs=orgs, xet_over_http=True, xet_seconds=60) as hub:
        yield hub


@pytest.fixture(scope="session")
def small(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source of 240 kB in two files."""
    tensors, folder = random_tensors(), tmp_path_factory.mktemp("in") / "small"
    names = list(tensors)
    halves = {f"model-0000{n + 1}-of-00002.safetensors": names[8 * n : 8 * n + 8] for n in (0, 1)}
    write_checkpoint(folder, {file: {name: tensors[name] for name in part} for file, part in halves.items()})
    return push(hub, folder, "bob/small")


def save_variants(folder: Path) -> Path:
    """Float32 weights, three of them too large for fp16, and their variant fp16."""
    plain = {f"layers.{n}.weight": np.full(3000, n, np.float32) for n in range(6)}
    plain["layers.5.weight"][:3] = 1e6
    half = {name: np.minimum(tensor, 6e4).astype(np.float16) for name, tensor in plain.items()}
    files = {"model.safetensors": plain, "model.fp16.safetensors": half}
    write_checkpoint(folder, files, False)
    (folder / "config.json").unlink()  # nothing for transformers to be asked about
    return folder


@pytest.fixture(scope="session")
def variants(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push(hub, save_variants(tmp_path_factory.mktemp("in") / "variants"), "bob/variants")


def save_fp8(folder: Path) -> Path:
    """A model in FP8, with a scale for each 128 x 128, written by hand: to import torch takes seconds."""
    parts: dict[str, tuple[str, tuple[int, ...], bytes]] = {"norm.weight": ("BF16", (400,), b"\x80\x3f" * 400)}
    for n in range(4):  # 448 is the largest number in FP8: with these scales, layer n is n + 1 all over
        parts[f"layers.{n}.weight"] = ("F8_E4M3", (200, 400), b"\x7e" * 80_000)
        scales = np.full((2, 4), (n + 1) / 448, np.float32)
        parts[f"layers.{n}.weight_scale_inv"] = ("F32", scales.shape, scales.tobytes())
    entries, end = {}, 0
    for name, (dtype, shape, content) in parts.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end := end + len(content)]}
    header = json.dumps(entries).encode()
    folder.mkdir()
    content = len(header).to_bytes(8, "little") + header + b"".join(content for *_, content in parts.values())
    (folder / "model.safetensors").write_bytes(content)
    said = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    (folder / "config.json").write_text(json.dumps({"quantization_config": said}))
    return folder


@pytest.fixture(scope="session")
def quantized(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push(hub, save_fp8(tmp_path_factory.mktemp("in") / "fp8"), "bob/model-fp8")


LAYERS, SIDE, RANK = 6, 32, 4
"""Of the model that an adapter changes, and of the adapter."""


def save_plain(folder: Path) -> Path:
    """A model in one file, of which an adapter changes two tensors in each layer."""
    generator = np.random.default_rng(0)
    parts = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    tensors = {
        f"model.layers.{n}.{part}.weight": generator.standard_normal((SIDE, SIDE)).astype(np.float32)
        for n in range(LAYERS)
        for part in parts
    }
    tensors["model.embed_tokens.weight"] = generator.standard_normal((64, SIDE)).astype(np.float32)
    return write_checkpoint(folder, {"model.safetensors": tensors}, False)


def save_lora(folder: Path, side: int = SIDE) -> Path:
    """Write an adapter as PEFT does, by hand: to import torch takes seconds."""
    generator, tensors = np.random.default_rng(1), {}
    for layer in range(LAYERS):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = generator.standard_normal((RANK, side)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = generator.standard_normal((side, RANK)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def layered(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public model of 40 layers in one file."""
    parts = {"self_attn.q_proj": 40, "mlp.up_proj": 60, "input_layernorm": 1}
    tensors = {
        f"model.layers.{n}.{part}.weight": np.full(25 * size, n, np.float32)
        for n in range(40)
        for part, size in parts.items()
    }
    tensors |= {"model.embed_tokens.weight": np.ones(9000, np.float32)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "layered", {"model.safetensors": tensors}, False)
    return push(hub, folder, "bob/layered")


@pytest.fixture(scope="session")
def gated(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "g", {"model.safetensors": random_tensors()}, False)
    repo_id = push(hub, folder, "bob/gated")
    hub.api("hf_bob").update_repo_settings(repo_id, gated="auto")
    return repo_id


@pytest.fixture(scope="session")
def long(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public source that `LONG` cuts into 12 shards: into a slow repo, there is time to interfere."""
    tensors = {f"layers.{n}.weight": np.full(3000, n, np.float32) for n in range(60)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "long", {"model.safetensors": tensors}, False)
    return push(hub, folder, "bob/long")


LONG = "60kB"


@pytest.fixture(scope="session")
def tiny(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A whole model that can be loaded."""
    from tests import models

    return push(hub, models.save("llama", tmp_path_factory.mktemp("in") / "tiny"), "bob/tiny")


@pytest.fixture(scope="session")
def genuine(hub: Server, small: str) -> str:
    """A result that this tool made."""
    *_, _ = job.shard(small, "alice/genuine", "90kB", endpoint=hub.address, token="hf_alice")
    return "alice/genuine"


def push(hub: Server, folder: Path, repo_id: str) -> str:
    (folder / "README.md").write_text(CARD)
    hub.api("hf_bob").create_repo(repo_id)
    hub.api("hf_bob").upload_folder(repo_id=repo_id, folder_path=folder)
    return repo_id


@pytest.fixture(scope="session")
def serve(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Site]]:
    """Serve the page with the settings given; it is stopped at the end."""
    sites: list[Site] = []

    def serve(**settings: str) -> Site:
        sites.append(Site(hub, tmp_path_factory.mktemp("site"), settings).start())
        return sites[-1]

    yield serve
    for site in sites:
        site.stop(signal.SIGKILL)  # nothing runs there any more, and nobody waits for good manners


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


@pytest.fixture(scope="session")
def space(hub: Server, serve: Callable[..., Site]) -> Site:
    """The page as a Space, which most tests share."""
    return serve(**as_space(hub))


@pytest.fixture(scope="session")
def home(serve: Callable[..., Site]) -> Site:
    """The page on the machine of alice, who is logged in there."""
    return serve(HF_TOKEN="hf_alice")


@pytest.fixture(scope="session")
def strangers(browser: Browser) -> list[BrowserContext]:
    """Browsers that know nobody, and have the scripts of the page since the last visit."""
    return []


@pytest.fixture
def visit(browser: Browser, strangers: list[BrowserContext]) -> Iterator[Callable[..., Page]]:
    """Open a page in a browser of its own that knows nobody, or `user`; `complaints` of it are what its console said."""
    taken: list[BrowserContext] = []

    def visit(
        site: Site, query: str = "", color_scheme: Literal["light", "dark"] = "light", user: str | None = None
    ) -> Page:
        taken.append(strangers.pop() if strangers else browser.new_context())
        taken[-1].set_default_timeout(PATIENCE_MS)
        if user:
            know(taken[-1], site, user)
        page = taken[-1].new_page()
        page.set_viewport_size({"width": 1440, "height": 900})
        page.emulate_media(color_scheme=color_scheme)
        page.complaints = []  # type: ignore[attr-defined]
        page.on("console", lambda said: is_ours(said) and page.complaints.append(said.text))  # type: ignore[attr-defined]
        page.on("pageerror", lambda error: page.complaints.append(str(error)))  # type: ignore[attr-defined]
        page.goto(f"{site.address}/{query}")
        arrive(page)
        return page

    yield visit
    for context in taken:
        for page in context.pages:
            page.evaluate("localStorage.clear()")
            page.close()
        context.clear_cookies()
        strangers.append(context)


def is_ours(said: ConsoleMessage) -> bool:
    """Whether the console of a browser complains about what is served here."""
    return said.type == "error" and "127.0.0.1" in (said.location["url"] or "127.0.0.1")


def arrive(page: Page) -> None:
    """Return when the page is there, and listens."""
    page.locator("#account p").first.wait_for()


Headers = Mapping[str, str]
PATIENTLY: dict[str, Any] = {"timeout": LONGEST_SECONDS, "verify": False}
"""How httpx asks. Nothing speaks TLS here, and to read the certificates that it would verify takes long."""


def ask(site: Site, method: str, path: str, headers: Headers, body: Any = None) -> httpx.Response:
    """Ask as no browser would let one: any header, `Host` among them."""
    return httpx.request(method, site.address + path, headers=headers, json=body, **PATIENTLY)


def call(site: Site, endpoint: str, arguments: list[Any], headers: Headers) -> tuple[int, str]:
    """Call an endpoint as any page could; return the status, and what it answered in the end."""
    began = ask(site, "POST", f"/gradio_api/call/{endpoint}", headers, {"data": arguments})
    if began.status_code != 200:
        return began.status_code, began.text
    followed = ask(site, "GET", f"/gradio_api/call/{endpoint}/{began.json()['event_id']}", headers)
    return followed.status_code, followed.text


def arrival(site: Site) -> dict[str, Any]:
    """What the page asks when a visitor arrives: it greets those it knows."""
    config = ask(site, "GET", "/config", {}).json()
    greet = next(fn["id"] for fn in config["dependencies"] if fn["api_name"] == "greet")
    return {"data": [], "fn_index": greet, "session_hash": copy_name("session"), "trigger_id": None}


def greeting(site: Site, headers: Headers) -> str:
    """What the page says to who arrives with `headers`."""
    asked = arrival(site)
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
    began = ask(site, "GET", "/login/huggingface?_target_url=/", {})
    agreed = httpx.get(f"{began.headers['Location']}&user={user}", **PATIENTLY)
    back = {"Cookie": f"session={began.cookies['session']}"}
    known = httpx.get(agreed.headers["Location"], headers=back, **PATIENTLY)
    return known.cookies["session"]


def token_of(session: str) -> str:
    """Return what the login in a cookie of a Space may show to the Hub."""
    token: str = json.loads(base64.b64decode(session.split(".")[0] + "=="))["oauth_info"]["access_token"]
    return token


def know(context: BrowserContext, site: Site, user: str) -> None:
    """Have a browser that keeps the cookie of `user`, who has signed in on the Space before."""
    cookie = {"name": "session", "value": session_of(site, user), "domain": "127.0.0.1", "path": "/"}
    context.add_cookies([{**cookie, "secure": True, "httpOnly": True, "sameSite": "None"}])  # type: ignore[typeddict-item]


def become(page: Page, site: Site, user: str) -> None:
    """Have a visitor, whom the page did not know, come back as `user`."""
    know(page.context, site, user)
    page.reload()
    page.complaints.clear()  # type: ignore[attr-defined]  # a page that is left says that its stream broke off
    page.locator("#account").get_by_text(f"Signed in as {user}").wait_for()


def sign_in(page: Page, user: str) -> None:
    page.locator("#sign-in").click()
    page.get_by_role("button", name=f"Continue as {user}").click()
    page.locator("#account").get_by_text(f"Signed in as {user}").wait_for()


def copy_name(kind: str = "copy") -> str:
    """A name that no repo has yet."""
    return f"{kind}-{next(NUMBERS)}"


def files(page: Page) -> Locator:
    """The files of the copy in the map of the plan: there are at most 240 apart."""
    return page.locator("#picture .strip.after rect.file")


def advanced(page: Page) -> Page:
    """Open what few visitors need; return the page."""
    heading = page.locator("#advanced > button")
    heading.wait_for()
    if not page.locator("#strategy").is_visible():
        heading.click()
        page.locator("#strategy").wait_for()
    return page


def start_job(page: Page, name: str) -> str:
    """Push what is planned to `name`; return the id of the job."""
    page.locator("#start:not([disabled])").wait_for()
    advanced(page)
    page.get_by_label("Name of the new repo").fill(name)
    page.locator("#start").click()
    page.locator("#progress .job").wait_for()
    expect(page).to_have_url(re.compile(r"\?job="))
    return page.url.partition("?job=")[2]


def cancel(page: Page) -> None:
    """Cancel the job that is shown, and return when it is told to stop."""
    page.get_by_role("button", name="Cancel").click()
    page.locator("#progress .job:is(.cancelling, .cancelled)").wait_for()


def settled(page: Page) -> None:
    """Return when the map is there and nothing moves any more."""
    page.locator("#picture .map[data-built]").wait_for()
    page.wait_for_function("!document.getAnimations().length")


def list_first_file(page: Page) -> None:
    """List the tensors in the first file of the copy."""
    page.locator("#picture .strip.after").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#tensors h3")).to_be_visible()
