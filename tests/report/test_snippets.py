"""The code that the page offers to copy does load what the page has made."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sharding import job
from sharding.demo.samples import build_llama, build_t5
from sharding.report.snippets import loading_snippets
from tests.conftest import environment
from tests.hubs import TOKEN, push
from tests.localhub.conftest import Server

RUN = """import json, sys
for code in json.load(sys.stdin):
    space = {}
    exec(code, space)
    print('parameters', sum(p.numel() for p in space['model'].parameters()))
"""
"""Each piece of code by itself, in one process: to import transformers takes seconds."""


def test_every_snippet_loads_the_model(served: Callable[..., Server], tmp_path: Path) -> None:
    hub = served()
    offered = []
    for build in (build_llama, build_t5):
        name = build.__name__
        source = push(hub, build(tmp_path / name), f"alice/{name}")
        *_, report = job.shard(source, f"alice/{name}-sharded", "2MB", endpoint=hub.address, token=TOKEN)
        assert isinstance(report, job.Report)
        snippets = loading_snippets(f"alice/{name}-sharded", report.source.architecture)
        assert set(snippets) == {"transformers", "accelerate", "Colab cell"}
        offered += snippets.values()
    codes = ["\n".join(line for line in code.splitlines() if not line.startswith("!")) for code in offered]
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "PYTHONWARNINGS": ""}
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, input=json.dumps(codes), capture_output=True, text=True, env=env, cwd=tmp_path)
    counts = [line for line in done.stdout.splitlines() if line.startswith("parameters ")]
    assert len(counts) == len(codes), done.stderr[-2000:]
    assert len(set(counts)) == 2  # one for each model
