"""The wheel, installed alone: a small environment that does all that needs no model in memory."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests import models, quantized
from tests.commands import run_uv
from tests.conftest import ROOT
from tests.demo.test_front_page import ROWS
from tests.folders import tensors
from tests.hubs import TOKEN, files_of
from tests.inhouse import InHouse
from tests.localhub.conftest import Server
from tests.promises import promise
from tests.scenarios.conftest import SOURCE

pytestmark = pytest.mark.thorough

MOST_BYTES = 175_000_000
HEAVY = {"torch", "transformers", "accelerate", "gradio", "pandas"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel that `make dist` has built, or else one that is built as it builds it."""
    sources, wheels, place = (tmp_path_factory.mktemp(name) for name in ("sources", "wheels", "slim"))
    if "DIST" in os.environ:
        wheels = ROOT / os.environ["DIST"]
    else:
        for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("LICENSE*")):
            shutil.copy(path, sources)
        shutil.copytree(ROOT / "sharding", sources / "sharding", ignore=shutil.ignore_patterns("__pycache__"))
        run_uv("build", "--quiet", "--out-dir", wheels, sources)
    pip = ["-I", "-m", "pip", "--quiet", "--disable-pip-version-check"]  # without this folder in PYTHONPATH
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    (wheel,) = wheels.glob("*.whl")
    subprocess.run([str(place / "bin/python"), *pip, "install", str(wheel)], check=True)
    return place


Slim = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def slim(place: Path, tmp_path: Path) -> Slim:
    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        known = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment = {**known, "HF_HOME": str(tmp_path / "home"), **variables}
        command = [str(place / "bin/shard-my-repo"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)

    return run


@promise("README.md#install")
def test_it_brings_nothing_heavy_and_stays_small(place: Path) -> None:
    pip = [str(place / "bin/python"), "-m", "pip", "list", "--format=json"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=True)
    assert not {package["name"] for package in json.loads(listed.stdout)} & HEAVY
    assert sum(path.lstat().st_size for path in place.rglob("*") if path.is_file()) <= MOST_BYTES


def test_a_folder_is_inspected_planned_sharded_and_verified(slim: Slim, checkpoint: Path) -> None:
    source = str(checkpoint)
    assert json.loads(slim("inspect", source, "--json").stdout)["tensors"]
    planned = json.loads(slim("plan", source, "-s", "60kB", "--json").stdout)
    report = json.loads(slim("shard", source, "./out", "-s", "60kB", "--json").stdout)
    assert [shard["file"] for shard in report["plan"]["shards"]] == [shard["file"] for shard in planned["shards"]]
    assert report["verification"]["identical"]
    assert "structure checked by safetensors" in report["verification"]["method"]
    assert slim("verify", source, "./out").returncode == 0


def test_pickled_weights_become_safetensors(slim: Slim, tmp_path: Path) -> None:
    (tmp_path / "pickled").mkdir()
    weights = {"w": torch.arange(12.0).view(3, 4).T, "b": torch.ones(3)}
    torch.save(weights, tmp_path / "pickled/pytorch_model.bin")
    assert slim("shard", "./pickled", "./out").returncode == 0
    made = load_file(tmp_path / "out/model.safetensors")
    assert made.keys() == weights.keys() and all(torch.equal(made[name], weights[name]) for name in made)


def test_weights_are_cast_and_dequantized(slim: Slim, tmp_path: Path) -> None:
    source = models.save("t5", tmp_path / "in", layers=1)
    assert slim("shard", "./in", "./cast", "--dtype", "fp16", "--strategy", "blocks").returncode == 0
    stored, cast = tensors(source), tensors(tmp_path / "cast")
    assert {name for name, tensor in cast.items() if tensor.dtype == torch.float32} == {n for n in cast if ".wo." in n}
    assert all(torch.equal(tensor, stored[name].to(tensor.dtype)) for name, tensor in cast.items())
    quantized.save_fp8("qwen3", tmp_path / "fp8")
    assert slim("shard", "./fp8", "./ordinary", "--dequantize").returncode == 0
    assert slim("verify", "./fp8", "./ordinary", "--dequantize").returncode == 0


def test_a_repo_of_a_hub_is_sharded_into_another(slim: Slim, hub: InHouse, name: str) -> None:
    access = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    done = slim("shard", SOURCE, name, "-s", "60kB", "--json", **access)
    assert json.loads(done.stdout)["verification"]["identical"]
    assert "model.safetensors.index.json" in files_of(hub, name)


@pytest.mark.parametrize("words", ROWS, ids=" ".join)
def test_it_runs_the_commands_of_the_front_page(
    words: list[str], front: Server, slim: Slim, typing: Callable[[list[str]], list[str]]
) -> None:
    done = slim(*typing(words), HF_ENDPOINT=front.address, HF_TOKEN="hf_alice")
    asks = words[0] == "devices" or "--rank" in words  # transformers
    assert done.returncode == 3 * asks and ("[load]" in done.stderr) == asks, done.stderr


def test_what_needs_an_extra_says_which_and_how_to_install_it(
    slim: Slim, place: Path, checkpoint: Path, tmp_path: Path
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    hints = []
    for words in ("plan ./checkpoint --strategy pp:2", "localhub --port 0 --folder ./hub"):
        done = slim(*words.split())
        assert done.returncode == 3 and "Traceback" not in done.stderr
        hints += re.findall(
            r"Run `pip (install 'shard-my-repo\[\w+\] @ file:///\S+\.whl')`\.", done.stderr.replace("\n", " ")
        )
    assert [hint[hint.index("[") + 1 : hint.index("]")] for hint in hints] == ["load", "localhub"]
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == before
    pip = [str(place / "bin/python"), "-m", "pip", "--disable-pip-version-check", *shlex.split(hints[1]), "--dry-run"]
    tried = subprocess.run(pip, capture_output=True, text=True)
    assert tried.returncode == 0 and "joserfc" in tried.stdout.rpartition("Would install")[2], tried.stderr
