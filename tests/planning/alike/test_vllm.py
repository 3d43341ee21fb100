"""vLLM finds every tensor of a copy made like its original, by the tables in its loaders."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.options import Options
from tests.planning.alike.models import MODELS, build, in_memory, published

CLASSES: dict[str, Any] = json.loads(Path(__file__).with_name("vllm.json").read_text())["classes"]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_vllm_knows_every_name_of_a_copy(name: str, tmp_path: Path) -> None:
    known = CLASSES[name]
    original, mine = published(build(name), tmp_path / "original"), in_memory(build(name, 1), tmp_path / "mine")
    names = job.plan(str(mine), Options(like=str(original)))[1].weight_map
    read = set()
    for tensor in names:
        old, new = next(((a, b) for a, b in known.get("prefixes", {}).items() if tensor.startswith(a)), ("", ""))
        if new is not None:
            read.add(new + tensor.removeprefix(old))
    not_stored = {"lm_head"} if MODELS[name][2].get("tie_word_embeddings") else set()
    assert {tensor.partition(".")[0] for tensor in read} == {*known["modules"]} - not_stored
    experts = [re.fullmatch(r"model\.layers\.\d+\.(\w+)\.experts\.(\d+)\.(\w+)\.weight", one) for one in read]
    found = {(match[1], match[3]) for match in experts if match}
    assert found == {(known["block"], matrix) for matrix in known.get("matrices", ())}
    assert not [one for one in read if ".experts." in one and "matrices" in known and one.count(".") < 7]
