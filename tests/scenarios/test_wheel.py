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
from tests.conftest import ROOT, random_tensors, write_checkpoint
from tests.folders import tensors
from tests.hubs import TOKEN, files_of, push
from tests.localhub.conftest import Server
from tests.promises import promise

pytestmark = pytest.mark.thorough

MOST_BYTES = 175_000_000
HEAVY = {"torch", "transformers", "accelerate", "gradio", "pandas"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and what that asks for."""
    sources, wheels, place = (tmp_path_factory.mktemp(name) for name in ("sources", "wheels", "slim"))
    for path in (*ROOT.glob("*.toml"), *ROOT.glob("*.md"), *ROOT.glob("LICENSE*")):
        shutil.copy(path, sources)
    shutil.copytree(ROOT / "sharding", sources / "sharding", ignore=shutil.ignore_patterns("__pycache__"))
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(sources)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    (wheel,) = wheels.iterdir()
    subprocess.run([str(place / "bin/python"), *pip, "install", str(wheel)], check=True)
    return place


@pytest.fixture
def slim(place: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed command in a folder of its own."""

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        known = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        environment = {**known, "HF_HOME": str(tmp_path / "home"), **variables}
        command = [str(place / "bin/shard-my-repo"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300)

    return run


def what_is_missing(said: str) -> str:
    """The extra that is to be installed, from the wheel that this was installed from."""
    found = re.search(r"Run `pip install 'shard-my-repo\[(\w+)\] @ file:///\S+\.whl'`\.", said)
    assert found, said
    return found[1]


@promise("README.md#install")
def test_it_brings_nothing_heavy_and_stays_small(place: Path) -> None:
    listed = subprocess.run(
        [str(place / "bin/python"), "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True
    )
    assert not {package["name"] for package in json.loads(listed.stdout)} & HEAVY
    assert sum(path.lstat().st_size for path in place.rglob("*") if path.is_file()) <= MOST_BYTES


def test_a_folder_is_inspected_planned_sharded_and_verified(
    slim: Callable[..., subprocess.CompletedProcess[str]], checkpoint: Path
) -> None:
    source = str(checkpoint)
    assert json.loads(slim("inspect", source, "--json").stdout)["tensors"]
    planned = json.loads(slim("plan", source, "-s", "60kB", "--json").stdout)
    done = slim("shard", source, "./out", "-s", "60kB", "--json")
    report = json.loads(done.stdout)
    assert [shard["file"] for shard in report["plan"]["shards"]] == [shard["file"] for shard in planned["shards"]]
    assert report["verification"]["identical"]
    assert "structure checked by safetensors" in report["verification"]["method"]
    assert slim("verify", source, "./out").returncode == 0


def test_pickled_weights_become_safetensors(
    slim: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    (tmp_path / "pickled").mkdir()
    weight = torch.arange(12.0).view(3, 4)
    torch.save({"w": weight, "b": torch.ones(3)}, tmp_path / "pickled/pytorch_model.bin")
    assert slim("shard", "./pickled", "./out").returncode == 0
    torch.save({"w": weight.T}, tmp_path / "pickled/pytorch_model.bin")
    done = slim("shard", "./pickled", "./other")
    assert done.returncode == 0
    assert torch.equal(load_file(tmp_path / "other/model.safetensors")["w"], weight.T)


def test_weights_are_cast_and_dequantized(
    slim: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    source = models.save("t5", tmp_path / "in", layers=1)
    assert slim("shard", "./in", "./cast", "--dtype", "fp16", "--strategy", "blocks").returncode == 0
    stored, cast = tensors(source), tensors(tmp_path / "cast")
    assert {name for name, tensor in cast.items() if tensor.dtype == torch.float32} == {n for n in cast if ".wo." in n}
    assert all(torch.equal(tensor, stored[name].to(tensor.dtype)) for name, tensor in cast.items())
    quantized.save_fp8("qwen3", tmp_path / "fp8")
    assert slim("shard", "./fp8", "./ordinary", "--dequantize").returncode == 0
    assert slim("verify", "./fp8", "./ordinary", "--dequantize").returncode == 0


def test_a_repo_of_a_hub_is_sharded_into_another(
    slim: Callable[..., subprocess.CompletedProcess[str]], served: Callable[..., Server], tmp_path: Path
) -> None:
    hub = served()
    push(hub, write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False), "alice/in")
    access = {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    done = slim("shard", "alice/in", "alice/out", "-s", "60kB", "--json", **access)
    assert json.loads(done.stdout)["verification"]["identical"]
    assert "model.safetensors.index.json" in files_of(hub, "alice/out")
    assert slim("verify", "alice/in", "alice/out", **access).returncode == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("plan SOURCE --strategy pp:2", "load"),
        ("shard SOURCE ./out --order transformers", "load"),
        ("shard SOURCE ./out --engine classic", "load"),
        ("shard SOURCE ./out --compare", "load"),
        ("compare SOURCE SOURCE", "load"),
        ("devices SOURCE --budget cpu=1GB", "load"),
        ("localhub --port 0 --folder ./hub", "localhub"),
    ],
)
def test_what_needs_an_extra_says_which(
    slim: Callable[..., subprocess.CompletedProcess[str]], checkpoint: Path, tmp_path: Path, command: str, extra: str
) -> None:
    before = {path.name for path in tmp_path.iterdir()}
    done = slim(*command.replace("SOURCE", str(checkpoint)).split())
    assert done.returncode == 3
    assert what_is_missing(done.stderr) == extra and "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == before


def test_the_command_that_is_said_installs_the_extra(
    slim: Callable[..., subprocess.CompletedProcess[str]], place: Path
) -> None:
    said = slim("localhub", "--port", "0", "--folder", "./hub").stderr.replace("\n", " ")
    (command,) = re.findall(r"Run `pip (install .*)`\.", said)
    pip = [str(place / "bin/python"), "-m", "pip", "--disable-pip-version-check", *shlex.split(command), "--dry-run"]
    tried = subprocess.run(pip, capture_output=True, text=True)
    assert tried.returncode == 0 and "joserfc" in tried.stdout.rpartition("Would install")[2], tried.stderr
