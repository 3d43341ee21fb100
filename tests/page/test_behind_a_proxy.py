"""The page starts on a machine whose programs reach the world through a proxy."""

from pathlib import Path

from tests.clusters import wait_until
from tests.inhouse import InHouse
from tests.page.site import Site


def test_the_page_starts_whatever_proxy_is_named(hub: InHouse, tmp_path: Path) -> None:
    """Gradio asks its own address whether it is there, and would ask the proxy."""
    nobody = dict.fromkeys(("http_proxy", "HTTP_PROXY", "https_proxy"), "http://127.0.0.1:9")
    site = Site(hub, tmp_path / "site", nobody | {"PYTHONUNBUFFERED": "1", "no_proxy": "example.org"})
    try:
        site.start()
        assert site.process
        # The last that it says, after it has asked itself.
        wait_until(lambda: "Launching MCP" in site.log or site.process.poll() is not None)  # type: ignore[union-attr]
        assert "Launching MCP" in site.log
    finally:
        site.stop()
