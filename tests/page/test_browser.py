"""The page as visitors see it, in a real browser, on a loopback Hub with its real login."""

import base64
import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import psutil
import pytest
from playwright.sync_api import Page, expect

from sharding import job as engine
from tests.localhub.conftest import Server
from tests.page.conftest import LONG, Site, as_space, copy_name, sign_in, start_job

Visit = Callable[..., Page]


# --- Looking around -------------------------------------------------------------------------------------


def test_a_plan_is_shown_at_once_without_a_login(space: Site, visit: Visit, small: str) -> None:
    page = visit(space)
    page.get_by_label("Model", exact=True).fill(small)
    page.get_by_role("button", name="Show the plan").click()
    facts = page.locator("#facts")
    expect(facts).to_contain_text("LlamaForCausalLM")
    expect(facts).to_contain_text("apache-2.0")
    expect(facts).to_contain_text("open to all")
    expect(page.locator("#shards figure").first).to_contain_text("2 files")
    expect(page.locator("#forecast")).to_contain_text("Memory")
    expect(page.locator("#start")).to_be_disabled()
    expect(page.locator("#start-message")).to_contain_text("Sign in")


def test_names_are_suggested_as_one_types(space: Site, visit: Visit, small: str) -> None:
    page = visit(space)
    page.get_by_label("Model", exact=True).press_sequentially("smal", delay=60)
    page.get_by_role("option", name=small).click()
    expect(page.locator("#facts")).to_contain_text(small)


def test_links_and_revisions_can_be_pasted(space: Site, visit: Visit, small: str) -> None:
    page = visit(space)
    for typed in ("https://hf.co/bob/small", "bob/small@main", "  bob/small/tree/main "):
        page.get_by_label("Model", exact=True).fill("not a repo")
        page.get_by_label("Model", exact=True).press("Enter")
        expect(page.locator("#facts .repo")).to_have_count(0)
        page.get_by_label("Model", exact=True).fill(typed)
        page.get_by_label("Model", exact=True).press("Enter")
        expect(page.locator("#facts")).to_contain_text(small)


def test_changing_a_control_redraws_the_plan_and_nothing_else(space: Site, visit: Visit, small: str) -> None:
    page = visit(space, f"?repo={small}&size=100kB")
    expect(page.locator("#shards tbody tr")).to_have_count(3)
    page.evaluate("document.querySelector('#facts .repo').marked = true")
    page.get_by_label("Another size").fill("50kB")
    page.get_by_label("Another size").press("Enter")
    expect(page.locator("#shards tbody tr")).to_have_count(6)
    assert page.evaluate("document.querySelector('#facts .repo').marked")
    expect(page).to_have_url(re.compile(r"size=50kB$"))
    page.get_by_label("As stored today").check()
    expect(page).to_have_url(re.compile("order=stored$"))
    page.get_by_label("200MB").check()
    expect(page.locator("#shards tbody tr")).to_have_count(1)


def test_a_link_fills_the_form_in(space: Site, visit: Visit, small: str) -> None:
    page = visit(space, f"?repo={small}@main&size=70kB&order=stored&strategy=stages:2&dtype=bf16")
    expect(page.get_by_label("Model", exact=True)).to_have_value(small)
    expect(page.get_by_label("Revision")).to_have_value("main")
    expect(page.get_by_label("Another size")).to_have_value("70kB")
    expect(page.get_by_label("As stored today")).to_be_checked()
    expect(page.get_by_role("radio", name="Stages of a pipeline")).to_be_checked()
    expect(page.get_by_label("bf16")).to_be_checked()
    # Another process asks transformers first.
    expect(page.locator("#shards figcaption").last).to_contain_text("at most 70.0 kB", timeout=60_000)
    expect(page.locator("#shards tbody").last.locator("tr")).to_have_count(2)


def test_a_variant_is_offered_where_there_is_one_and_kept_to_the_result(
    home: Site, visit: Visit, variants: str, small: str
) -> None:
    page = visit(home, f"?repo={small}&size=13kB&variant=bf16")
    expect(page.locator("#repo-message")).to_contain_text("There is no variant 'bf16'. You see its plain weights")
    expect(page.get_by_label("Where would it run?")).to_be_visible()
    expect(page.locator("#variants")).to_have_count(0)
    page.get_by_label("Model", exact=True).fill(variants)
    page.get_by_label("Model", exact=True).press("Enter")
    choices = page.locator("#variants")
    expect(choices.get_by_label("The plain weights")).to_be_checked()
    expect(page.locator("#shards tbody tr")).to_have_count(6)
    choices.get_by_label("fp16").check()
    expect(page.locator("#shards tbody tr")).to_have_count(3)
    expect(page.locator("#facts")).to_contain_text("F16")
    expect(page.get_by_label("Name of the new repo")).to_have_value("variants-fp16-sharded-13kB")
    expect(page).to_have_url(re.compile("variant=fp16$"))
    # Only the plain weights of a model are placed on devices, and loaded to compare.
    expect(page.get_by_label("Where would it run?")).to_have_count(0)
    expect(page.get_by_label("Load the original and the copy as well")).to_have_count(0)
    page.reload()
    expect(choices.get_by_label("fp16")).to_be_checked()
    start_job(page, copy_name())
    result = page.locator("#result")
    expect(result).to_contain_text(re.compile("bit-identical to bob/variants@[0-9a-f]+, variant fp16"))
    expect(result).to_contain_text("model.fp16-00001-of-00003.safetensors")
    expect(result).to_contain_text("variant='fp16'")
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_repo_of_several_variants_and_no_plain_weights_shows_one_of_them(
    home: Site, visit: Visit, hub: Server, variants: str
) -> None:
    api = hub.api("hf_bob")
    api.create_repo("bob/no-plain")
    half = hub.ask("GET", f"/{variants}/resolve/main/model.fp16.safetensors").body
    for name in ("ema", "fp16"):
        api.upload_file(path_or_fileobj=half, path_in_repo=f"model.{name}.safetensors", repo_id="bob/no-plain")
    page = visit(home, "?repo=bob/no-plain")
    expect(page.locator("#repo-message")).to_contain_text("several variants and no plain weights. You see ema")
    expect(page.locator("#variants").get_by_label("ema")).to_be_checked()
    page.locator("#variants").get_by_label("fp16").check()
    expect(page.locator("#shards")).to_contain_text("model.fp16.safetensors")
    expect(page.locator("#repo-message").get_by_role("status")).to_have_count(0)


def test_overflow_is_asked_about_where_a_cast_can_have_it(home: Site, visit: Visit, variants: str) -> None:
    page = visit(home, f"?repo={variants}")
    dtype, allow = page.locator("#dtype"), page.get_by_label("Allow overflow")
    expect(page.locator("#shards tbody tr")).to_have_count(1)
    expect(allow).to_have_count(0)
    dtype.get_by_label("fp16").check()
    allow.check()
    expect(page).to_have_url(re.compile("allow_overflow=true$"))
    dtype.get_by_label("Keep").check()
    expect(allow).to_have_count(0)
    expect(page).not_to_have_url(re.compile("allow_overflow"))
    dtype.get_by_label("fp16").check()
    expect(allow).not_to_be_checked()
    page.goto(f"{home.address}/?repo={variants}&dtype=fp16&allow_overflow=true")
    expect(allow).to_be_checked()
    start_job(page, copy_name())
    expect(page.locator("#result")).to_contain_text("3 numbers too large for fp16 became infinite")


def test_what_is_wrong_stands_beside_the_field_it_is_about(space: Site, visit: Visit, gated: str, small: str) -> None:
    page = visit(space, "?repo=not a repo")
    field, message = page.get_by_label("Model", exact=True), page.locator("#repo-message").get_by_role("alert")
    expect(message).to_contain_text("'not a repo' is not the name of a repo")
    expect(page.locator("#plan")).to_have_count(0)
    for typed, words in (
        (gated, "bob/gated is gated. Accept its terms on"),
        ("bob/nothing-here", "There is no repo bob/nothing-here"),
        ("/etc", "'/etc' is not the name of a repo"),
    ):
        field.fill(typed)
        field.press("Enter")
        expect(message).to_contain_text(words)
        expect(page.locator("#plan")).to_have_count(0)
    field.fill(small)
    field.press("Enter")
    expect(message).to_have_count(0)
    page.get_by_label("Other", exact=True).check()
    page.get_by_label("Another size").fill("10 apples")
    page.get_by_label("Another size").press("Enter")
    expect(page.locator("#size-message").get_by_role("alert")).to_contain_text("'10 apples' is not a size")


def test_the_devices_of_a_machine_are_shown_with_the_code_that_uses_them(space: Site, visit: Visit, tiny: str) -> None:
    page = visit(space, f"?repo={tiny}")
    page.get_by_label("Where would it run?").fill("cuda:0=40kB,cpu=1GB")
    page.get_by_label("Where would it run?").press("Enter")
    page.get_by_role("button", name="Show the devices").click()
    expect(page.locator("#devices tbody tr")).to_have_count(2)
    expect(page.locator("#devices")).to_contain_text("It fits.")
    expect(page.locator("#devices code")).to_contain_text(f"from_pretrained(\n    '{tiny}',")
    page.get_by_label("Where would it run?").fill("much")
    page.get_by_label("Where would it run?").press("Enter")
    page.get_by_role("button", name="Show the devices").click()
    expect(page.locator("#devices").get_by_role("alert")).to_contain_text("'much' is not a budget of one device")


# --- Pushing --------------------------------------------------------------------------------------------


def test_a_job_is_pushed_and_its_result_link_opens_for_anybody(
    space: Site, visit: Visit, hub: Server, small: str
) -> None:
    page = visit(space, f"?repo={small}&size=70kB")
    sign_in(page, "alice")
    expect(page.get_by_label("Name of the new repo")).to_have_value("small-sharded-70kB")
    assert page.locator("#shards tbody tr").count() == 4  # what was chosen is kept through the login
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
    expect(shown).to_contain_text("the shards stored there have the sizes and SHA-256")
    expect(shown.get_by_role("link", name=f"alice/{name}").first).to_have_attribute("href", re.compile(f"alice/{name}"))
    expect(shown).to_contain_text(f"AutoModelForCausalLM.from_pretrained('alice/{name}'")
    expect(other.locator("#choose")).to_have_count(0)


def test_a_taken_name_is_told_and_a_free_one_proposed(space: Site, visit: Visit, hub: Server, small: str) -> None:
    hub.api().create_repo("alice/small-sharded-100kB", exist_ok=True)
    hub.api().upload_file(path_or_fileobj=b"mine", path_in_repo="x.txt", repo_id="alice/small-sharded-100kB")
    page = visit(space, f"?repo={small}&size=100kB")
    sign_in(page, "alice")
    name = page.get_by_label("Name of the new repo")
    expect(name).to_have_value("small-sharded-100kB-2")
    name.fill("small-sharded-100kB")
    name.press("Enter")
    expect(page.locator("#name-message")).to_contain_text("alice/small-sharded-100kB exists already")
    page.locator("#start").click()
    expect(page.locator("#progress .failed")).to_contain_text("alice/small-sharded-100kB")
    expect(page.get_by_role("link", name="Back to the plan")).to_be_visible()


def test_an_organisation_can_be_written_to(space: Site, visit: Visit, hub: Server, small: str) -> None:
    page = visit(space, f"?repo={small}&size=70kB")
    sign_in(page, "alice")
    page.locator("#start:not([disabled])").wait_for()
    page.get_by_label("Namespace").click()
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
    if hub.api().repo_exists(f"alice/{name}"):  # the scope that lets a visitor push does not let it delete
        assert [branch.name for branch in hub.api().list_repo_refs(f"alice/{name}").branches] == ["main"]
        expect(page.locator("#progress").get_by_role("link", name=re.compile("settings"))).to_be_visible()


def test_a_job_goes_on_in_a_closed_tab_and_is_found_again(space: Site, visit: Visit, long: str) -> None:
    page = visit(space, f"?repo={long}&size={LONG}")
    sign_in(page, "alice")
    job = start_job(page, copy_name("endless"))
    expect(page.locator("#progress")).to_contain_text("Writing shards")
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
    expect(page.locator("#progress figure")).to_contain_text(re.compile(r"[3-9] of 12"))
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


# --- Results that nobody vouches for --------------------------------------------------------------------

HOSTILE = {"schema": 1, "tool": "<script>document.title='owned'</script>"}


@pytest.fixture(scope="module")
def genuine(hub: Server, small: str) -> str:
    """A result that this tool made."""
    *_, _ = engine.shard(small, "alice/genuine", "90kB", endpoint=hub.address, token="hf_alice")
    return "alice/genuine"


def with_report(hub: Server, name: str, report: bytes) -> str:
    repo_id = f"bob/{name}"
    hub.api("hf_bob").create_repo(repo_id, exist_ok=True)
    hub.api("hf_bob").upload_file(path_or_fileobj=report, path_in_repo="sharding_report.json", repo_id=repo_id)
    return repo_id


def test_a_hostile_report_gets_one_clear_message(home: Site, visit: Visit, hub: Server) -> None:
    repo_id = with_report(hub, "hostile-script", json.dumps(HOSTILE).encode())
    page = visit(home, f"?result={repo_id}")
    expect(page.locator("#result").get_by_role("alert")).to_contain_text("is not a report of this tool")
    assert page.title() == "Shard My Repo"
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_well_formed_report_with_markup_in_it_is_shown_as_text_and_not_believed(
    space: Site, visit: Visit, hub: Server, genuine: str
) -> None:
    report = hub.ask("GET", f"/{genuine}/resolve/main/sharding_report.json").json()
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    report["tool"] = report["source"]["architecture"] = report["verification"]["method"] = evil
    page = visit(space, f"?result={with_report(hub, 'hostile-markup', json.dumps(report).encode())}")
    expect(page.locator("#result")).to_contain_text("<img src=x onerror")
    expect(page.locator("#result")).to_contain_text("do not rely on it")
    assert page.locator("#result img, #result script").count() == 0
    assert page.title() == "Shard My Repo"


def test_a_link_to_no_result_says_so(home: Site, visit: Visit) -> None:
    page = visit(home, "?result=<script>alert(1)</script>")
    expect(page.locator("#result").get_by_role("alert")).to_be_visible()
    assert not page.complaints  # type: ignore[attr-defined]


# --- Two visitors ---------------------------------------------------------------------------------------


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
    expect(page.locator("#account")).to_contain_text("Sign in")


def test_at_home_the_saved_login_is_used(home: Site, visit: Visit, small: str) -> None:
    page = visit(home, f"?repo={small}&size=70kB")
    expect(page.locator("#account")).to_contain_text("Signed in as alice")
    start_job(page, copy_name())
    expect(page.locator("#result")).to_contain_text("bit-identical")
    assert f"{home.address}/?result=alice/" in page.locator("#result pre").first.inner_text()


def test_what_loading_costs_is_measured_where_that_is_asked_for(home: Site, visit: Visit, tiny: str) -> None:
    page = visit(home, f"?repo={tiny}&size=70kB")
    page.get_by_label("Load the original and the copy as well").check()
    start_job(page, copy_name())
    expect(page.locator("#progress")).to_contain_text("Loading the original and the copy in turn")
    expect(page.locator("#log")).to_contain_text("Loaded the original, loaded: at most")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#progress .cancelled")).to_be_visible()


# --- For everybody --------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_scrolls_sideways_and_the_console_is_silent(
    home: Site, visit: Visit, genuine: str, long: str, theme: Literal["light", "dark"]
) -> None:
    plan = visit(home, f"?repo={long}&size=40kB", color_scheme=theme)
    expect(plan.locator("#shards tbody tr")).to_have_count(20)
    plan.locator("#start:not([disabled])").wait_for()
    result = visit(home, f"?result={genuine}", color_scheme=theme)
    expect(result.locator("#result")).to_contain_text("bit-identical")
    for page in (plan, result):
        for width in (390, 1440):
            page.set_viewport_size({"width": width, "height": 900})
            assert fits(page)
        assert not page.complaints  # type: ignore[attr-defined]
    background = plan.evaluate("getComputedStyle(document.querySelector('.step')).backgroundColor")
    assert (background == "rgb(255, 255, 255)") == (theme == "light")
    plan.set_viewport_size({"width": 390, "height": 900})
    plan.get_by_label("Model", exact=True).fill("bob/nothing-here")
    plan.get_by_label("Model", exact=True).press("Enter")
    expect(plan.locator("#repo-message").get_by_role("alert")).to_be_visible()
    assert fits(plan)


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def test_the_keyboard_is_enough_to_choose_and_push(home: Site, visit: Visit, small: str) -> None:
    page = visit(home)
    tab_to(page, "Model")
    page.keyboard.type(f"{small}\n")
    expect(page.locator("#facts")).to_contain_text(small)
    expect(page.locator("#shards tbody tr")).to_have_count(1)
    tab_to(page, "Name of the new repo")
    page.keyboard.press("Control+a")
    page.keyboard.type(copy_name())
    tab_to(page, "Shard and push")
    page.keyboard.press("Enter")
    expect(page.locator("#result")).to_contain_text("bit-identical")


def tab_to(page: Page, label: str) -> None:
    """Press Tab until the part with this label has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => { const it = document.activeElement;
            return [it.getAttribute('aria-label'), it.labels?.[0]?.innerText, it.innerText].join(' ') }"""
        )
        if label in found:
            return
    raise AssertionError(f"Tab never reaches {label}.")


def axe() -> Path:
    path = Path(__file__).parent / "node_modules/axe-core/axe.min.js"
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail("There is no axe-core, and in CI the page must be checked with it: make browser.")
        pytest.skip("There is no axe-core: make browser.")
    return path


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_violation(
    space: Site, home: Site, visit: Visit, small: str, genuine: str, theme: Literal["light", "dark"]
) -> None:
    script, site = axe(), space if theme == "light" else home
    page = visit(site, f"?repo={small}&size=70kB", color_scheme=theme)
    expect(page.locator("#shards tbody tr")).to_have_count(4)
    expect(page.locator("#start")).to_be_enabled(enabled=site is home)  # who is signed in there already may push
    assert violations(page, script) == []
    if theme == "light":
        sign_in(page, "alice")
        start_job(page, copy_name())
    else:
        page.goto(f"{site.address}/?result={genuine}")
    expect(page.locator("#result")).to_contain_text("bit-identical")
    assert violations(page, script) == []
    page.goto(f"{site.address}/?repo=bob/nothing-here")
    expect(page.locator("#repo-message").get_by_role("alert")).to_be_visible()
    assert violations(page, script) == []


def violations(page: Page, script: Path) -> list[str]:
    page.add_script_tag(path=script)
    # Colours on their way to others are nobody's choice.
    page.evaluate(
        "Promise.allSettled(document.getAnimations()"
        ".filter((moving) => moving.effect.getComputedTiming().endTime !== Infinity).map((moving) => moving.finished))"
    )
    found = page.evaluate("axe.run()")["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def test_the_token_is_found_nowhere_after_a_job(space: Site, visit: Visit, hub: Server, long: str) -> None:
    site = space
    page = visit(site, f"?repo={long}&size=200kB")
    sign_in(page, "alice")
    cookie = next(cookie["value"] for cookie in page.context.cookies() if cookie["name"] == "session")
    token = json.loads(base64.b64decode(cookie.split(".")[0] + "=="))["oauth_info"]["access_token"]
    assert token.startswith("hf_oauth_")
    name = copy_name("slow")
    start_job(page, name)
    assert site.process
    arguments = []
    while page.locator("#result").count() == 0 or "bit-identical" not in page.locator("#result").inner_text():
        for process in psutil.Process(site.process.pid).children(recursive=True):
            with suppress(psutil.Error):
                arguments.append(" ".join(process.cmdline()))
    assert any("sharding shard" in line for line in arguments)
    said = [*arguments, page.content(), site.log]
    for path in site.folder.rglob("*"):
        if path.is_file():
            said.append(path.read_bytes().decode(errors="replace"))
    for file in hub.api().list_repo_files(f"alice/{name}"):
        said.append(hub.ask("GET", f"/alice/{name}/resolve/main/{file}").body.decode(errors="replace"))
    assert len(said) > 20
    assert not [text[:200] for text in said if token in text or "hf_alice" in text]
