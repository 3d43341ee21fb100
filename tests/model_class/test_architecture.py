"""What a stranger's config.json describes is asked of transformers within bounds of time and memory."""

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import ModelRefused, Refused, SourceError
from sharding.core.options import Options
from sharding.model_class.architecture import hints_for
from tests import models
from tests.folders import reshard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save("llama", tmp_path_factory.mktemp("asked") / "llama", "30kB", layers=2)


@pytest.mark.own_process
def test_who_asks_says_how_long_it_may_take_and_the_process_is_gone_then(folder: Path) -> None:
    before = psutil.Process().children()  # a browser of other tests may be there
    with pytest.raises(Refused, match="machine may be busy"):
        hints_for(job.inspect(str(folder)), Options(order="transformers"), limit_seconds=0.01)
    with pytest.raises(Refused, match="machine may be busy"):
        job.devices(str(folder), "cpu=1GB", limit_seconds=0.01)
    assert psutil.Process().children() == before


def component_of_a_pipeline(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    save_file({"w": np.ones(3, np.float32)}, folder / name / "model.safetensors", metadata={"format": "pt"})
    (folder / name / "config.json").write_text('{"model_type": "mine"}')


def ended(returncode: int, answer: object = None, said: bytes = b"") -> Callable[..., object]:
    """What `subprocess.run` does where the process that asks transformers ends so."""

    def run(*_: object, stderr: BinaryIO, **__: object) -> object:
        stderr.write(said)
        return subprocess.CompletedProcess([], returncode, json.dumps(answer).encode())

    return run


@pytest.mark.own_process
@pytest.mark.parametrize("killed_by", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGALRM, signal.SIGXCPU])
def test_where_the_process_that_asks_is_killed_nothing_is_planned(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_by: signal.Signals
) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mine"}')
    monkeypatch.setattr("subprocess.run", ended(-killed_by, said=b"a library said so\n"))
    is_late = killed_by == signal.SIGALRM
    family = Refused if is_late else ModelRefused
    reason = "machine may be busy" if is_late else f"its process was ended by {killed_by.name}"
    for options in (Options(dtype="bf16"), Options(order="transformers"), Options(strategy="blocks")):
        with pytest.raises(family, match=reason) as refusal:
            job.plan(str(checkpoint), options)
        assert "by size, in natural order" in refusal.value.hint
        assert ("config.json" in refusal.value.hint) == (not is_late)
        with pytest.raises(family, match=reason):
            list(job.shard(str(checkpoint), str(tmp_path / "out"), options))
    assert not (tmp_path / "out").exists()
    assert len(job.plan(str(checkpoint), "60kB")[1].shards) == 5  # which asks nothing


@pytest.mark.own_process
def test_what_transformers_refuses_is_refused_and_what_it_does_not_know_is_cast_throughout(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "mine"}')
    options = Options(dtype="bf16")
    monkeypatch.setattr("subprocess.run", ended(0, {"refused": "The model takes more memory than allowed."}))
    with pytest.raises(ModelRefused, match="more memory than allowed"):
        job.plan(str(checkpoint), options)
    for run in (ended(0, {"unsupported": "It is mine."}), ended(1, said=b"Traceback\nValueError: It is mine.\n")):
        monkeypatch.setattr("subprocess.run", run)
        plan = job.plan(str(checkpoint), options)[1]
        (finding,) = plan.findings
        assert (finding.level, finding.code) == ("warning", "cast-without-class") and "It is mine." in finding.message
        dtypes = {tensor.dtype for shard in plan.shards for tensor in shard.tensors}
        assert dtypes == {"BF16", "I64"}


@pytest.mark.own_process
def test_all_components_of_a_pipeline_share_the_time_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["one", "two", "three"]
    for name in names:
        component_of_a_pipeline(tmp_path, name)
    index = {"_class_name": "P", **{name: ["transformers", "T"] for name in names}}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    limits = []

    def run(*_: object, input: bytes, timeout: float, **__: object) -> object:
        limits.append(timeout)
        assert json.loads(input)["limit_seconds"] == timeout
        return subprocess.CompletedProcess([], 0, b'{"unsupported": "It is mine."}')

    monkeypatch.setattr("subprocess.run", run)
    hints = hints_for(job.inspect(str(tmp_path)), Options(dtype="bf16"), limit_seconds=9)
    assert hints.keys() == {f"{name}/" for name in names}
    assert 9 >= limits[0] > limits[1] > limits[2] > 0


def test_a_class_that_only_the_repo_has_is_not_run_and_another_is_not_put_in_its_place(tmp_path: Path) -> None:
    source, mark = models.save("llama", tmp_path / "in", layers=1), tmp_path / "run"
    config = json.loads((source / "config.json").read_text())
    named = {"auto_map": {"AutoModelForCausalLM": "mine.Mine", "AutoConfig": "mine.MyConfig"}}
    (source / "mine.py").write_text(f"open({str(mark)!r}, 'w')\n")
    asks = Options("20kB", order="transformers")
    for classes in (["Mine"], [], ["Mine", "os"]):
        (source / "config.json").write_text(json.dumps(config | named | {"architectures": classes}))
        with pytest.raises(SourceError, match="needs code from its repo, which is never run"):
            job.plan(str(source), asks)
        cast = job.plan(str(source), Options("20kB", dtype="fp16"))[1]
        assert "cast-without-class" in {finding.code for finding in cast.findings}
    (source / "config.json").write_text(json.dumps(config | named | {"model_type": "mine"}))
    with pytest.raises(SourceError, match="'mine' needs code from its repo, which is never run"):
        job.plan(str(source), asks)
    reshard(source, tmp_path / "out", "20kB")
    assert (tmp_path / "out/mine.py").read_bytes() == (source / "mine.py").read_bytes()
    (source / "config.json").write_text(json.dumps(config | named | {"architectures": ["LlamaForCausalLM"]}))
    assert job.plan(str(source), asks)[1].total_bytes == job.inspect(str(source)).total_bytes
    assert not mark.exists()
