"""Each command in the first table of README does its job: on the samples, in place of the names that it gives."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from safetensors.torch import load_file

from tests import ggufs
from tests.commands import invoke
from tests.docs.pages import README, code, table
from tests.localhub.conftest import Server

NAMES = {
    "owner/name": "samples/mistral-60m",
    "owner/original": "samples/mistral-60m",
    "other/name": "samples/mistral-60m",
    "owner/name-fp8": "samples/qwen3-fp8",
    "you/name-bf16": "alice/name-bf16",
    "./checkpoint-500": "samples/t5-tiny-ranks",
    "someone/lora": "./lora",
    "owner/name-vl": "./vl",
    "owner/name-gguf": "./parts",
    "you/name-gguf": "alice/name-gguf",
    "other/merged": "./merged",
}
BASE = {"owner/name": "samples/t5-tiny"}
"""The base of the ranks that are among the samples."""


@pytest.fixture(scope="module")
def front(served: Callable[..., Server]) -> Server:
    """A Hub with the samples."""
    return served("--samples", entry=("sharding", "localhub"))


def write_lora(folder: Path) -> None:
    """Write an adapter for one layer of the sample that stands for owner/name."""
    folder.mkdir()
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{module}.lora_A.weight": (4, 512), f"{module}.lora_B.weight": (512, 4)}
    save_file(
        {name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "adapter_model.safetensors"
    )
    config = {"peft_type": "LORA", "r": 4, "target_modules": ["layers.0.self_attn.q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


ROWS = [
    shlex.split(span)[1:]
    for *_, typed in table(README, "You have | You want")
    for span in code(typed)[:1]
    if span.startswith("shard-my-repo ")
]
"""The words of each command, without its name."""


@pytest.fixture
def typing(front: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], list[str]]:
    """Make what the words of a row need in the current folder, and return these words with the names of the samples."""

    def typing(words: list[str]) -> list[str]:
        if "--adapter" in words:
            write_lora(tmp_path / "lora")
        if "./mine" in words:
            wrapped = "model.=module.model.,lm_head.=module.lm_head."
            assert invoke("shard", NAMES["owner/original"], "./mine", "--rename", wrapped).exit_code == 0
        if "--text-only" in words:
            from tests.planning.alike.models import build, published

            published(build("qwen2_5_vl"), tmp_path / "vl")
        if "owner/name-gguf" in words:
            ggufs.model(tmp_path / "whole")
            assert invoke("shard", "./whole", "./parts", "-s", "20kB").exit_code == 0
        names = NAMES | (BASE if "--base" in words else {})
        typed = [names.get(word, word) for word in words]
        if typed[0] == "verify" and "--adapter" in words:
            assert invoke("shard", typed[1], typed[2], *typed[3:]).exit_code == 0
        return typed

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", front.address)
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    return typing


@pytest.mark.thorough
@pytest.mark.parametrize("words", ROWS, ids=" ".join)
def test_a_command_of_the_front_page_does_its_job(words: list[str], typing: Callable[[list[str]], list[str]]) -> None:
    done = invoke(*typing(words))
    assert done.exit_code == 0, done.output
    if "--variant" in words:
        assert "small-Q4_K_M.gguf" in done.output
    elif "--single-file" in words:
        assert load_file("name/model.safetensors")
