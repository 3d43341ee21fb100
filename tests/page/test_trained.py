"""What a training run has saved, on the page: its base is asked for, and goes with it to the result."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from safetensors.numpy import save_file

from tests.conftest import random_tensors
from tests.localhub.conftest import Server
from tests.page.conftest import Site, call, copy_name, files, push, start_job

Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def trained(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tensors of `small` as two ranks leave them, cut along their first dimension."""
    folder: Path = tmp_path_factory.mktemp("in") / "trained"
    folder.mkdir()
    for rank in (0, 1):
        pieces = {name: array[rank * (len(array) // 2) :][: None if rank else len(array) // 2] for name, array in random_tensors().items()}  # fmt: skip
        info = {
            name: {"saved_offsets": [rank * (len(array) // 2), *[0] * (array.ndim - 1)]}
            for name, array in random_tensors().items()
        }
        metadata = {"DCP_VERSION": "1.0", "DCP_SHARDING_INFO": json.dumps(info)}
        save_file({k: v.copy() for k, v in pieces.items()}, folder / f"shard-0000{rank + 1}-model-00001-of-00001.safetensors", metadata=metadata)  # fmt: skip
    return push(hub, folder, "bob/trained")


@pytest.mark.thorough
def test_the_base_is_asked_for_and_goes_with_the_copy(home: Site, visit: Visit, trained: str, small: str) -> None:
    page = visit(home, f"?repo={small}&size=60kB")
    base = page.locator("#base textarea, #base input")
    expect(files(page)).to_have_count(5)
    expect(base).to_have_count(0)
    page.get_by_label("Model", exact=True).fill(trained)
    page.get_by_label("Model", exact=True).press("Enter")
    expect(page.locator("#findings")).to_contain_text("There is no config.json and no tokenizer")
    expect(page.locator("#picture .sheet")).to_contain_text("Today 2 files")
    expect(page.locator("#summary")).to_contain_text(
        "Nothing loads this copy until you name the model that was trained"
    )
    expect(page.locator("#start")).to_have_class(re.compile(r"\bsecondary\b"))
    base.fill("bob/nothing-there")
    base.press("Enter")
    expect(page.locator("#repo-message")).to_contain_text("bob/nothing-there")
    base.fill(small)
    base.press("Enter")
    expect(page.locator("#facts")).to_contain_text("LlamaForCausalLM")
    expect(page.locator("#findings")).not_to_contain_text("There is no config.json")
    expect(page.locator("#summary")).not_to_contain_text("Nothing loads this copy")
    expect(page.locator("#start")).to_have_class(re.compile(r"\bprimary\b"))
    expect(page).to_have_url(re.compile("base=bob/small"))
    # Nothing loads it as it is, so its loading is not compared.
    expect(page.get_by_label("Load the original and the copy as well")).to_have_count(0)
    page.reload()
    page.complaints.clear()  # type: ignore[attr-defined]  # a page that is left says that its stream broke off
    expect(base).to_have_value(small)
    # An ordinary repo has none.
    page.get_by_label("Model", exact=True).fill(small)
    page.get_by_label("Model", exact=True).press("Enter")
    expect(page.locator("#facts")).to_contain_text("bob/small")
    expect(base).to_have_count(0)
    expect(page).not_to_have_url(re.compile("base="))
    page.get_by_label("Model", exact=True).fill(trained)
    page.get_by_label("Model", exact=True).press("Enter")
    base.fill(small)
    base.press("Enter")
    expect(page.locator("#facts")).to_contain_text("LlamaForCausalLM")
    expect(page).to_have_url(re.compile("base=bob/small"))
    name = copy_name()
    start_job(page, name)
    expect(page.locator("#result")).to_contain_text("bit-identical to bob/trained@")
    page.get_by_role("link", name=f"alice/{name}").first.wait_for()
    _, said = call(home, "result", [f"alice/{name}"], {})
    assert '"made-here"' in said and "bob/trained" in said
    assert not page.complaints  # type: ignore[attr-defined]
