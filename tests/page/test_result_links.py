"""Links to results, in a real browser: a report may be anybody's."""

import json
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

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


def test_a_hostile_report_gets_one_clear_message_and_markup_in_a_well_formed_one_is_text(
    home: Site, visit: Visit, hub: Server, genuine: str, tmp_path: Path
) -> None:
    repo_id = with_report(hub, "hostile-script", json.dumps(HOSTILE).encode())
    page = visit(home, f"?result={repo_id}")
    expect(page.locator("#result").get_by_role("alert")).to_contain_text("is not a report of this tool")
    assert page.title() == "bob/hostile-script · Shard My Repo"
    assert not page.complaints  # type: ignore[attr-defined]
    folder = download(hub, genuine, tmp_path / "result")
    report = json.loads((folder / "sharding_report.json").read_text())
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    report["tool"] = report["verification"]["method"] = evil
    hub.api("hf_bob").create_repo("bob/hostile-markup")
    hub.api("hf_bob").upload_folder(repo_id="bob/hostile-markup", folder_path=folder)
    place = with_report(hub, "hostile-markup", json.dumps(report).encode())
    page.goto(f"{home.address}/?result={place}")
    expect(page.locator("#result-details")).to_contain_text("<img src=x onerror")
    assert page.locator("#outcome :is(img, script)").count() == 0
    assert page.title() == "bob/hostile-markup · Shard My Repo"


def test_a_report_alone_is_no_result(home: Site, hub: Server, genuine: str) -> None:
    report = hub.ask("GET", f"/{genuine}/resolve/main/sharding_report.json").body
    _, said = call(home, "result", [with_report(hub, "made-up", report)], {})
    assert "event: error" in said and "The source has no weights" in said
