"""The code that the page offers to copy does load what the page has made."""

import re
import shlex
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.cli.hf import app

from sharding.core.options import Options
from sharding.demo.samples import build_llama, build_t5
from sharding.report.snippets import download_snippet, how_to_check, loading_snippets, pipeline_snippets
from tests.hubs import TOKEN, push, shard
from tests.inhouse import hub_in_house
from tests.report.results import BASE, LIMIT, LORA, PIPED, made, of, planned


def hf(command: str) -> None:
    """Run a command of the Hub's own tool."""
    with redirect_stdout(StringIO()):
        app(shlex.split(command, comments=True)[1:], standalone_mode=False)


@pytest.mark.filterwarnings("ignore")
def test_every_snippet_loads_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = list[int]()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub_in_house(tmp_path / "hub") as hub:
        resolve = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)
        for build, size in ((build_llama, "2MB"), (build_t5, "single-file")):
            name = build.__name__
            source = push(hub, build(tmp_path / name), f"alice/{name}")
            report = shard(hub, source, f"alice/{name}-sharded", size)
            snippets = loading_snippets(f"alice/{name}-sharded", report.source.architecture)
            assert set(snippets) == {"transformers", "accelerate", "Colab cell"}
            for code in snippets.values():
                space: dict[str, Any] = {}
                exec("\n".join(line for line in code.splitlines() if not line.startswith("!")), space)
                counts.append(sum(each.numel() for each in space["model"].parameters()))
            told = of(report, architecture="T5EncoderModel")
            (commands,) = download_snippet(told, f"alice/{name}-sharded@main").values()
            (down := tmp_path / f"{name}-down").mkdir()
            monkeypatch.chdir(down)
            for command in re.findall(r"^hf .*", commands, flags=re.M):
                hf(command)
            files = {path.relative_to(down).as_posix() for path in down.rglob("*.safetensors")}
            shards = {f"{name}-sharded/{shard.file}" for shard in report.shards}
            # ComfyUI looks for text encoders in this folder.
            one = {"ComfyUI/models/text_encoders/model.safetensors"} if size == "single-file" else set()
            assert files == shards | one and (down / f"{name}-sharded/config.json").is_file()
    assert counts == [counts[0]] * 3 + [counts[3]] * 3 and counts[0] != counts[3]


def test_no_command_is_given_that_only_its_maker_could_run() -> None:
    report, piped, cast = made().report, made(PIPED).report, made(Options(LIMIT, dtype="bf16")).report
    folder, hub = (replace(BASE, store=store) for store in ("folder", "hub"))
    lora = replace(LORA, store="folder", repo_id="lora", inside="")
    needs = [of(report, store="folder"), of(cast, beside=(folder,)), of(report, beside=(lora,))]
    of_bases = (of(told, beside=(base,)) for told, base in ((report, folder), (report, hub), (cast, hub)))
    for told in needs:
        assert told.needs_folder and how_to_check(told, "me/copy") == {}
    for told in (report, piped, *of_bases):
        (command,) = how_to_check(told, "me/copy").values()
        assert not told.needs_folder and command.startswith(f"shard-my-repo verify acme/model@{'a' * 40} me/copy")
    assert how_to_check(planned(piped, rank=0), ".") == how_to_check(planned(piped, rank=1), ".") == {}


def test_there_is_a_script_for_a_pipeline_only() -> None:
    report = made().report
    assert pipeline_snippets(report, "me/copy") == {}
    assert list(pipeline_snippets(made(PIPED).report, "me/copy")) == ["pipeline.py", "on each machine"]
