"""Jobs as their owners see them, in a real browser, with the real login of a loopback Hub; other visitors do not."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.inhouse import InHouse
from tests.page.conftest import Publish, Visit, become, cancel, files, held_job, start_job, where
from tests.page.site import Site, answer_in, as_space, call, choices, copy_name, event, follow
from tests.page.sources import LONG, save_one
from tests.page.test_for_everybody import axe, violations

ALICE = {"Authorization": "Bearer hf_alice"}

# --- A job --------------------------------------------------------------------------------------------


def test_at_home_the_saved_login_is_used_and_my_jobs_lead_back_to_what_was_made(
    home: Site, visit: Visit, hub: InHouse, long: str
) -> None:
    page = visit(home, f"?repo={long}&size={LONG}")
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    where(page).get_by_label("Private", exact=True).check()
    with held_job(hub, name := copy_name()):
        job = start_job(page, name)
        expect(page.locator("#progress .running")).to_contain_text("Writing the files")
        shows_how_full_files_are(page)
        page.reload()
        page.locator("#progress .running").wait_for()
    result = page.locator("#result")
    expect(result).to_contain_text("bit-identical")
    # The page has become that of the result. How the job went is folded below it.
    expect(page.locator("#run")).to_have_count(0)
    expect(page).to_have_url(re.compile(rf"\?result=alice/{name}@[0-9a-f]{{40}}$"))
    assert page.locator("#result-details .share-link pre").inner_text() == page.url
    past = page.locator("#past")
    expect(past.locator(".timeline")).to_be_hidden()
    past.locator("summary").first.click()
    expect(past.locator(".timeline")).to_contain_text("Read them again")
    assert hub.api().model_info(f"alice/{name}").private is True
    assert asked_for(home, job)["compare"] is False  # nothing is loaded unless that is asked for
    expect(page.locator("#result-map .strip.after rect[data-c]")).not_to_have_count(0)
    assert violations(page, axe()) == []
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


def shows_how_full_files_are(page: Page) -> None:
    """A file fills from below as it is written, and has a mark once it was read again."""
    page.locator("#job-map .map[data-built]").wait_for()
    page.emulate_media(reduced_motion="reduce")
    page.evaluate("""() => {
      window.shown = (state, finished, filling, checked) => {
        const job = document.querySelector("#progress .job").cloneNode();
        job.className = `job ${state}`;
        Object.assign(job.dataset, { finished, filling, checked });
        document.querySelector("#progress").replaceChildren(job);
        colour();
        const high = document.querySelector("#job-map .strip.after svg").getBoundingClientRect().height;
        const veils = [...document.querySelectorAll("#job-map .veil")].map((veil) => veil.getBoundingClientRect());
        return {
          veiled: veils.map(({ height }) => Math.round(100 * height / high)),
          fromTop: new Set(veils.map(({ top }) => Math.round(top))).size === 1,
          proved: [...document.querySelectorAll("#job-map .marks-of-proof span")].map((mark) => mark.matches(".proved")),
          ticks: document.querySelector("#job-map .marks-of-proof").innerText.trim().split(/\\s*/).join(""),
        };
      };
    }""")

    def shown(*of: str) -> dict[str, Any]:
        picture: dict[str, Any] = page.evaluate("of => window.shown(...of)", list(of))
        return picture

    running = shown("running", "0-1,4-4", "2:25,3:90", "0-0,4-4")
    assert running["veiled"] == [0, 0, 75, 10, 0, *[100] * 7] and running["fromTop"]
    assert running["proved"] == [number in (0, 4) for number in range(12)] and running["ticks"] == "✓✓"
    expect(page.locator("#job-map .strip.after rect.waiting")).to_have_count(7 * 5)
    assert shown("done", "", "", "")["veiled"] == [0] * 12 and all(shown("done", "", "", "")["proved"])
    cancelled = shown("cancelled", "0-11", "", "0-11")
    assert cancelled["veiled"] == [100] * 12 and not any(cancelled["proved"])
    # Neighbours in one column are as full as all of them, and proved together.
    page.evaluate("""() => {
      const map = document.querySelector("#job-map .map");
      partsOf(map).data.after[0][4] = 2;
    }""")
    both = shown("running", "0-0", "1:50", "0-0")
    assert both["veiled"][0] == 25 and not both["proved"][0]


def asked_for(site: Site, job: str) -> dict[str, Any]:
    """What was asked for of a job of alice."""
    request: dict[str, Any] = answer_in(call(site, "status", [job], ALICE)[1])["request"]
    return request


# --- Names --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_name_that_the_visitor_wrote_stays_when_a_proposal_comes_late(
    home: Site, visit: Visit, hub: InHouse, publish: Publish
) -> None:
    with hub.holding("GET .*/alice/late-"):  # whether a name is free
        page = visit(home, f"?repo={publish(save_one, 'late')}&size=70kB")
        page.locator("#start").wait_for()
        where(page).get_by_label("Name of the new repo").fill("my-own")
    expect(page.locator("#start")).to_be_enabled()
    expect(page.locator("#target")).to_contain_text("alice/my-own")
    expect(page.get_by_label("Name of the new repo")).to_have_value("my-own")


# --- What becomes of a job ----------------------------------------------------------------------------


def test_a_job_goes_on_in_a_closed_tab_is_a_place_in_the_queue_to_others_and_leaves_nothing_when_cancelled(
    space: Site, visit: Visit, hub: InHouse, long: str, small: str
) -> None:
    first, second = visit(space, f"?repo={long}&size={LONG}", user="alice"), visit(space, f"?repo={small}", user="bob")
    name = copy_name("held")
    where(first).get_by_label("Measure loading too").check()
    with held_job(hub, name):
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
        # The first finds it again, and cancels it.
        again = context.new_page()
        again.goto(f"{space.address}/?job={job}")
        expect(again.locator("#progress .running")).to_be_visible()
        cancel(again)
    expect(again.locator("#progress .cancelled")).to_contain_text("Nothing was published")
    expect(again.locator("#job-map .strip.after rect[data-c]:not(.waiting)")).to_have_count(0)
    expect(again.locator("#progress .cancelled")).not_to_contain_text(
        re.compile("could not be removed|branch .* is still there")
    )
    if hub.api().repo_exists(f"alice/{name}"):  # the scope that lets a visitor push does not let it delete
        assert [branch.name for branch in hub.api().list_repo_refs(f"alice/{name}").branches] == ["main"]
        expect(again.locator("#progress").get_by_role("link", name=re.compile("settings"))).to_be_visible()


@pytest.mark.thorough
def test_a_job_is_resumed_after_the_space_was_restarted_with_an_empty_disk(
    serve: Callable[..., Site], visit: Visit, hub: InHouse, long: str
) -> None:
    site = serve(**as_space(hub))
    page = visit(site, f"?repo={long}&size={LONG}", user="alice")
    name = copy_name()
    with hub.failing(f"delay:1.5@GET .*/{name}/xet-write"):
        job = start_job(page, name)
        assert job.endswith(f"/alice/{name}")
        expect(page.locator("#progress .finished")).to_contain_text(re.compile(r"[3-9] of 12 files"))
        site.stop()
    site.settings["SHARD_FOLDER"] = str(site.folder / "another")
    site.start()
    other = visit(site, f"?job={job}")
    expect(other.locator("#progress")).to_contain_text("so you cannot see this job")
    become(other, site, "alice")
    other.get_by_role("button", name="Resume").click()
    expect(other.locator("#result")).to_contain_text("All 60 tensors bit-identical")
    expect(other.locator("#past")).to_contain_text("kept from an earlier run")
    assert hub.api(False).model_info(f"alice/{name}").private is False


def test_the_token_of_a_space_is_lent_to_nobody(space: Site) -> None:
    # HF_TOKEN is alice's there, and alice may see this.
    space.hub.api().create_repo("alice/private-thing", private=True, exist_ok=True)
    for endpoint in ("inspect", "plan"):
        _, said = call(space, endpoint, ["alice/private-thing", *choices(endpoint)])
        assert "does not exist, or you have no access to it" in said
    assert "Plans need no login" in follow(space, event(space, "greet"))
