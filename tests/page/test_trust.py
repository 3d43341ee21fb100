"""What a result link says of a result, which may be anybody's, in a browser."""

import json
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests import models
from tests.hubs import download, push, shard
from tests.localhub.conftest import Server
from tests.page.conftest import Visit, become, shift
from tests.page.site import Site, answer_in, call, copy_name


def headline(page: Page, level: str) -> Locator:
    state = page.locator(f'#result .state[data-trust="{level}"]')
    state.wait_for()
    return state


def test_what_fits_together_is_no_proof_until_every_byte_was_read(
    space: Site, visit: Visit, hub: Server, small: str
) -> None:
    name = f"alice/{copy_name('elsewhere')}"
    shard(hub, small, name, "90kB")
    page = visit(space, f"?result={name}")
    said = headline(page, "fits")
    expect(said).to_contain_text(f"Matches the structure of {small}@")
    expect(said).to_contain_text("bytes not checked yet")
    assert "good" not in (said.get_attribute("class") or "")
    expect(page.locator("#result")).to_contain_text("this page has not checked that")
    check = page.locator("#result details pre")
    expect(check).to_contain_text(
        f"pip install git+https://huggingface.co/spaces/carol/shard-my-repo\n\nshard-my-repo verify {small}@"
    )
    expect(page.locator("#result-details")).to_contain_text("How it was made, as its report says")
    expect(page.locator("#result-details")).to_contain_text("The proof, as its report says, took")
    # The first screen has the check, or the way to it.
    expect(page.locator("#check-message")).to_contain_text("Sign in to check every byte.")
    expect(page.locator("#check-message button")).to_be_in_viewport()
    assert shift(page) <= 0.05
    become(page, space, "bob")
    expect(page.locator("#check")).to_be_in_viewport()
    page.locator("#check:not([disabled])").click()
    said = headline(page, "read-now")
    expect(said).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    expect(page.locator("#result")).to_contain_text("Not checked: code, configuration, tokenizer,")
    assert "good" in (said.get_attribute("class") or "")
    trust = answer_in(call(space, "result", [name])[1])["trust"]
    assert trust["level"] == "read-now" and "the figures of a report for time" in " ".join(trust["reasons"])


def test_what_loading_a_result_costs_is_measured_from_its_page(
    space: Site, visit: Visit, hub: Server, tmp_path: Path
) -> None:
    name = f"alice/{copy_name('loaded')}"
    shard(hub, push(hub, models.save("llama", tmp_path / "in", layers=1), f"{name}-in"), name, "20kB")
    page = visit(space, f"?result={name}")
    headline(page, "fits")
    expect(page.locator("#load")).to_be_hidden()  # without a login
    become(page, space, "bob")
    page.locator("#load:not([disabled])").click()
    expect(page.locator("#progress")).to_contain_text("Measure loading")
    expect(page.locator("#result-details")).to_contain_text("What loading costs")
    expect(page.locator("#result-details svg")).to_be_visible()
    headline(page, "fits")
    expect(page.locator("#load")).to_be_visible()
    expect(page).to_have_url(re.compile(rf"\?result={name}@[0-9a-f]{{40}}$"))
    stranger = visit(space, f"?result={name}")
    expect(stranger.locator("#result-details")).to_contain_text("This page measured that on")
    expect(stranger.locator("#result-details svg")).to_be_visible()


def with_report(hub: Server, name: str, report: bytes) -> str:
    repo_id = f"bob/{name}"
    hub.api("hf_bob").create_repo(repo_id, exist_ok=True)
    hub.api("hf_bob").upload_file(path_or_fileobj=report, path_in_repo="sharding_report.json", repo_id=repo_id)
    return repo_id


def test_markup_in_a_report_is_text(home: Site, visit: Visit, hub: Server, genuine: str, tmp_path: Path) -> None:
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
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_report_alone_is_no_result(home: Site, hub: Server, genuine: str) -> None:
    report = hub.ask("GET", f"/{genuine}/resolve/main/sharding_report.json").body
    _, said = call(home, "result", [with_report(hub, "made-up", report)])
    assert "event: error" in said and "The source has no weights" in said
