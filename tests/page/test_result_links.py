"""Links to results, in a real browser: a report may be anybody's."""

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from sharding import job
from tests.hubs import download
from tests.localhub.conftest import Server
from tests.page.conftest import Site, call

Visit = Callable[..., Page]


HOSTILE = {"schema": 1, "tool": "<script>document.title='owned'</script>"}


def with_report(hub: Server, name: str, report: bytes) -> str:
    repo_id = f"bob/{name}"
    hub.api("hf_bob").create_repo(repo_id, exist_ok=True)
    hub.api("hf_bob").upload_file(path_or_fileobj=report, path_in_repo="sharding_report.json", repo_id=repo_id)
    return repo_id


def test_a_hostile_report_gets_one_clear_message(home: Site, visit: Visit, hub: Server) -> None:
    repo_id = with_report(hub, "hostile-script", json.dumps(HOSTILE).encode())
    page = visit(home, f"?result={repo_id}")
    message = page.locator("#result").get_by_role("alert")
    expect(message).to_contain_text("is not a report of this tool")
    assert page.title() == "bob/hostile-script · Shard My Repo"
    assert not page.complaints  # type: ignore[attr-defined]
    # So does a link that names no repo at all.
    page.goto(f"{home.address}/?result=<script>document.title='owned'</script>")
    page.complaints.clear()  # type: ignore[attr-defined]  # a page that is left says that its stream broke off
    expect(message).to_be_visible()
    assert page.title() == "Shard My Repo"
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_well_formed_report_with_markup_in_it_is_shown_as_text(
    home: Site, visit: Visit, hub: Server, genuine: str, tmp_path: Path
) -> None:
    folder = download(hub, genuine, tmp_path / "result")
    report = json.loads((folder / "sharding_report.json").read_text())
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    report["tool"] = report["verification"]["method"] = evil
    hub.api("hf_bob").create_repo("bob/hostile-markup")
    hub.api("hf_bob").upload_folder(repo_id="bob/hostile-markup", folder_path=folder)
    page = visit(home, f"?result={with_report(hub, 'hostile-markup', json.dumps(report).encode())}")
    expect(page.locator("#result-details")).to_contain_text("<img src=x onerror")
    assert page.locator("#outcome :is(img, script)").count() == 0
    assert page.title() == "bob/hostile-markup · Shard My Repo"


def test_a_report_alone_is_no_result(home: Site, hub: Server, genuine: str) -> None:
    report = hub.ask("GET", f"/{genuine}/resolve/main/sharding_report.json").body
    _, said = call(home, "result", [with_report(hub, "made-up", report)], {})
    assert "event: error" in said and "The source has no weights" in said


def test_what_a_report_claims_is_shown_until_the_headers_are_read(
    home: Site, visit: Visit, hub: Server, small: str
) -> None:
    *_, _ = job.shard(small, "alice/slow-result", "90kB", endpoint=hub.address, token="hf_alice")
    page = visit(home, "")
    page.add_init_script(
        """window.levels = []
        new MutationObserver(() => {
            const level = document.querySelector("[data-trust]")?.dataset.trust
            if (level && window.levels.at(-1) !== level) window.levels.push(level)
        }).observe(document, {subtree: true, childList: true, attributeFilter: ["data-trust"]})"""
    )
    page.goto(f"{home.address}/?result=alice/slow-result")
    expect(page.locator('#result [data-trust="fits"]')).to_be_visible()
    assert page.evaluate("window.levels") == ["claims", "fits"]
