"""A real browser that looks at the page and notes, by its own clock, when something appears."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield Chromium. Raises StopIteration where it is not installed."""
    with sync_playwright() as playwright:
        path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


def watch(page: Page, what: str) -> None:
    """Note, in the browser, when a click or key came, the busy sign showed and `what` was there."""
    page.evaluate(
        """(what) => {
          const noted = (window.noted = {});
          for (const kind of ["click", "keydown"]) {
            addEventListener(kind, () => (noted.began ??= performance.now()), { capture: true, once: true });
          }
          const look = () => {
            if (noted.began && document.body.classList.contains("busy")) noted.busy ??= performance.now();
            if (noted.began && document.querySelector(what)) noted.seen ??= performance.now();
            if (!noted.seen) requestAnimationFrame(look);
          };
          look();
        }""",
        what,
    )


def seen(page: Page) -> tuple[float, float]:
    """Return the seconds from the click or key to what `watch` waits for, and to the busy sign."""
    page.wait_for_function("window.noted.seen", timeout=60_000)
    noted: dict[str, Any] = page.evaluate("window.noted")
    return (noted["seen"] - noted["began"]) / 1000, (noted.get("busy", noted["seen"]) - noted["began"]) / 1000
