"""Jobs as their owners see them, in a real browser, with the real login of a loopback Hub; other visitors do not."""

import json
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from sharding import job
from sharding.core.events import ShardFinished
from sharding.desk.jobs import new_job_id
from tests.conftest import random_tensors, write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import (
    LONG,
    Site,
    advanced,
    as_space,
    become,
    call,
    copy_name,
    files,
    greeting,
    push,
    session_of,
    sign_in,
    start_job,
    token_of,
)
from tests.scenarios import pp_cases
from tests.scenarios.pp_cases import Case

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def seven_layers(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push(hub, pp_cases.save(Case("llama", 3, 7), tmp_path_factory.mktemp("in") / "seven"), "bob/seven-layers")


# --- A job --------------------------------------------------------------------------------------------


def test_a_job_is_pushed_and_its_result_link_opens_for_anybody(
    space: Site, visit: Visit, hub: Server, small: str
) -> None:
    page = visit(space, f"?repo={small}&size=70kB")
    sign_in(page, "alice")
    expect(page.locator("#target")).to_contain_text("to alice/small-sharded-70kB, public")
    assert files(page).count() == 4  # what was chosen is kept through the login
    advanced(page).get_by_label("Owner of the copy").click()
    page.get_by_role("option", name="acme").click()  # an organisation that alice may write to
    name = copy_name()
    start_job(page, name)
    result = page.locator("#result")
    expect(result).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    link = page.locator("#result-details pre", has_text="?result=").inner_text()
    assert link == f"https://huggingface.co/spaces/carol/shard-my-repo?result=acme/{name}"
    assert hub.api(False).model_info(f"acme/{name}").private is False

    other = visit(space, f"?{link.partition('?')[2]}")
    shown = other.locator("#result")
    expect(shown).to_contain_text("All 14 tensors bit-identical")
    expect(shown).to_contain_text("This page made the copy on")
    expect(other.locator("#result-details")).to_contain_text("Its proof: ")
    opens = other.locator("#result-details").get_by_role("link", name=f"acme/{name}").first
    expect(opens).to_have_attribute("href", re.compile(f"acme/{name}"))
    expect(other.locator("#result-details")).to_contain_text(f"AutoModelForCausalLM.from_pretrained('acme/{name}'")
    expect(other.locator("#choose")).to_have_count(0)


def test_at_home_the_saved_login_is_used_and_my_jobs_lead_back_to_what_was_made(
    home: Site, visit: Visit, hub: Server, long: str
) -> None:
    page = visit(home, f"?repo={long}&size={LONG}")
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    advanced(page).get_by_label("Private", exact=True).check()
    name = copy_name()
    job = start_job(page, name)
    page.locator("#log summary").click()
    result = page.locator("#result")
    expect(result).to_contain_text("bit-identical")
    assert f"{home.address}/?result=alice/{name}" in page.locator("#result-details .share-link pre").inner_text()
    assert hub.api().model_info(f"alice/{name}").private is True
    assert asked_for(home, job)["compare"] is False  # nothing is loaded unless that is asked for
    # It has all its colours, and what was opened stays open.
    expect(page.locator("#job-map .strip.after rect[data-c]")).not_to_have_count(0)
    expect(page.locator("#job-map .strip.after rect.waiting")).to_have_count(0)
    expect(page.locator("#log details")).to_have_attribute("open", "")
    page.go_back()
    expect(page).to_have_url(re.compile(f"repo={long}"))
    expect(files(page)).to_have_count(12)
    page.goto(home.address)
    row = page.locator("#jobs li").filter(has_text=name)
    expect(row).to_have_count(1)
    expect(row).to_contain_text("done")
    written = row.locator("time").get_attribute("datetime") or ""
    local = page.evaluate("(at) => new Date(at).toTimeString().slice(0, 5)", written)
    expect(row.locator("time")).to_contain_text(re.compile(rf"^\d+ [A-Z][a-z]+, {local}$"))
    row.get_by_role("link").click()
    expect(page.locator("#result")).to_contain_text("bit-identical")


def asked_for(site: Site, job: str) -> dict[str, Any]:
    """What was asked for of a job of alice."""
    _, said = call(site, "status", [job], {"Authorization": "Bearer hf_alice"})
    request: dict[str, Any] = json.loads(said.partition("data: ")[2].partition("\n")[0])[0]["request"]
    return request


@pytest.mark.thorough
def test_a_pipeline_shows_what_each_machine_loads_and_the_result_how(
    home: Site, visit: Visit, seven_layers: str
) -> None:
    page = visit(home, f"?repo={seven_layers}&size=60kB&strategy=pp:3")
    machines = page.locator("#picture .machines li")
    expect(machines).to_have_count(3)
    expect(machines.last).to_contain_text("Machine 3")
    expect(machines.last).to_contain_text("layers 4 to 6")
    expect(advanced(page).get_by_label("For transformers on several machines")).to_be_checked()
    expect(page.get_by_label("Machines", exact=True)).to_have_value("3")
    expect(page.locator("#shards")).to_contain_text("Cut where transformers ")
    name = copy_name()
    start_job(page, name)
    result = page.locator("#result")
    expect(result).to_contain_text("bit-identical")
    details = page.locator("#result-details")
    expect(details).to_contain_text(f"from_pretrained('alice/{name}', variant=f\"rank{{os.environ['RANK']}}-of-3\"")
    expect(details).to_contain_text("torchrun --nnodes 3")
    expect(page.locator("#result-map .machines li, #job-map .machines li")).to_have_count(3)


@pytest.mark.thorough
def test_another_number_of_machines_makes_another_pipeline(home: Site, visit: Visit, seven_layers: str) -> None:
    page = visit(home, f"?repo={seven_layers}&size=60kB&strategy=pp:2")
    machines = page.locator("#picture .machines li")
    expect(machines).to_have_count(2)
    expect(machines.last).to_contain_text("layers 3 to 6")
    advanced(page).get_by_label("Machines", exact=True).fill("3")
    page.get_by_label("Machines", exact=True).press("Enter")
    expect(machines).to_have_count(3)
    expect(machines.last).to_contain_text("Machine 3")


# --- Names --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_taken_name_is_told_and_a_free_one_proposed_and_what_is_no_name_is_refused_beside_the_button(
    home: Site, visit: Visit, hub: Server, small: str
) -> None:
    hub.api().create_repo("alice/small-sharded-100kB", exist_ok=True)
    hub.api().upload_file(path_or_fileobj=b"mine", path_in_repo="x.txt", repo_id="alice/small-sharded-100kB")
    page = visit(home, f"?repo={small}&size=100kB")
    page.locator("#start:not([disabled])").wait_for()
    name, refusal = advanced(page).get_by_label("Name of the new repo"), page.locator("#start-message [role=alert]")
    expect(name).to_have_value("small-sharded-100kB-2")
    name.fill("small-sharded-100kB")
    name.press("Enter")
    expect(page.locator("#name-message")).to_contain_text("alice/small-sharded-100kB exists already")
    start = page.locator("#start")
    start.click()
    expect(refusal).to_be_focused()
    expect(refusal).to_contain_text("alice/small-sharded-100kB")
    expect(refusal).to_be_in_viewport()
    assert start.bounding_box()["y"] < 900  # type: ignore[index]
    assert "?job=" not in page.url
    for wrong, says in (
        ("", "Give the new repo a name"),
        ("a--b", "alice/a--b"),
        ("  ", "Give the new repo a name"),
        ("x/y/z", "alice/x/y/z"),
        ("a.git", "alice/a.git"),
    ):
        name.fill(wrong)
        name.press("Tab")
        expect(page.locator("#name-message")).to_contain_text(says)
        expect(start).to_be_disabled()
    name.fill("small-sharded-100kB-2")
    name.press("Tab")
    expect(start).to_be_enabled()


@pytest.mark.thorough
def test_another_models_copy_is_replaced_by_a_tick_that_names_both_and_is_none_for_another_name(
    home: Site, visit: Visit, hub: Server, small: str, long: str
) -> None:
    one, other = copy_name(), copy_name()
    for name in (one, other):
        *_, _ = job.shard(long, f"alice/{name}", endpoint=hub.address, token="hf_alice")
    before = {name: hub.api().model_info(f"alice/{name}").sha for name in (one, other)}
    page = visit(home, f"?repo={small}&size=70kB")
    page.locator("#start:not([disabled])").wait_for()
    field, start = advanced(page).get_by_label("Name of the new repo"), page.locator("#start")

    def tick_for(name: str) -> Locator:
        return page.get_by_label(f"Replace the copy of {long} in alice/{name} with this copy of {small}")

    # Without a tick, and again without one.
    field.fill(one)
    start.click()
    expect(page.locator("#start-message")).to_contain_text(f"alice/{one} holds a copy of {long}")
    expect(tick_for(one)).not_to_be_checked()
    start.click()
    expect(page.locator("#start-message").get_by_role("alert")).to_be_focused()
    # A tick for one name is none for another, also where one comes back to it.
    tick_for(one).check()
    field.fill(other)
    start.click()
    tick_for(other).check()
    field.fill(one)
    start.click()
    expect(tick_for(one)).not_to_be_checked()
    assert {name: hub.api().model_info(f"alice/{name}").sha for name in (one, other)} == before
    # With a tick.
    tick_for(one).check()
    start.click()
    expect(page.locator("#result")).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    assert hub.api().model_info(f"alice/{other}").sha == before[other]


@pytest.mark.thorough
def test_a_name_that_the_visitor_wrote_stays_when_a_proposal_comes_late(
    home: Site, visit: Visit, hub: Server, tmp_path: Path
) -> None:
    source = push(hub, write_checkpoint(tmp_path, {"model.safetensors": random_tensors()}, False), "bob/late")
    page = visit(home, f"?repo={source}&size=70kB")
    page.locator("#start").wait_for()
    advanced(page).get_by_label("Name of the new repo").fill("my-own")
    expect(page.locator("#start")).to_be_enabled()
    expect(page.locator("#target")).to_contain_text("alice/my-own")
    expect(page.get_by_label("Name of the new repo")).to_have_value("my-own")


# --- What becomes of a job ----------------------------------------------------------------------------


def test_a_job_goes_on_in_a_closed_tab_is_a_place_in_the_queue_to_others_and_leaves_nothing_when_cancelled(
    space: Site, visit: Visit, hub: Server, long: str, small: str
) -> None:
    first, second = visit(space, f"?repo={long}&size={LONG}", user="alice"), visit(space, f"?repo={small}", user="bob")
    name = copy_name("endless")
    advanced(first).get_by_label("Load the original and the copy as well").check()
    job = start_job(first, name)
    assert asked_for(space, job)["compare"] is True  # as the box says
    expect(first.get_by_role("progressbar")).to_be_visible()
    expect(first.locator("#progress")).to_contain_text("Writing the files")
    context = first.context
    first.close()
    # The second visitor sees that there is one, and nothing of it.
    start_job(second, copy_name())
    expect(second.locator("#progress .queued")).to_contain_text("Waiting for 1 job")
    assert name not in second.content()
    second.goto(f"{space.address}/?job={job}")
    expect(second.locator("#progress")).to_contain_text("You have no job with this id")
    assert second.get_by_role("button", name="Cancel").count() == 0
    # The first finds it again, and cancels it.
    again = context.new_page()
    again.goto(f"{space.address}/?job={job}")
    expect(again.locator("#progress .running")).to_be_visible()
    again.get_by_role("button", name="Cancel").click()
    expect(again.locator("#progress .cancelled")).to_contain_text("Nothing was published")
    expect(again.locator("#job-map .strip.after rect[data-c]:not(.waiting)")).to_have_count(0)
    expect(again.locator("#progress .cancelled")).not_to_contain_text(
        re.compile("could not be removed|branch .* is still there")
    )
    if hub.api().repo_exists(f"alice/{name}"):  # the scope that lets a visitor push does not let it delete
        assert [branch.name for branch in hub.api().list_repo_refs(f"alice/{name}").branches] == ["main"]
        expect(again.locator("#progress").get_by_role("link", name=re.compile("settings"))).to_be_visible()


@pytest.mark.thorough
def test_a_job_that_a_desk_has_forgotten_is_found_on_the_hub_and_resumed(
    space: Site, visit: Visit, hub: Server, long: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a Space that starts with an empty disk sees it: a job has ended in the midst, and only the Hub knows.
    monkeypatch.setattr("sharding.storage.hub.staging.COMMIT_SECONDS", 0)
    name = copy_name()
    events = job.shard(long, f"alice/{name}", LONG, endpoint=hub.address, token=token_of(session_of(space, "alice")))
    finished = (event for event in events if isinstance(event, ShardFinished))
    assert [next(finished).kept for _ in range(4)] == [False] * 4
    finished.close()
    events.close()
    page = visit(space, f"?job={new_job_id(f'alice/{name}')}")
    expect(page.locator("#progress")).to_contain_text("so you cannot see this job")
    become(page, space, "alice")
    expect(page.locator("#progress")).to_contain_text(f"The job for alice/{name} was interrupted")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#log")).to_contain_text("kept from an earlier run")
    expect(page.locator("#result")).to_contain_text("All 60 tensors bit-identical")
    assert hub.api(False).model_info(f"alice/{name}").private is False


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ending", "desk"),
    [pytest.param(signal.SIGTERM, "lost", id="told to stop"), pytest.param(signal.SIGKILL, "kept", id="killed")],
)
def test_a_job_is_resumed_after_the_space_was_restarted(
    serve: Callable[..., Site], visit: Visit, hub: Server, long: str, ending: signal.Signals, desk: str
) -> None:
    site = serve(**as_space(hub))
    page = visit(site, f"?repo={long}&size={LONG}", user="alice")
    name = copy_name("slow")
    job = start_job(page, name)
    assert job.endswith(f"/alice/{name}")
    expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[3-9] of 12 files"))
    site.stop(ending)
    if desk == "lost":  # a Space starts with an empty disk
        site.settings["SHARD_FOLDER"] = str(site.folder / "another")
    site.start()
    other = visit(site, f"?job={job}")
    expect(other.locator("#progress")).to_contain_text("so you cannot see this job")
    become(other, site, "alice")
    other.get_by_role("button", name="Resume").click()
    expect(other.locator("#log")).to_contain_text("kept from an earlier run")
    expect(other.locator("#result")).to_contain_text("All 60 tensors bit-identical")
    assert hub.api(False).model_info(f"alice/{name}").private is False


@pytest.mark.thorough
def test_what_loading_costs_is_measured_where_that_is_asked_for(home: Site, visit: Visit, tiny: str) -> None:
    page = visit(home, f"?repo={tiny}&size=70kB")
    advanced(page).get_by_label("Load the original and the copy as well").check()
    start_job(page, copy_name())
    expect(page.locator("#progress")).to_contain_text("Loading the original and the copy in turn")
    expect(page.locator("#log")).to_contain_text("Loaded the original, loaded: at most")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()


def test_the_token_of_a_space_is_lent_to_nobody(space: Site) -> None:
    # HF_TOKEN is alice's there, and alice may see this.
    space.hub.api().create_repo("alice/private-thing", private=True, exist_ok=True)
    for endpoint, more in (("inspect", ["", ""]), ("plan", ["1GB", "size", "natural", "keep", "", "", False, ""])):
        _, said = call(space, endpoint, ["alice/private-thing", *more], {})
        assert "does not exist, or you have no access to it" in said
    assert "Plans need no login" in greeting(space, {})
