"""What a result link says of a result, which may be anybody's: over HTTP and in a browser."""

import json
import shutil
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from sharding import job
from tests.hubs import download, propose
from tests.localhub.conftest import Server
from tests.page.conftest import Site, become, call, copy_name, start_job
from tests.promises import promise

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def elsewhere(hub: Server, small: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result that was made elsewhere, as files."""
    name = f"alice/{copy_name('elsewhere')}"
    *_, _ = job.shard(small, name, "90kB", endpoint=hub.address, token="hf_alice")
    return download(hub, name, tmp_path_factory.mktemp("out") / "elsewhere")


@pytest.fixture
def result(elsewhere: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed; `publish` puts it into a repo."""
    return Path(shutil.copytree(elsewhere, tmp_path / "result"))


def publish(hub: Server, folder: Path) -> str:
    name = f"bob/{copy_name('told')}"
    hub.api("hf_bob").create_repo(name)
    hub.api("hf_bob").upload_folder(repo_id=name, folder_path=folder)
    return name


def change_a_bit(folder: Path) -> None:
    """Change one bit of a shard, and what report and digests say of the file."""
    shard = min(folder.glob("*.safetensors"))
    content = bytearray(shard.read_bytes())
    was = sha256(content).hexdigest()
    content[-1] ^= 1
    shard.write_bytes(content)
    for told in (folder / "sharding_report.json", folder / "sharding_digests.json"):
        told.write_text(told.read_text().replace(was, sha256(content).hexdigest()))


def api_result(site: Site, repo: str, token: str = "hf_bob") -> dict[str, Any]:
    _, said = call(site, "result", [repo], {"Authorization": f"Bearer {token}"})
    assert "event: complete" in said, said
    answer: dict[str, Any] = json.loads(said.partition("data: ")[2].partition("\n")[0])[0]
    return answer


def headline(page: Page, level: str) -> Locator:
    state = page.locator(f'#result .state[data-trust="{level}"]')
    state.wait_for()
    return state


def test_what_fits_together_is_no_proof_until_every_byte_was_read(
    space: Site, visit: Visit, hub: Server, result: Path, small: str
) -> None:
    name = publish(hub, result)
    page = visit(space, f"?result={name}")
    said = headline(page, "fits")
    expect(said).to_contain_text(f"Matches the structure of {small}@")
    expect(said).to_contain_text("bytes not checked yet")
    assert "good" not in (said.get_attribute("class") or "")
    expect(page.locator("#result")).to_contain_text("this page has not checked that")
    expect(page.locator("#result-details")).to_contain_text(f"shard-my-repo verify {small}@")
    expect(page.locator("#result-details")).to_contain_text("How it was made, as its report says")
    expect(page.locator("#result-details")).to_contain_text("The proof, as its report says: ")
    # The first screen has the check, or the way to it.
    expect(page.locator("#check-message")).to_contain_text("Sign in to check every byte.")
    expect(page.locator("#check-message button")).to_be_in_viewport()
    assert api_result(space, name)["trust"]["level"] == "fits"

    become(page, space, "bob")
    expect(page.locator("#check")).to_be_in_viewport()
    page.locator("#check:not([disabled])").click()
    expect(page.locator("#result")).to_contain_text("Not checked: code, configuration, tokenizer,")
    page.get_by_role("link", name="Show the result").click()
    said = headline(page, "read-now")
    expect(said).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    expect(page.locator("#result")).to_contain_text("Not checked: code, configuration, tokenizer,")
    assert "the figures of a report for time" in " ".join(api_result(space, name)["trust"]["reasons"])
    assert "good" in (said.get_attribute("class") or "")
    assert api_result(space, name)["trust"]["level"] == "read-now"


def test_another_commit_of_what_was_read_is_not_what_was_read(space: Site, hub: Server, result: Path) -> None:
    name = publish(hub, result)
    assert api_result(space, name)["trust"]["level"] == "fits"
    change_a_bit(result)
    hub.api("hf_bob").upload_folder(repo_id=name, folder_path=result)
    assert api_result(space, name)["trust"]["level"] == "fits"


def test_a_bit_that_headers_do_not_tell_is_found_by_reading(
    space: Site, visit: Visit, hub: Server, result: Path
) -> None:
    change_a_bit(result)
    name = publish(hub, result)
    page = visit(space, f"?result={name}", user="bob")
    headline(page, "fits")
    page.locator("#check:not([disabled])").click()
    expect(page.locator("#progress .failed")).to_contain_text("The copy differs from its source in 1 tensor")
    answer = api_result(space, name)
    assert (answer["trust"]["level"], answer["report"]) == ("contradicted", None)
    assert "The copy differs from its source in 1 tensor" in " ".join(answer["trust"]["reasons"])


def test_what_cannot_be_compared_only_claims(
    space: Site, visit: Visit, hub: Server, tmp_path: Path, small: str
) -> None:
    source = f"alice/{copy_name('hidden')}"
    hub.api("hf_alice").create_repo(source, private=True)
    hub.api("hf_alice").upload_folder(repo_id=source, folder_path=download(hub, small, tmp_path / "in"))
    name = f"alice/{copy_name('shown')}"
    *_, _ = job.shard(source, name, "90kB", private=False, confirmed=True, endpoint=hub.address, token="hf_alice")
    page = visit(space, f"?result={name}")
    said = headline(page, "claims")
    expect(said).to_contain_text(f"Claims to be {source}@")
    assert "good" not in (said.get_attribute("class") or "")
    expect(page.locator("#result")).to_contain_text("Its source cannot be compared")
    expect(page.locator("#check")).to_have_count(0)
    assert api_result(space, name)["trust"]["level"] == "claims"
    assert api_result(space, name, "hf_alice")["trust"]["level"] == "fits"


def is_green(shown: Locator) -> bool:
    """Whether something is written in the colour of what is good."""
    return bool(
        shown.evaluate(
            """element => {
                const probe = document.createElement("i")
                probe.style.color = "var(--good)"
                element.append(probe)
                const good = getComputedStyle(probe).color
                probe.remove()
                return getComputedStyle(element).color === good
            }"""
        )
    )


def test_weights_of_a_pull_request_are_named_so_and_never_green(
    space: Site, visit: Visit, hub: Server, small: str, tmp_path: Path
) -> None:
    famous = f"alice/{copy_name('famous')}"
    folder = download(hub, small, tmp_path / "in")
    hub.api("hf_alice").create_repo(famous)
    hub.api("hf_alice").upload_folder(repo_id=famous, folder_path=folder)
    (folder / "config.json").write_text("{}")
    commit = propose(hub, folder, famous)
    said = f"No known branch or tag of {famous} contains commit {commit[:12]}"

    page = visit(space, f"?repo={famous}@{commit}&size=90kB", user="bob")
    expect(page.get_by_label("The model")).to_contain_text("a commit on no known branch")
    expect(page.locator("body")).to_contain_text(said)
    name = copy_name("unmerged")
    start_job(page, name)
    shown = headline(page, "unreached")  # the job's own result
    assert not is_green(page.locator(".job .state"))
    expect(page.locator("#result")).to_contain_text(said)
    assert "good" not in (shown.get_attribute("class") or "")

    page.goto(f"{space.address}/?result=bob/{name}")
    shown = headline(page, "unreached")
    expect(shown).to_have_text("Of a commit that is on no known branch")
    assert "good" not in (shown.get_attribute("class") or "")
    expect(page.locator("#result")).to_contain_text(said)
    expect(page.locator("#result")).not_to_contain_text("bit-identical")
    page.goto(space.address)
    job = page.get_by_label("My jobs").get_by_role("listitem").filter(has_text=name)
    expect(job).to_contain_text(f"from {famous}, a commit on no known branch")
    assert not is_green(job.locator(".badge"))
    answer = api_result(space, f"bob/{name}")
    assert answer["trust"]["level"] == "unreached" and said in answer["trust"]["reasons"][0]


LIES = ("a shard is another", "of another model", "another architecture", "of itself")


def tell(lie: str, hub: Server, result: Path, folder: Path) -> str:
    """Publish the result with something that does not fit."""
    shutil.copytree(result, folder)
    if lie == "a shard is another":
        shard = min(folder.glob("*.safetensors"))
        shard.write_bytes(shard.read_bytes()[:-1] + b"\x7f")
    name = publish(hub, folder)
    report = json.loads((folder / "sharding_report.json").read_text())
    if lie == "of another model":
        report["source"] |= {"repo_id": "bob/long", "revision": hub.api().model_info("bob/long").sha}
    elif lie == "another architecture":
        report["source"]["architecture"] = "EvilForCausalLM"
    elif lie == "of itself":
        report["source"] |= {"repo_id": name, "revision": hub.api().model_info(name).sha}
    hub.api("hf_bob").upload_file(
        path_or_fileobj=json.dumps(report).encode(), path_in_repo="sharding_report.json", repo_id=name
    )
    return name


def test_what_does_not_fit_is_red_and_nothing_of_it_is_shown(
    space: Site, visit: Visit, hub: Server, long: str, elsewhere: Path, tmp_path: Path
) -> None:
    for number, lie in enumerate(LIES):
        name = tell(lie, hub, elsewhere, tmp_path / str(number))
        answer = api_result(space, name)
        assert (answer["trust"]["level"], answer["report"]) == ("contradicted", None), lie
        assert answer["trust"]["reasons"], lie
    page = visit(space, f"?result={name}")
    refusal = page.locator("#result").get_by_role("alert")
    expect(refusal).to_contain_text(f"The report in {name} does not match")
    expect(refusal).to_contain_text(answer["trust"]["reasons"][0])
    expect(page.locator("#result")).not_to_contain_text("identical")


@promise("docs/security.md#make-a-folder-look-like-a")
def test_a_folder_with_the_name_of_a_famous_repo_is_not_shown_as_that_repo(
    space: Site, visit: Visit, hub: Server, result: Path
) -> None:
    """With the whole name the report is refused: no folder has it. The last part may be one's."""
    report = json.loads((result / "sharding_report.json").read_text())
    report["source"] |= {"kind": "folder", "repo_id": "Llama-3.1-8B", "revision": "0" * 40}
    (result / "sharding_report.json").write_text(json.dumps(report))
    page = visit(space, f"?result={publish(hub, result)}")
    expect(headline(page, "claims")).to_have_text("Claims to be the folder Llama-3.1-8B")
    expect(page.locator("#result-details")).to_contain_text("from the folder Llama-3.1-8B in the state")
    assert not page.locator("#result, #result-details").get_by_text("Llama-3.1-8B@").count()
    report["source"]["repo_id"] = "meta-llama/Llama-3.1-8B"
    (result / "sharding_report.json").write_text(json.dumps(report))
    page = visit(space, f"?result={publish(hub, result)}")
    expect(page.locator("#result")).to_contain_text("is not a report of this tool")
    expect(page.locator("a[href*='meta-llama']")).to_have_count(0)


def test_three_thousand_remarks_are_counted(space: Site, visit: Visit, hub: Server, result: Path) -> None:
    report = json.loads((result / "sharding_report.json").read_text())
    remark = {"level": "warning", "code": "x", "message": "Look at me.", "hint": ""}
    report["plan"]["findings"] = [remark] * 3001
    files = [report["shards"][0]["file"]]
    tied = {"tensor": "x", "file": files[0], "used_as": ["y"]}
    stage = {"blocks": ["0"], "others": [], "files": files, "bytes": 1, "also_needs": [tied] * 20}
    report["plan"]["stages"] = [stage] * 900
    (result / "sharding_report.json").write_text(json.dumps(report))
    page = visit(space, f"?result={publish(hub, result)}")
    headline(page, "fits")
    assert page.evaluate("document.documentElement.scrollHeight") < 12_000
    expect(page.locator("#result-details")).to_contain_text("836 more")


def test_a_report_that_costs_more_than_it_says_is_not_read(space: Site, hub: Server, result: Path) -> None:
    report = json.loads((result / "sharding_report.json").read_text())
    report["zeros"] = [0] * 1_000_000
    (result / "sharding_report.json").write_text(json.dumps(report))
    _, said = call(space, "result", [publish(hub, result)], {})
    assert "event: error" in said and "holds more than a page can show" in said
