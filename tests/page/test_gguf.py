"""GGUF on the page: one of a repo's quantizations is chosen from a list, and becomes one file for ollama."""

import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.folders import reshard
from tests.ggufs import model as gguf_model
from tests.hubs import files_of
from tests.inhouse import InHouse
from tests.page.conftest import Publish, Visit, enter, files, model, size, start_job
from tests.page.site import Site
from tests.page.test_api import Connect, connect  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def quantizations(publish: Publish) -> str:
    """Three models, the one in the middle cut into parts."""

    def save(folder: Path) -> Path:
        gguf_model(folder, "big-Q8_0")
        gguf_model(folder, "big-IQ1_S")
        whole = gguf_model(folder.parent / f"{folder.name}-whole", "big-Q4_K_M")
        reshard(whole, folder.parent / f"{folder.name}-parts", "10kB")
        for part in (folder.parent / f"{folder.name}-parts").glob("*.gguf"):
            part.rename(folder / part.name)
        return folder

    return publish(save, "big-GGUF")


def test_a_quantization_is_chosen_from_a_list_and_becomes_one_file_for_ollama(
    home: Site, hub: InHouse, visit: Visit, quantizations: str
) -> None:
    page = visit(home)
    page.locator("#goals .card", has_text="One file for ollama").click()
    enter(model(page), quantizations)
    expect(page.locator("#repo-message")).to_contain_text("There are 3 GGUF models. You see Q4_K_M instead.")
    labels = page.locator("#variants label")
    expect(labels).to_have_count(3)
    expect(page.locator("#variants")).to_contain_text(re.compile(r"Q4_K_M: [\d.]+ kB, fits CPU memory of free Colab"))
    expect(page.locator("#summary")).to_contain_text("7 → 1 file,")
    expect(page).to_have_url(re.compile("goal=ollama&size=single-file"))
    expect(page.locator("#goals .chip")).to_have_count(2)
    page.locator("#variants").get_by_label(re.compile("IQ1_S")).check()
    expect(page.locator("#summary")).to_contain_text("Nothing would change")
    page.locator("#variants").get_by_label(re.compile("Q4_K_M")).check()
    expect(page.locator("#summary")).to_contain_text("7 → 1 file,")
    start_job(page, "big-ollama")
    expect(page.locator("#outcome")).to_contain_text("ollama pull hf.co/alice/big-ollama:Q4_K_M")
    assert "big-Q4_K_M.gguf" in files_of(hub, "alice/big-ollama")
    assert not page.complaints  # type: ignore[attr-defined]


def test_another_size_is_planned_and_what_cannot_be_done_is_said(home: Site, visit: Visit, quantizations: str) -> None:
    page = visit(home, f"?repo={quantizations}&size=10kB&variant=Q8_0")
    expect(files(page)).to_have_count(7)
    expect(page.locator("#findings")).to_contain_text("ollama cannot pull big-Q8_0")
    enter(size(page), "25kB")
    expect(files(page)).to_have_count(3)


def test_a_program_lists_the_models_and_plans_one(
    connect: Connect,  # noqa: F811
    quantizations: str,
) -> None:
    client = connect("hf_alice")
    found = client.predict(source=quantizations, api_name="/inspect")["models"]
    assert [one["variant"] for one in found] == ["IQ1_S", "Q4_K_M", "Q8_0"] and len(found[1]["files"]) == 7
    plan = client.predict(
        source=quantizations, max_shard_size="single-file", variant="Q4_K_M", format="gguf", api_name="/plan"
    )
    assert [shard["file"] for shard in plan["shards"]] == ["big-Q4_K_M.gguf"]
