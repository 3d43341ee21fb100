"""The code that the page offers to copy does load what the page has made."""

import subprocess
import sys
from pathlib import Path

import pytest

from sharding import job
from sharding.localhub.samples import build_llama, build_t5
from sharding.report.snippets import loading_snippets
from tests.conftest import environment
from tests.localhub.conftest import Server
from tests.page.conftest import push


@pytest.mark.parametrize("build", [build_llama, build_t5], ids=lambda build: build.__name__)
def test_every_snippet_loads_the_model(hub: Server, tmp_path: Path, build: object) -> None:
    name = build.__name__.removeprefix("build_")  # type: ignore[attr-defined]
    source = push(hub, build(tmp_path / name), f"bob/{name}")  # type: ignore[operator]
    *_, report = job.shard(source, f"alice/{name}-sharded", "2MB", endpoint=hub.address, token="hf_alice")
    assert isinstance(report, job.Report)
    snippets = loading_snippets(f"alice/{name}-sharded", report.source.architecture)
    assert set(snippets) == {"transformers", "accelerate", "Colab cell"}
    for code in snippets.values():
        lines = [line for line in code.splitlines() if not line.startswith("!")]
        loaded = "\n".join([*lines, "print('parameters', sum(p.numel() for p in model.parameters()))"])
        env = {**environment(), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "PYTHONWARNINGS": ""}
        done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, env=env, cwd=tmp_path)
        assert done.stdout.splitlines()[-1].startswith("parameters "), done.stderr[-2000:]
