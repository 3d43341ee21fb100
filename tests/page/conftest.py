"""A Hub with a few sources, the page on a Space of it and on alice's machine, and a browser."""

import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

from tests import hubs
from tests.conftest import LONGEST_SECONDS, in_two_files
from tests.inhouse import InHouse, hub_in_house
from tests.localhub.conftest import Server
from tests.page.rooms import Rooms, rooms_over
from tests.page.site import Site, as_space, session_of
from tests.page.sources import save_fp8, save_layered, save_long, save_one, save_variants

Publish = Callable[[Callable[[Path], Path], str], str]
Visit = Callable[..., Page]
PATIENCE_MS = 1000 * LONGEST_SECONDS
"""How long a browser waits for what must come; nothing is asserted about time."""

expect.set_options(timeout=PATIENCE_MS)

STYLE = "theme.css"
"""What a browser that is to stand on the site, and needs no page, opens there."""
CARD = "---\nlicense: apache-2.0\n---\n# A model\n"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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


# --- A Hub, and what is on it ---------------------------------------------------------------------------


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    # Over HTTP a test may upload while a job does: a folder as store takes one at a time.
    folder, orgs = tmp_path_factory.mktemp("hub"), {"acme": ("alice", "bob")}
    with hub_in_house(folder, orgs=orgs, xet_over_http=True, xet_seconds=60) as hub:
        yield hub


@pytest.fixture(scope="session")
def publish(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Put what is saved in a folder into a repo of bob, with a card."""

    def publish(save: Callable[[Path], Path], name: str) -> str:
        folder = save(tmp_path_factory.mktemp("in") / name)
        (folder / "README.md").write_text(CARD)
        return hubs.push(hub, folder, f"bob/{name}", "hf_bob")

    return publish


@pytest.fixture(scope="session")
def small(publish: Publish) -> str:
    """A public source of 240 kB in two files."""
    return publish(in_two_files, "small")


@pytest.fixture(scope="session")
def variants(publish: Publish) -> str:
    return publish(save_variants, "variants")


@pytest.fixture(scope="session")
def quantized(publish: Publish) -> str:
    return publish(save_fp8, "model-fp8")


@pytest.fixture(scope="session")
def layered(publish: Publish) -> str:
    return publish(save_layered, "layered")


@pytest.fixture(scope="session")
def long(publish: Publish) -> str:
    return publish(save_long, "long")


@pytest.fixture(scope="session")
def gated(hub: Server, publish: Publish) -> str:
    repo_id = publish(save_one, "gated")
    hub.api("hf_bob").update_repo_settings(repo_id, gated="auto")
    return repo_id


@pytest.fixture(scope="session")
def genuine(hub: Server, small: str) -> str:
    """A result that this tool made."""
    hubs.shard(hub, small, "alice/genuine", "90kB")
    return "alice/genuine"


def held_job(hub: InHouse, name: str, after: int = 0) -> AbstractContextManager[None]:
    """Have a job into the repo `name` get no further than `after` shards: for each it asks for leave to upload."""
    return hub.holding(f"GET .*/{name}/xet-write", after)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rooms]:
    """The rooms of the page over a Hub of their own, without a browser."""
    with rooms_over(tmp_path_factory.mktemp("rooms"), orgs={"acme": ("alice", "bob")}) as rooms:
        yield rooms


# --- The page -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def serve(hub: Server, warm_path: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Site]]:
    """Serve the page with the settings given; it is stopped at the end. What would import torch is forked."""
    sites: list[Site] = []

    def serve(**settings: str) -> Site:
        sites.append(Site(hub, tmp_path_factory.mktemp("site"), {"PYTHONPATH": warm_path, **settings}).start())
        return sites[-1]

    yield serve
    for site in sites:
        site.stop(signal.SIGKILL)  # nothing runs there any more, and nobody waits for good manners


@pytest.fixture(scope="session")
def space(hub: Server, serve: Callable[..., Site]) -> Site:
    """The page as a Space, which most tests share."""
    return serve(**as_space(hub))


@pytest.fixture(scope="session")
def home(serve: Callable[..., Site]) -> Site:
    """The page on the machine of alice, who is logged in there."""
    return serve(HF_TOKEN="hf_alice")


# --- Visitors -------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def strangers(browser: Browser) -> list[BrowserContext]:
    """Browsers that know nobody, and have the scripts of the page since the last visit."""
    return []


@pytest.fixture
def visit(browser: Browser, strangers: list[BrowserContext]) -> Iterator[Visit]:
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
        if query != STYLE:
            page.locator("#account p").first.wait_for()  # it listens
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


def model(page: Page) -> Locator:
    """The field of the model."""
    return page.locator("#repo input")


def size(page: Page) -> Locator:
    return page.get_by_label("Maximum file size")


def enter(field: Locator, text: str) -> None:
    """Write `text` into a field, and press Enter there."""
    field.fill(text)
    field.press("Enter")


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


def where(page: Page) -> Page:
    """Open what can be changed about the copy's repo; return the page."""
    heading = page.locator("#where > button")
    heading.wait_for()
    if not page.locator("#name").is_visible():
        heading.click()
        page.locator("#name").wait_for()
    return page


def start_job(page: Page, name: str) -> str:
    """Push what is planned to `name`; return the id of the job."""
    page.locator("#start:not([disabled])").wait_for()
    where(page)
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


def fits(page: Page) -> bool:
    """Whether nothing is wider than the page."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def shift(page: Page) -> float:
    """How far what was in view has moved since the page was opened, as a browser counts it (cumulative layout shift)."""
    moved: float = page.evaluate("""() => new Promise((tell) => {
      new PerformanceObserver((list) => tell(list.getEntries().reduce((sum, entry) => sum + entry.value, 0)))
        .observe({ type: "layout-shift", buffered: true });
      setTimeout(() => tell(0), 500);
    })""")
    return moved
