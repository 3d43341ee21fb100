"""The goal that merges a LoRA: its two fields, the hatched map, and the certificate of what comes of it."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from safetensors.numpy import save_file

from tests.conftest import environment, write_checkpoint
from tests.localhub.conftest import Server
from tests.page.conftest import Site, call, copy_name, files, push, settled, start_job

Visit = Callable[..., Page]
LAYERS, SIDE, RANK = 6, 32, 4
CHANGED, TENSORS = 2 * LAYERS, 4 * LAYERS + 1


@pytest.fixture(scope="module")
def plain(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A public model in one file, of which an adapter changes two tensors in each layer."""
    generator = np.random.default_rng(0)
    parts = ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj")
    tensors = {
        f"model.layers.{n}.{part}.weight": generator.standard_normal((SIDE, SIDE)).astype(np.float32)
        for n in range(LAYERS)
        for part in parts
    }
    tensors["model.embed_tokens.weight"] = generator.standard_normal((64, SIDE)).astype(np.float32)
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "plain", {"model.safetensors": tensors}, False)
    return push(hub, folder, "bob/plain")


def save_lora(folder: Path, side: int = SIDE) -> Path:
    """Write an adapter as PEFT does, by hand: to import torch takes seconds."""
    generator, tensors = np.random.default_rng(1), {}
    for layer in range(LAYERS):
        for part in ("q_proj", "v_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{part}"
            tensors[f"{name}.lora_A.weight"] = generator.standard_normal((RANK, side)).astype(np.float32)
            tensors[f"{name}.lora_B.weight"] = generator.standard_normal((side, RANK)).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def lora(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push(hub, save_lora(tmp_path_factory.mktemp("in") / "lora"), "bob/lora")


@pytest.fixture(scope="module")
def other(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An adapter of another base."""
    return push(hub, save_lora(tmp_path_factory.mktemp("in") / "other", side=48), "bob/other-lora")


@pytest.fixture(scope="module")
def secret(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A private adapter of alice, whose token is also the secret of the Space."""
    folder = save_lora(tmp_path_factory.mktemp("in") / "secret")
    hub.api("hf_alice").create_repo("alice/secret-lora", private=True)
    hub.api("hf_alice").upload_folder(repo_id="alice/secret-lora", folder_path=folder)
    return "alice/secret-lora"


def make_merged(hub: Server, base: str, adapter: str, copy: str) -> None:
    """Merge with the command line, so that products have the same bits as in a check by the page.

    Here they may have others, because the tests set MKL_CBWR.
    """
    apart = {name: value for name, value in environment().items() if name != "MKL_CBWR"}
    command = [sys.executable, "-m", "sharding", "shard", base, copy, "--adapter", adapter, "-s", "30kB", "--json"]
    login = {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_bob"}
    subprocess.run(command, env={**apart, **login}, check=True, capture_output=True)


def field(page: Page) -> Locator:
    return page.locator("#adapter :is(input, textarea)")


def name_adapter(page: Page, adapter: str) -> None:
    field(page).fill(adapter)
    field(page).press("Enter")


def test_the_goal_asks_for_an_adapter_and_no_other_goal_uses_it(
    home: Site, visit: Visit, plain: str, lora: str
) -> None:
    page = visit(home)
    expect(field(page)).to_have_count(0)
    page.locator("#goal label", has_text="Merge my LoRA").click()
    expect(field(page)).to_be_visible()
    page.get_by_label("Model", exact=True).fill(plain)
    page.get_by_label("Model", exact=True).press("Enter")
    expect(page.locator("#repo-message")).to_contain_text("Now name your adapter.")
    expect(page.locator("#facts")).to_contain_text(plain)
    expect(page.locator("#start")).not_to_be_visible()
    name_adapter(page, lora)
    expect(page.locator("#summary")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    expect(page).to_have_url(re.compile(rf"goal=merge-lora&size=\w+&adapter={lora}"))
    page.locator("#goal label", has_text="Slow connection").click()
    expect(field(page)).to_have_count(0)
    expect(page.locator("#summary")).to_contain_text("1 file →")
    expect(page.locator("#summary")).not_to_contain_text("change")
    expect(page).not_to_have_url(re.compile("adapter="))
    assert not page.complaints  # type: ignore[attr-defined]


def test_a_merge_goes_from_its_link_to_its_certificate(home: Site, visit: Visit, plain: str, lora: str) -> None:
    page = visit(home, f"?repo={plain}&adapter={lora}&size=30kB")
    expect(page.get_by_role("radio", name="Merge my LoRA")).to_be_checked()
    expect(field(page)).to_have_value(lora)
    expect(page.locator("#picture .legend")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    settled(page)
    hatched = page.locator("#picture .strip.after path.changes")
    expect(hatched).to_have_count(1)
    assert (hatched.get_attribute("d") or "").count("z") == CHANGED
    pattern = page.locator("#picture .hatch").get_attribute("id")
    assert f"#{pattern}" in hatched.evaluate("path => getComputedStyle(path).fill")
    changing = page.locator("#picture .strip.after rect[data-n*=', changes']")
    expect(changing).to_have_count(CHANGED)
    expect(page.locator("#target")).to_contain_text("alice/plain-lora-sharded-30kB, public")
    # A merge computes other numbers than its base, so neither the loads nor load-and-save are compared.
    expect(page.locator("#measure input")).not_to_be_visible()
    expect(page.locator("#shards")).not_to_contain_text("Load and save")
    name = copy_name("merged")
    start_job(page, name)
    expect(page.locator("#progress .route")).to_contain_text("bob/plain with bob/lora merged")
    expect(page.locator("#result h2")).to_contain_text(
        re.compile(r"bit-identical to .*plain@\w+ with .*lora@\w+ merged")
    )
    expect(page.locator("#result")).to_contain_text(f"The adapter changes {CHANGED} of {TENSORS} tensors")
    expect(page.locator("#result a", has_text="lora").first).to_have_attribute("href", re.compile("/bob/lora/tree/"))
    expect(page.locator("#result-details")).to_contain_text("It needs no PEFT and no adapter.")
    expect(page.locator("#job-map .legend")).to_contain_text("tensors change")
    page.goto(f"{home.address}/?result=alice/{name}")
    expect(page.locator("#result-map .legend")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    expect(page.locator("#result h2")).to_have_attribute("data-trust", "made-here")
    again = page.get_by_role("link", name="Make one like it")
    expect(again).to_have_attribute("href", re.compile(r"adapter=bob/lora@[0-9a-f]{40}"))
    page.goto(home.address)
    expect(page.locator("#jobs")).to_contain_text("with bob/lora merged")


def test_a_stranger_has_every_byte_of_a_merge_read(
    hub: Server, space: Site, visit: Visit, plain: str, lora: str
) -> None:
    make_merged(hub, plain, lora, "bob/merged")
    page = visit(space, "?result=bob/merged")
    expect(page.locator("#result h2")).to_contain_text("Matches the structure of bob/plain@")
    expect(page.locator("#result h2")).to_contain_text("with bob/lora@")
    page = visit(space, "?result=bob/merged", user="alice")
    page.locator("#check").click()
    expect(page.locator("#outcome")).to_contain_text("Every tensor of both repos was read. All are identical.")
    expect(page.locator("#outcome")).to_contain_text("was first merged into the original's")
    page.goto(f"{space.address}/?result=bob/merged")
    expect(page.locator("#result h2")).to_have_attribute("data-trust", "read-now")


def test_what_is_wrong_with_an_adapter_stands_below_its_field(
    home: Site, visit: Visit, plain: str, lora: str, other: str
) -> None:
    page = visit(home, f"?repo={plain}&adapter=bob/nothing-there")
    said = page.locator("#repo-message")
    expect(said).to_contain_text("bob/nothing-there")
    for adapter, words in (
        (plain, "has no adapter_config.json"),
        (other, "Name the base that the adapter was trained on"),
    ):
        name_adapter(page, adapter)
        expect(said).to_contain_text(words)
        expect(page.locator("#facts")).to_contain_text(plain)
        expect(page.locator("#start")).not_to_be_visible()
    name_adapter(page, lora)
    expect(page.locator("#summary")).to_contain_text("tensors change")
    expect(said).to_have_text("")
    assert files(page)


def test_a_space_reads_a_private_adapter_with_the_token_of_its_visitor_only(
    space: Site, visit: Visit, plain: str, secret: str
) -> None:
    query = f"?repo={plain}&adapter={secret}&size=30kB"
    page = visit(space, query)
    expect(page.locator("#repo-message")).to_contain_text(secret)
    expect(page.locator("#start")).not_to_be_visible()
    page = visit(space, query, user="alice")
    expect(page.locator("#summary")).to_contain_text(f"{CHANGED} of {TENSORS} tensors change")
    # The result is private by itself, as its adapter is.
    expect(page.locator("#target")).to_contain_text(", private")


@pytest.mark.parametrize("name", ["/etc", "./lora", "~/lora", "s3://bucket/lora", "https://example.org/bob/lora"])
def test_nothing_but_a_repo_of_the_hub_is_an_adapter(space: Site, plain: str, name: str) -> None:
    _, said = call(space, "plan", [plain, "30kB", "size", "natural", "keep", "", "", False, name], {})
    assert "event: error" in said and "weight_map" not in said


def test_the_plan_of_a_merge_is_there_for_programs(space: Site, plain: str, lora: str) -> None:
    _, said = call(space, "plan", [plain, "30kB", "size", "natural", "keep", "", "", False, lora], {})
    plan = json.loads(said.partition("data: ")[2])[0]
    assert (plan["merged"]["changed"], plan["merged"]["tensors"]) == (CHANGED, TENSORS)
    assert plan["merged"]["adapter"]["repo_id"] == lora
