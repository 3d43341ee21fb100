"""Each way in works as it is written: uvx, a script for Jobs, a notebook, a skill."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.commands import run_uv
from tests.conftest import ROOT, environment
from tests.docs.pages import AGENTS, COMMANDS, blocks, section, table
from tests.docs.test_make_space import DEPLOY, clone, make  # noqa: F401 - a fixture
from tests.docs.test_shown import SPACE
from tests.localhub.conftest import Server

JOB = ROOT / "jobs/shard.py"
NOTEBOOK = ROOT / "docs/colab.ipynb"


def test_hf_reads_from_the_script_what_its_job_needs(tmp_path: Path) -> None:
    (shown,) = (block for block in blocks(DEPLOY, "console") if block.startswith("$ hf jobs uv run"))
    command, *printed = shown.splitlines()
    words = command.replace(f"{SPACE}/resolve/main/jobs/shard.py", str(JOB)).split()[2:]
    hf = [str(Path(sys.executable).with_name("hf")), *words]
    env = environment() | {"HF_TOKEN": "hf_alice", "HF_HOME": str(tmp_path)}
    done = subprocess.run(hf, capture_output=True, text=True, env=env, check=True)
    lines = [re.sub(r"shard-[0-9a-f]{8}$", "N", line) for line in (*printed, *done.stdout.splitlines())]
    shown_lines, told = lines[: len(printed)], lines[len(printed) :]
    assert [line for line in shown_lines if "script   " not in line] == [
        line for line in told if "script   " not in line
    ]


def test_the_skill_is_one_and_says_what_the_docs_say() -> None:
    llms, skill = (page.read_text() for page in AGENTS)
    front = yaml.safe_load(skill.split("---\n")[1])
    assert front["name"] == AGENTS[1].parent.name and 200 < len(front["description"]) <= 1024
    (_, commands) = blocks(AGENTS[1], "sh")
    assert len(commands.splitlines()) == 10 and all(" --json" in line for line in commands.splitlines())
    statuses = [status for status, _ in table(COMMANDS, "status | meaning")]
    assert [status for status, _ in table(AGENTS[1], "exit status | meaning")] == statuses
    assert re.findall(r"\b(\d+) (?:done|the|wrong|refused|cancelled)", llms) == statuses
    assert set(re.findall(r"`(sign_in|accept_terms|overwrite)`", skill)) <= set(
        re.findall(r"`(\w+)`", section(COMMANDS, "Output for programs"))
    )


@pytest.fixture(scope="module")
def space(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    """The git repo of a Space."""
    assert make(clone, "OWNER=alice").returncode == 0
    space = Path(shutil.copytree(clone / "space", tmp_path_factory.mktemp("git") / "space"))
    author = ["-c", "user.name=alice", "-c", "user.email=alice@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], [*author, "commit", "--quiet", "-m", "Space"]):
        subprocess.run(["git", *words], cwd=space, check=True)
    return space


@pytest.fixture
def outside(tmp_path: Path) -> dict[str, str]:
    """An environment that has nothing of ours: no cache of uv, no path to this folder."""
    return {name: text for name, text in os.environ.items() if name != "PYTHONPATH"} | {
        "UV_CACHE_DIR": str(tmp_path / "cache"),
        "UV_PYTHON": sys.executable,
    }


@pytest.mark.thorough
def test_uvx_runs_a_space_from_a_cold_cache(space: Path, checkpoint: Path, outside: dict[str, str]) -> None:
    words = ["shard-my-repo", "shard", checkpoint, checkpoint.parent / "out", "-s", "60kB", "--json"]
    done = run_uv("tool", "run", "--from", f"git+file://{space}", *words, env=outside)
    assert json.loads(done.stdout)["verification"]["identical"]


@pytest.mark.thorough
def test_uv_runs_the_script_for_jobs(space: Path, checkpoint: Path, outside: dict[str, str], tmp_path: Path) -> None:
    address = SPACE.replace("OWNER", "alice")
    text = (space / "jobs/shard.py").read_text()
    assert f'"shard-my-repo @ git+{address}"' in text
    (tmp_path / "shard.py").write_text(text.replace(address, f"file://{space}"))
    done = run_uv("run", tmp_path / "shard.py", checkpoint, tmp_path / "out", "-s", "60kB", "--json", env=outside)
    assert json.loads(done.stdout)["verification"]["identical"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "hub").start("--samples", entry=("sharding", "localhub"))
    yield server
    server.stop()


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs_from_its_first_cell_to_its_last(
    hub: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is installed is not installed again, so it runs the code of this folder."""
    import nbformat
    from nbclient import NotebookClient

    (tmp_path / "bin").mkdir()
    (command := tmp_path / "bin/shard-my-repo").write_text(f'#!/bin/sh\nexec {sys.executable} -m sharding "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}{os.pathsep}{os.environ['PATH']}")
    for name, text in {"HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_alice", "HF_HOME": str(tmp_path / "home")}.items():
        monkeypatch.setenv(name, text)
    text = NOTEBOOK.read_text()
    assert '\\"Qwen/Qwen3-0.6B\\"' in text
    notebook = nbformat.reads(text.replace("Qwen/Qwen3-0.6B", "samples/mistral-60m"), as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = ["".join(str(output.get("text", "")) for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert "It fits." in "".join(printed) and "Published: " in "".join(printed)
    assert "from transformers import MistralForCausalLM" in printed[-2]
    assert printed[-1].startswith("Beautiful is better than ugly.")
