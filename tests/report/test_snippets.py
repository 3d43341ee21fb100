"""The code that the page offers to copy does load what the page has made."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from sharding import job
from sharding.core.values import RepoRef
from sharding.demo.samples import build_llama, build_t5
from sharding.report.snippets import download_snippet, how_to_check, loading_snippets, pipeline_snippets
from tests.conftest import environment
from tests.hubs import TOKEN, push
from tests.localhub.conftest import Server
from tests.report.results import PIPED, made, of, planned

RUN = """import json, sys
for code in json.load(sys.stdin):
    space = {}
    exec(code, space)
    print('parameters', sum(p.numel() for p in space['model'].parameters()))
"""
"""Each piece of code by itself, in one process: to import transformers takes seconds."""


def test_every_snippet_loads_the_model(served: Callable[..., Server], tmp_path: Path) -> None:
    hub = served()
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "PYTHONWARNINGS": ""}
    env |= {"HF_TOKEN": TOKEN, "PATH": f"{Path(sys.executable).parent}:{env['PATH']}"}
    codes = list[str]()
    for build, size in ((build_llama, "2MB"), (build_t5, "single-file")):
        name = build.__name__
        source = push(hub, build(tmp_path / name), f"alice/{name}")
        *_, report = job.shard(source, f"alice/{name}-sharded", size, endpoint=hub.address, token=TOKEN)
        assert isinstance(report, job.Report)
        snippets = loading_snippets(f"alice/{name}-sharded", report.source.architecture)
        assert set(snippets) == {"transformers", "accelerate", "Colab cell"}
        codes += [
            "\n".join(line for line in code.splitlines() if not line.startswith("!")) for code in snippets.values()
        ]
        (commands,) = download_snippet(of(report, architecture="T5EncoderModel"), f"alice/{name}-sharded@main").values()
        (down := tmp_path / f"{name}-down").mkdir()
        subprocess.run(["sh", "-ec", commands], env=env, cwd=down, check=True, capture_output=True)
        files = {path.relative_to(down).as_posix() for path in down.rglob("*.safetensors")}
        shards = {f"{name}-sharded/{shard.file}" for shard in report.shards}
        # ComfyUI looks for text encoders in this folder.
        one = {"ComfyUI/models/text_encoders/model.safetensors"} if size == "single-file" else set()
        assert files == shards | one and (down / f"{name}-sharded/config.json").is_file()
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, input=json.dumps(codes), capture_output=True, text=True, env=env, cwd=tmp_path)
    counts = [line for line in done.stdout.splitlines() if line.startswith("parameters ")]
    assert len(counts) == len(codes), done.stderr[-2000:]
    assert len(set(counts)) == 2  # one for each model


def test_no_command_is_given_that_only_its_maker_could_run() -> None:
    report, piped = made().report, made(PIPED).report
    folder, hub = RepoRef("folder", "base", "1"), RepoRef("hub", "me/base", "b" * 40)
    needs = [of(report, kind="folder"), planned(of(report, base=folder), dtype="bf16")]
    others = [report, piped, of(report, base=folder), of(report, base=hub), planned(of(report, base=hub), dtype="bf16")]
    for told in needs:
        assert told.needs_folder and how_to_check(told, "me/copy") == {}
    for told in others:
        (command,) = how_to_check(told, "me/copy").values()
        assert not told.needs_folder and command.startswith(f"shard-my-repo verify acme/model@{'a' * 40} me/copy")
    assert how_to_check(planned(piped, rank=0), ".") == how_to_check(planned(piped, rank=1), ".") == {}


def test_there_is_a_script_for_a_pipeline_only() -> None:
    report = made().report
    assert pipeline_snippets(report, "me/copy") == {}
    assert list(pipeline_snippets(made(PIPED).report, "me/copy")) == ["pipeline.py", "on each machine"]
