"""The commands that deploy a Space and rent a machine have the options that they are shown with."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SHOWN = [
    shlex.split(line[2:])
    for line in (ROOT / "docs/deploy.md").read_text().splitlines()
    if line.startswith("$ hf ") and "login" not in line
]


@pytest.mark.parametrize("words", SHOWN, ids=lambda words: " ".join(words[:3]))
def test_the_hubs_own_command_has_the_options_that_are_shown(words: list[str]) -> None:
    hf = Path(sys.executable).with_name("hf")
    command = [word for word in words[1:3] if re.fullmatch("[a-z]+", word)]
    told = subprocess.run([hf, *command, "--help"], capture_output=True, text=True, check=True).stdout
    last = next((index for index, word in enumerate(words) if word.startswith("python:")), len(words))
    options = [word for word in words[:last] if word.startswith("--")]
    assert len(SHOWN) == 3 and options
    assert [option for option in options if not re.search(rf"{option}\b", told)] == []
