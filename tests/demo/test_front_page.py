"""Each command in the first table of README does its job: on the samples, in place of the names that it gives."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

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
}
BASE = {"owner/name": "samples/t5-tiny"}
"""The base of the ranks that are among the samples."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("front") / "hub")
    server.start("--samples", entry=("sharding", "localhub"))
    yield server
    server.stop()


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


@pytest.mark.thorough
@pytest.mark.parametrize("row", range(len(table(README, "You have | You want"))))
def test_a_command_of_the_front_page_does_its_job(
    hub: Server, tmp_path: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = table(README, "You have | You want")[row][-1]
    words = shlex.split(code(typed)[0])[1:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    if "--adapter" in words:
        write_lora(tmp_path / "lora")
    if "./mine" in words:
        wrapped = "model.=module.model.,lm_head.=module.lm_head."
        assert invoke("shard", NAMES["owner/original"], "./mine", "--rename", wrapped).exit_code == 0
    names = NAMES | (BASE if "--base" in words else {})
    done = invoke(*(names.get(word, word) for word in words))
    assert done.exit_code == 0, done.output
