"""Jobs as their owners see them, in a real browser, with the real login of a loopback Hub; other visitors do not."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from sharding import job
from tests.conftest import random_tensors, write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import LONG, Site, advanced, as_space, copy_name, files, push, sign_in, start_job
from tests.scenarios import pp_cases
from tests.scenarios.pp_cases import Case

Visit = Callable[..., Page]


# --- A job --------------------------------------------------------------------------------------------


def test_a_job_is_pushed_and_its_result_link_opens_for_anybody(
    space: Site, visit: Visit, hub: Server, small: str
) -> None:
    page = visit(space, f"?repo={small}&size=70kB")
    sign_in(page, "alice")
    expect(page.locator("#target")).to_contain_text("to alice/small-sharded-70kB, public")
    assert files(page).count() == 4  # what was chosen is kept through the login
    name = copy_name()
    start_job(page, name)
    result = page.locator("#result")
    expect(result).to_contain_text(f"All 14 tensors bit-identical to {small}@")
    link = result.locator("pre", has_text="?result=").inner_text()
    assert link == f"https://huggingface.co/spaces/carol/shard-my-repo?result=alice/{name}"
    assert hub.api(False).model_info(f"alice/{name}").private is False

    other = visit(space, f"?{link.partition('?')[2]}")
    shown = other.locator("#result")
    expect(shown).to_contain_text("All 14 tensors bit-identical")
    expect(shown).to_contain_text("It was made here on")
    expect(other.locator("#result-details")).to_contain_text("Its proof: ")
    expect(shown.get_by_role("link", name=f"alice/{name}").first).to_have_attribute("href", re.compile(f"alice/{name}"))
    expect(shown).to_contain_text(f"AutoModelForCausalLM.from_pretrained('alice/{name}'")
    expect(other.locator("#choose")).to_have_count(0)


def test_a_pipeline_shows_what_each_machine_loads_and_the_result_how(
    home: Site, visit: Visit, hub: Server, tmp_path: Path
) -> None:
    source = push(hub, pp_cases.save(Case("llama", 3, 7), tmp_path / "seven"), "bob/seven-layers")
    page = visit(home, f"?repo={source}&size=60kB&strategy=pp:2")
    machines = page.locator("#picture .machines li")
    expect(machines).to_have_count(2)
    expect(machines.last).to_contain_text("layers 3 to 6")
    expect(advanced(page).get_by_label("For transformers on several machines")).to_be_checked()
    page.get_by_label("Machines", exact=True).fill("3")
    page.get_by_label("Machines", exact=True).press("Enter")
    expect(machines).to_have_count(3)
    expect(machines.last).to_contain_text("Machine 3")
    expect(page.locator("#shards")).to_contain_text("Cut where transformers ")
    name = copy_name()
    start_job(page, name)
    result = page.locator("#result")
    expect(result).to_contain_text("bit-identical")
    expect(result).to_contain_text(f"from_pretrained('alice/{name}', variant=f\"rank{{os.environ['RANK']}}-of-3\"")
    expect(result).to_contain_text("torchrun --nnodes 3")
    expect(page.locator("#result-map .machines li, #job-map .machines li")).to_have_count(3)


def test_a_taken_name_is_told_and_a_free_one_proposed(space: Site, visit: Visit, hub: Server, small: str) -> None:
    hub.api().create_repo("alice/small-sharded-100kB", exist_ok=True)
    hub.api().upload_file(path_or_fileobj=b"mine", path_in_repo="x.txt", repo_id="alice/small-sharded-100kB")
    page = visit(space, f"?repo={small}&size=100kB")
    sign_in(page, "alice")
    name = advanced(page).get_by_label("Name of the new repo")
    expect(name).to_have_value("small-sharded-100kB-2")
    name.fill("small-sharded-100kB")
    name.press("Enter")
    expect(page.locator("#name-message")).to_contain_text("alice/small-sharded-100kB exists already")
    page.locator("#start").click()
    refusal = page.locator("#start-message").get_by_role("alert")
    expect(refusal).to_contain_text("alice/small-sharded-100kB")
    expect(refusal).to_be_focused()
    expect(refusal).to_be_in_viewport()
    assert page.locator("#start").bounding_box()["y"] < 900  # type: ignore[index]


def test_another_models_copy_is_replaced_by_a_tick_that_names_both(
    home: Site, visit: Visit, hub: Server, small: str, tiny: str
) -> None:
    name = copy_name()
    *_, _ = job.shard(tiny, f"alice/{name}", endpoint=hub.address, token="hf_alice")
    before = hub.api().model_info(f"alice/{name}").sha
    page = visit(home, f"?repo={small}&size=70kB")
    page.locator("#start:not([disabled])").wait_for()
    advanced(page).get_by_label("Name of the new repo").fill(name)
    page.locator("#start").click()
    expect(page.locator("#start-message")).to_contain_text(f"alice/{name} holds a copy of {tiny}")
    replace = page.get_by_label(f"Replace the copy of {tiny} in alice/{name} by this one of {small}")
    expect(replace).not_to_be_checked()
    page.locator("#start").click()
    expect(page.locator("#start-message").get_by_role("alert")).to_be_focused()
    assert hub.api().model_info(f"alice/{name}").sha == before
    replace.check()
    page.locator("#start").click()
    expect(page.locator("#result")).to_contain_text(f"All 14 tensors bit-identical to {small}@")


def test_a_tick_for_one_name_is_none_for_another(home: Site, visit: Visit, hub: Server, small: str, tiny: str) -> None:
    names = [copy_name(), copy_name()]
    for name in names:
        *_, _ = job.shard(tiny, f"alice/{name}", endpoint=hub.address, token="hf_alice")
    page = visit(home, f"?repo={small}&size=70kB")
    page.locator("#start:not([disabled])").wait_for()
    advanced(page)
    for name in names:
        page.get_by_label("Name of the new repo").fill(name)
        page.locator("#start").click()
        page.get_by_label(f"Replace the copy of {tiny} in alice/{name} by").check()
    page.get_by_label("Name of the new repo").fill(names[0])
    page.locator("#start").click()
    expect(page.get_by_label(f"Replace the copy of {tiny} in alice/{names[0]} by")).not_to_be_checked()
    assert hub.api().model_info(f"alice/{names[0]}").card_data.base_model == tiny  # type: ignore[union-attr]


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


@pytest.mark.parametrize("name", ["", "  ", "a--b", "x/y/z", "a.git"])
def test_a_name_that_is_none_is_refused_beside_the_button(home: Site, visit: Visit, small: str, name: str) -> None:
    page = visit(home, f"?repo={small}&size=70kB")
    page.locator("#start:not([disabled])").wait_for()
    advanced(page).get_by_label("Name of the new repo").fill(name)
    page.locator("#start").click()
    refusal = page.locator("#start-message").get_by_role("alert")
    expect(refusal).to_be_focused()
    expect(refusal).to_be_in_viewport()
    assert "?job=" not in page.url


def test_an_organisation_can_be_written_to(space: Site, visit: Visit, hub: Server, small: str) -> None:
    page = visit(space, f"?repo={small}&size=70kB")
    sign_in(page, "alice")
    page.locator("#start:not([disabled])").wait_for()
    advanced(page).get_by_label("Owner of the copy").click()
    page.get_by_role("option", name="acme").click()
    name = copy_name()
    page.get_by_label("Private", exact=True).check()
    start_job(page, name)
    expect(page.locator("#result")).to_contain_text("bit-identical")
    assert hub.api("hf_bob").model_info(f"acme/{name}").private is True


def test_cancel_ends_a_job_at_once_and_leaves_nothing(space: Site, visit: Visit, hub: Server, long: str) -> None:
    page = visit(space, f"?repo={long}&size={LONG}")
    sign_in(page, "alice")
    name = copy_name("endless")
    start_job(page, name)
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_contain_text("Nothing was published")
    expect(page.locator("#job-map rect[data-c]:not(.waiting)")).to_have_count(0)
    expect(page.locator("#progress .cancelled")).not_to_contain_text(
        re.compile("could not be removed|branch .* is still there")
    )
    if hub.api().repo_exists(f"alice/{name}"):  # the scope that lets a visitor push does not let it delete
        assert [branch.name for branch in hub.api().list_repo_refs(f"alice/{name}").branches] == ["main"]
        expect(page.locator("#progress").get_by_role("link", name=re.compile("settings"))).to_be_visible()


def test_a_job_goes_on_in_a_closed_tab_and_is_found_again(space: Site, visit: Visit, long: str) -> None:
    page = visit(space, f"?repo={long}&size={LONG}")
    sign_in(page, "alice")
    job = start_job(page, copy_name("endless"))
    expect(page.locator("#progress")).to_contain_text("Writing the files")
    context = page.context
    page.close()
    again = context.new_page()
    again.goto(f"{space.address}/?job={job}")
    expect(again.locator("#progress .running")).to_be_visible()
    again.get_by_role("button", name="Cancel").click()
    expect(again.locator("#progress .cancelled")).to_be_visible()


@pytest.mark.parametrize(
    ("ending", "desk"),
    [
        pytest.param(signal.SIGTERM, "lost", id="told to stop"),
        pytest.param(signal.SIGKILL, "kept", id="killed", marks=pytest.mark.thorough),
    ],
)
def test_a_job_is_resumed_after_the_space_was_restarted(
    serve: Callable[..., Site], visit: Visit, hub: Server, long: str, ending: signal.Signals, desk: str
) -> None:
    site = serve(**as_space(hub))
    page = visit(site, f"?repo={long}&size={LONG}")
    sign_in(page, "alice")
    name = copy_name("slow")
    job = start_job(page, name)
    assert job.endswith(f"/alice/{name}")
    expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[3-9] of 12 files"))
    site.stop(ending)
    if desk == "lost":  # a Space starts with an empty disk
        site.settings["SHARD_FOLDER"] = str(site.folder / "another")
    site.start()
    other = visit(site, f"?job={job}")
    expect(other.locator("#progress")).to_contain_text("Sign in to see this job")
    sign_in(other, "alice")
    other.get_by_role("button", name="Resume").click()
    expect(other.locator("#log")).to_contain_text("kept from an earlier run")
    expect(other.locator("#result")).to_contain_text("All 60 tensors bit-identical")
    assert hub.api(False).model_info(f"alice/{name}").private is False


# --- Two visitors -------------------------------------------------------------------------------------


def test_the_second_visitor_sees_the_job_of_the_first_as_a_place_in_the_queue_only(
    space: Site, visit: Visit, long: str, small: str
) -> None:
    first, second = visit(space, f"?repo={long}&size={LONG}"), visit(space, f"?repo={small}&size=70kB")
    sign_in(first, "alice")
    name = copy_name("endless")
    job = start_job(first, name)
    sign_in(second, "bob")
    start_job(second, copy_name())
    expect(second.locator("#progress .queued")).to_contain_text("Waiting for 1 job")
    assert name not in second.content()
    second.goto(f"{space.address}/?job={job}")
    expect(second.locator("#progress")).to_contain_text("There is no such job of yours")
    assert second.get_by_role("button", name="Cancel").count() == 0
    first.get_by_role("button", name="Cancel").click()
    expect(first.locator("#progress .cancelled")).to_be_visible()


def test_the_token_of_a_space_is_lent_to_nobody(space: Site, visit: Visit, small: str) -> None:
    # HF_TOKEN is alice's there, and alice may see this.
    page = visit(space, "?repo=alice/private-thing")
    space.hub.api().create_repo("alice/private-thing", private=True, exist_ok=True)
    expect(page.locator("#repo-message").get_by_role("alert")).to_contain_text("There is no repo")
    expect(page.locator("#account")).to_contain_text("Plans need no login")


def test_at_home_the_saved_login_is_used(home: Site, visit: Visit, small: str) -> None:
    page = visit(home, f"?repo={small}&size=70kB")
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    start_job(page, copy_name())
    expect(page.locator("#result")).to_contain_text("bit-identical")
    assert f"{home.address}/?result=alice/" in page.locator("#result .share-link pre").inner_text()


def test_what_loading_costs_is_measured_where_that_is_asked_for(home: Site, visit: Visit, tiny: str) -> None:
    page = visit(home, f"?repo={tiny}&size=70kB")
    advanced(page).get_by_label("Load the original and the copy as well").check()
    start_job(page, copy_name())
    expect(page.locator("#progress")).to_contain_text("Loading the original and the copy in turn")
    expect(page.locator("#log")).to_contain_text("Loaded the original, loaded: at most")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()
