"""What a stranger's config.json describes is built within bounds, and refused where it contradicts the headers."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sharding.core.environment import child_command, child_variables
from sharding.core.errors import ModelRefused
from sharding.model_class.architecture import refuse_contradiction
from tests import models
from tests.conftest import ROOT, environment
from tests.lora import configured
from tests.promises import promise

MEMORY_BYTES = 1_500_000_000
"""What the largest process of a command may take that asks transformers: its libraries take a third of that."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save("llama", tmp_path_factory.mktemp("bounds") / "llama", "30kB", layers=2)


def claim(folder: Path, **claims: Any) -> str:
    """Have the config.json in `folder` claim something; return the folder."""
    configured("config.json", **claims)(folder)
    return str(folder)


def command(*arguments: str) -> tuple[int, str, int]:
    """Run a command; return its status, what it said of errors, and the most memory that one of its processes had."""
    script = (
        "import resource, subprocess, sys\n"
        "done = subprocess.run([sys.executable, '-m', 'sharding', *sys.argv[1:]])\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(peak * (1 if sys.platform == 'darwin' else 1024), file=sys.stderr)\n"
        "sys.exit(done.returncode)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, env=environment(), cwd=ROOT
    )
    said, _, peak = done.stderr.strip().rpartition("\n")
    return done.returncode, said, int(peak)


@promise("docs/security.md#fill-the-memory-with-a-config")
@pytest.mark.parametrize(
    "words",
    [["plan", "--order", "transformers"], pytest.param(["devices", "--budget", "cpu=1GB"], marks=pytest.mark.thorough)],
)
def test_twelve_million_positions_take_no_memory(words: list[str], tmp_path: Path) -> None:
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(vocab_size=64, n_embd=32, n_layer=2, n_head=2, rotary_dim=16, n_positions=16)
    GPTJForCausalLM(config).save_pretrained(tmp_path / "gptj")
    folder = claim(tmp_path / "gptj", n_positions=12_000_000)
    status, said, peak = command(words[0], folder, *words[1:])
    assert status == 0, said
    assert peak < MEMORY_BYTES


@promise("docs/security.md#make-the-job-build-another-model")
@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"num_hidden_layers": 10_000_000}, "config.json sets num_hidden_layers to 10,000,000, but the weights have"),
        ({"vocab_size": 3_000_000_000}, "config.json sets vocab_size to 3,000,000,000, but no dimension of"),
        ({"text_config": {"num_hidden_layers": 10**30}}, "num_hidden_layers to a number of more than 15 digits"),
    ],
    ids=["layers", "vocabulary", "nested"],
)
def test_a_config_that_contradicts_the_headers_is_refused_and_plans_by_size_are_made(
    claims: dict[str, Any], reason: str, tmp_path: Path, run: Callable[..., "subprocess.CompletedProcess[str]"]
) -> None:
    folder = claim(models.save("llama", tmp_path / "llama", "30kB", layers=2), **claims)
    for arguments in (["plan", folder, "--strategy", "pp:2"], ["devices", folder, "--budget", "cpu=1GB"]):
        done = run(*arguments)
        assert done.returncode == 3
        assert reason in " ".join(done.stderr.split())
    assert run("plan", folder).returncode == 0


@pytest.mark.parametrize(
    ("config", "shapes"),
    [
        ('{"num_hidden_layers": 61, "vocab_size": 129280, "hidden_size": 7168}', [(96, 32)]),
        ('{"vocab_size": 1000000}', [(8, 8)]),
        ('{"num_hidden_layers": 1, "num_nextn_predict_layers": 3}', [(8, 8)] * 900),
        ('{"vocab_size": 5000000}', [(5_000_064, 8)]),
        ('{"num_hidden_layers": "many", "vocab_size": null, "hidden_size": true}', []),
        ('{"n_layer": 1000}', [(8, 8)]),
        *((config, [(8, 8)]) for config in ("", "[" * 100_000, '{"num_hidden_layers": 1e999}', "null")),
    ],
    ids=["part", "large-vocabulary", "layers", "padded", "no-numbers", "many-layers", "empty", "deep", "huge", "null"],
)
def test_what_a_known_model_or_a_part_of_one_could_say_or_is_no_configuration_is_no_contradiction(
    config: str, shapes: list[tuple[int, ...]]
) -> None:
    refuse_contradiction(config, shapes)


def test_a_layer_more_than_the_headers_hold_is_refused_above_what_any_model_has() -> None:
    with pytest.raises(ModelRefused, match="n_layer to 1,001, but the weights have only 1 tensor"):
        refuse_contradiction('{"n_layer": 1001}', [(8, 8)])


ALLOWED = (
    "from sharding.core.allowance import memory_allowance\n"
    "with memory_allowance(50_000_000):\n"
    "    print(len(bytearray(10_000_000)), flush=True)\n"
    "    try: print(len(bytearray(200_000_000)))\n"
    "    except MemoryError: print('no more')\n"
    "print(len(bytearray(200_000_000)))"
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to an amount of memory")
def test_a_process_has_what_it_is_allowed_and_no_more() -> None:
    done = subprocess.run([sys.executable, "-c", ALLOWED], capture_output=True, text=True, env=environment())
    assert done.stdout.split("\n")[:3] == ["10000000", "no more", "200000000"], done.stderr


@promise("docs/security.md#fill-the-memory-with-a-config")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to an amount of memory")
@pytest.mark.usefixtures("warm_processes")
def test_a_model_that_takes_more_memory_than_allowed_is_refused_in_a_sentence(llama: Path) -> None:
    small = "from sharding.model_class import meta_model; meta_model.MODEL_MEMORY_BYTES = 1_000_000\nmeta_model.main()"
    config = json.loads((llama / "config.json").read_text()) | {"num_hidden_layers": 900}
    asked = {"config": json.dumps(config), "dtype": None, "budgets": {}, "limit_seconds": 120}
    program = child_command("sharding.model_class.meta_model")[0]
    done = subprocess.run(
        [program, "-P", "-c", small], input=json.dumps(asked), capture_output=True, text=True, env=child_variables()
    )
    assert "needs more memory than the limit" in json.loads(done.stdout)["refused"]
