"""What a Space needs to start: complete front matter, pinned requirements, a declared GPU function."""

import re
import tomllib
from collections import Counter
from pathlib import Path

import yaml

from tests.conftest import ROOT


def front_matter() -> dict[str, object]:
    card: dict[str, object] = yaml.safe_load((ROOT / ".ci/space.yml").read_text())
    return card


def pins(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {name.partition("[")[0]: version for name, _, version in (line.partition("==") for line in lines)}


def test_the_front_matter_says_all_that_a_space_asks() -> None:
    card = front_matter()
    assert card["sdk"] == "gradio"
    assert card["sdk_version"] == pins(ROOT / "requirements.txt")["gradio"]
    assert card["python_version"] == "3.11"
    assert (ROOT / str(card["app_file"])).is_file()
    assert len(str(card["short_description"])) <= 60
    assert (ROOT / str(card["thumbnail"]).partition("/resolve/main/")[2]).is_file()
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {card["colorFrom"], card["colorTo"]} <= colours
    # A login asks for no more than it needs.
    assert card["hf_oauth_scopes"] == ["contribute-repos", "gated-repos", "read-repos"]
    assert (card["hf_oauth"], card["hf_oauth_expiration_minutes"]) == (True, 480)
    assert card["license"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"].lower()


def test_every_requirement_is_pinned() -> None:
    for file in ("requirements.txt", "tests/requirements.txt"):
        assert all(re.fullmatch(r"[0-9][0-9a-z.]*", version) for version in pins(ROOT / file).values()), file


def test_what_the_page_brings_is_small() -> None:
    files = ("page.js", "map.js", "picture.js", "style.css", "map.css")
    assert sum((ROOT / "assets" / name).stat().st_size for name in files) < 150_000


def test_app_declares_one_gpu_function() -> None:
    assert (ROOT / "app.py").read_text().count("\n@spaces.GPU") == 1


def test_no_two_scripts_of_the_page_declare_the_same_name() -> None:
    """They share one scope, in which the last function of a name wins without a word."""
    declared = [
        name
        for path in sorted((ROOT / "assets").glob("*.js"))
        for name in re.findall(r"^(?:async )?(?:function\*?|const|let|var) (\w+)", path.read_text(), flags=re.M)
    ]
    assert len(declared) > 50
    assert [name for name, times in Counter(declared).items() if times > 1] == []
