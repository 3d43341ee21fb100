"""The classic engine does what the tutorials do, with the events, the proof and the report of the other."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.events import Planned, Published, Verified
from sharding.demo.samples import build_gpt2_bin
from sharding.report.schema import Report
from tests import models
from tests.conftest import listing, options_of
from tests.folders import tensors
from tests.hubs import TOKEN, files_of, push
from tests.inhouse import hub_in_house
from tests.lora import configured

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
Run = Callable[..., subprocess.CompletedProcess[str]]


ENDS = [Planned, Verified, Published, Report]


def classic(source: Path | str, out: Path | str, **choices: object) -> Report:
    options, more = options_of("20kB", choices)
    *_, report = job.shard(str(source), str(out), options, engine="classic", **more)
    assert isinstance(report, Report)
    return report


@pytest.mark.usefixtures("classic_here")
def test_it_loads_the_weights_that_the_configuration_names(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "source", "10GB", layers=1)
    config = json.loads((source / "config.json").read_text())
    (source / "model.safetensors").rename(source / "weights.safetensors")
    configured("config.json", transformers_weights="weights.safetensors")(source)
    assert classic(source, tmp_path / "out").verification.identical
    assert json.loads((tmp_path / "out/config.json").read_text()) == config


@pytest.mark.usefixtures("warm_processes")
def test_it_writes_the_shards_that_accelerate_writes(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "source", "10GB", layers=4)
    events = list(job.shard(str(source), str(tmp_path / "out"), "20kB", engine="classic"))
    kinds = {type(event): None for event in events}
    assert [kind for kind in kinds if kind in ENDS] == ENDS
    model = AutoModelForCausalLM.from_pretrained(source)
    Accelerator().save_model(model, tmp_path / "theirs", max_shard_size=20_000)
    ours, theirs = listing(tmp_path / "out"), listing(tmp_path / "theirs")
    shards = [name for name in theirs if name.endswith(".safetensors")]
    assert len(shards) > 2
    assert all(ours[name] == theirs[name] for name in shards)
    report = json.loads(ours["sharding_report.json"])
    assert (report["engine"], report["verification"]["identical"]) == ("classic", True)
    assert report["resources"]["peak_anon_bytes"] > 100_000_000  # torch itself
    assert "loaded and saved by transformers" in ours["README.md"].decode()


@pytest.mark.usefixtures("classic_here")
def test_tied_weights_that_accelerate_leaves_out_are_no_mismatch(tmp_path: Path) -> None:
    assert classic(models.save("t5", tmp_path / "source", layers=1), tmp_path / "out").verification.identical


@pytest.mark.usefixtures("classic_here")
def test_a_cast_stores_the_dtype_asked_for_and_the_configuration_says_so(tmp_path: Path) -> None:
    source = models.save("llama", tmp_path / "source", layers=1)
    classic(source, tmp_path / "out", dtype="fp16")
    before, after = tensors(source), tensors(tmp_path / "out")
    assert all(torch.equal(before[name].to(torch.float16), tensor) for name, tensor in after.items())
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "float16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.float16


@pytest.mark.usefixtures("classic_here")
def test_a_bin_checkpoint_becomes_safetensors(tmp_path: Path) -> None:
    source = build_gpt2_bin(tmp_path / "source")
    *_, report = job.shard(str(source), str(tmp_path / "out"), "2MB", engine="classic")
    assert report.verification.identical  # type: ignore[union-attr]
    one, other = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (source, tmp_path / "out"))
    assert torch.equal(models.logits(one), models.logits(other))
    assert (tmp_path / "out/tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert not list((tmp_path / "out").glob("*.bin"))


@pytest.mark.usefixtures("classic_here")
def test_a_model_that_accelerate_would_store_under_other_names_is_not_published(tmp_path: Path) -> None:
    report = classic(models.save("mixtral", tmp_path / "source", layers=1), tmp_path / "out")
    assert not report.verification.identical
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("classic_here")
def test_it_pushes_to_a_hub_and_runs_no_code_of_a_repo(tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "source", layers=3)
    with hub_in_house(tmp_path / "hub") as hub:
        at = {"endpoint": hub.address, "token": TOKEN}
        proof = classic(push(hub, folder, "alice/mine"), "alice/copy", **at).verification
        assert proof.identical and "of the source's files have the SHA-256 that the Hub states" in proof.method
        assert "model.safetensors.index.json" in files_of(hub, "alice/copy")
    (folder / "config.json").write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoModel": "mine.Mine"}}))
    with pytest.raises(SourceError, match="never run"):
        classic(folder, tmp_path / "out")


@pytest.mark.usefixtures("warm_processes")
def test_the_command_takes_the_engine(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = run("shard", checkpoint, tmp_path / "out", "-s", "60kB", "--engine", "classic", "--dtype", "fp16")
    assert done.returncode == 3
    assert "The classic engine cannot re-shard this checkpoint" in done.stderr
