"""What a result link says of a result, which may be anybody's, in a browser."""

import json
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, expect

from sharding import job
from tests.localhub.conftest import Server
from tests.page.conftest import Site, become, call, copy_name

Visit = Callable[..., Page]


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
    space: Site, visit: Visit, hub: Server, small: str
) -> None:
    name = f"alice/{copy_name('elsewhere')}"
    *_, _ = job.shard(small, name, "90kB", endpoint=hub.address, token="hf_alice")
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
