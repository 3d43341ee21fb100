"""The code that the page offers to copy does load what the page has made."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sharding import job
from sharding.demo.samples import build_llama, build_t5
from sharding.report.snippets import download_snippet, loading_snippets
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


def test_the_download_commands_bring_the_whole_repo_or_one_file_to_its_folder(
    served: Callable[..., Server], tmp_path: Path
) -> None:
    hub = served()
    source = push(hub, build_t5(tmp_path / "t5"), "alice/t5")
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    got = {}
    for name, size in (("many", "1MB"), ("single", "single-file")):
        *_, report = job.shard(source, f"alice/{name}", size, endpoint=hub.address, token=TOKEN)
        assert isinstance(report, job.Report)
        encoder = replace(report, source=replace(report.source, architecture="T5EncoderModel"))
        (commands,) = download_snippet(encoder, f"alice/{name}@main").values()
        (tmp_path / name).mkdir()
        subprocess.run(["sh", "-ec", commands], env=env, cwd=tmp_path / name, check=True, capture_output=True)
        paths = (tmp_path / name).rglob("*.safetensors")
        got[name] = {path.relative_to(tmp_path / name).as_posix() for path in paths}
        assert (tmp_path / name / name / "config.json").is_file()
    assert len(got["many"]) > 1 and all(path.startswith("many/model-") for path in got["many"])
    # ComfyUI looks for text encoders in this folder.
    assert got["single"] == {"single/model.safetensors", "ComfyUI/models/text_encoders/model.safetensors"}
