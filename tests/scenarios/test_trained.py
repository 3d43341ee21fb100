"""What the ranks of a training run have saved, with the writers that trainers use, becomes an ordinary checkpoint."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.demo import samples
from tests import models
from tests.commands import invoke
from tests.conftest import ROOT, environment, listing
from tests.folders import compared, reshard, tensors
from tests.hubs import TOKEN, push, shard
from tests.inhouse import InHouse
from tests.promises import promise

WAYS = ("hf", "hf-columns", "plain", "columns", "accelerate")


def trained(model: Path, out: Path, ranks: int, *ways: str, warm: Path | str = "") -> Path:
    """Save `model` as `ranks` do, in each of `ways`, a folder each below `out`; `warm` is where forks are asked for."""
    command = [sys.executable, "-m", "tests.scenarios.trainer", str(model), str(out), str(ranks), *ways]
    env = environment() | ({"PYTHONPATH": f"{warm}{os.pathsep}{ROOT}"} if warm else {})
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


def small_model(folder: Path) -> Path:
    """Save a model whose dimensions no number of ranks divides, with a tokenizer and a licence."""
    tokenizer = samples._train_tokenizer()
    torch.manual_seed(0)
    folder.mkdir(parents=True)
    config = AutoConfig.for_model(
        "qwen3", hidden_size=30, intermediate_size=50, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        num_hidden_layers=3, vocab_size=97, eos_token_id=1, pad_token_id=None, bos_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "LICENSE").write_text("Do as you like.")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\nAll about the base.\n")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("trained") / "base")


@pytest.fixture(scope="module")
def saved(warm_folder: Path, base: Path) -> Path:
    return trained(base, base.parent / "3", 3, *WAYS, warm=warm_folder)


def assert_is_that_model(result: Path, model: Path) -> None:
    """The same tensors, bit for bit; but for buffers that only `hf` adds, nothing else; and the same logits."""
    ours, theirs = tensors(result), load_file(model / "model.safetensors")
    assert theirs.keys() == ours.keys() - {"model.steps", "model.scale"}
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name
    if "model.steps" in ours:
        assert ours["model.steps"].tolist() == [0, 1, 2]
        assert ours["model.scale"].shape == () and ours["model.scale"].item() == 7
    assert torch.equal(models.loaded_logits(result, "unexpected_keys"), models.loaded_logits(model))


@promise("docs/formats.md#what-a-training-run-has-saved")
@pytest.mark.parametrize("way", WAYS)
def test_pieces_of_ranks_become_the_model_that_was_saved(way: str, base: Path, saved: Path, tmp_path: Path) -> None:
    report = reshard(saved / way, tmp_path / "out", base=str(base))
    assert report.source.in_pieces > 20 and [place.repo_id for place in report.source.beside] == ["base"]
    assert_is_that_model(tmp_path / "out", saved / "trained" if way == "accelerate" else base)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").is_fast
    assert (tmp_path / "out/LICENSE").read_text() == "Do as you like."
    card = (tmp_path / "out/README.md").read_text()
    assert "license: apache-2.0" in card and "All about the base" not in card
    assert not list((tmp_path / "out").rglob("*.distcp")) + list((tmp_path / "out").rglob("*.pkl"))


@promise("docs/formats.md#what-happens-to-the-pieces")
@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_is_put_together(ranks: int, warm_folder: Path, base: Path, tmp_path: Path) -> None:
    out = trained(base, tmp_path / "saved", ranks, *WAYS, warm=warm_folder)
    for way in WAYS:
        reshard(out / way, tmp_path / way, base=str(base), strategy="blocks")
        assert_is_that_model(tmp_path / way, out / "trained" if way == "accelerate" else base)


def test_files_of_ranks_are_explained_and_never_called_out_of_date(saved: Path) -> None:
    said = {way: {f.code: (f.message, f.hint) for f in job.inspect(str(saved / way)).findings} for way in WAYS}
    for found in said.values():
        assert {"ranks", "no-base"} <= found.keys()
        assert "out of date" not in str(found) and "--base" in str(found)
    assert "and 4 more (training state)" in said["accelerate"]["left-out"][0]
    assert "72 tensors of training state" in said["plain"]["training-state"][0]


def test_what_is_put_together_is_cast_cut_and_verified_as_any_other(base: Path, saved: Path, tmp_path: Path) -> None:
    reshard(saved / "columns", tmp_path / "ours", "40kB", base=str(base), dtype="bf16", strategy="pp:2")
    reshard(base, tmp_path / "theirs", "40kB", dtype="bf16", strategy="pp:2")
    ours, theirs = listing(tmp_path / "ours"), listing(tmp_path / "theirs")
    same = {name for name in theirs if name.startswith("model") or name == "config.json"}
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    assert compared(saved / "columns", tmp_path / "ours", dtype="bf16", base=str(base)).identical


def test_what_is_read_of_the_base_is_counted_too(base: Path, saved: Path, tmp_path: Path) -> None:
    alone = reshard(saved / "plain", tmp_path / "alone").resources
    both = reshard(saved / "plain", tmp_path / "both", base=str(base)).resources
    assert both.bytes_read >= alone.bytes_read + (base / "config.json").stat().st_size
    assert both.read_requests > alone.read_requests


def test_files_that_are_missing_or_of_another_save_are_refused_by_name(saved: Path, base: Path, tmp_path: Path) -> None:
    def refusal(way: str, without: str, beside: str = "", **more: str) -> SourceError:
        """Copy what was saved in a way `without` the files so called, `beside` what was in another; inspect it."""
        folder = tmp_path / f"{way}, {without}"
        for each in filter(None, (way, beside)):
            shutil.copytree(saved / each, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(without))
        with pytest.raises(SourceError) as error:
            job.inspect(str(folder), **more)
        return error.value

    middle = refusal("hf", "shard-00002*")
    assert "Pieces of" in middle.message and "shard-00002-model-00001-of-00001.safetensors is missing" in middle.hint
    assert "files of a rank are missing" in refusal("hf", "shard-00003*", base=str(base)).message
    part = refusal("columns", "__1_0.distcp").message
    assert "1 of the 6 files that .metadata names are missing: __1_0.distcp" in part
    assert "several saves, with 00001 and 00003 files" in refusal("hf", "", "hf-columns").message


def test_a_distcp_file_that_changed_or_was_cut_off_is_refused(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved / "plain", tmp_path / "cut")
    whole = (folder / "__1_0.distcp").read_bytes()
    (folder / "__1_0.distcp").write_bytes(whole[:5000])
    with pytest.raises(SourceError, match=r"__1_0\.distcp is too short. It ends before byte"):
        job.inspect(str(folder))
    (folder / "__1_0.distcp").write_bytes(bytes(len(whole) // 2) + whole[len(whole) // 2 :])
    with pytest.raises(SourceError, match="cannot be read"):
        job.inspect(str(folder))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_the_command_in_the_card_finds_a_copy_with_a_base_identical(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The class of the base keeps some of it in fp32 when the rest is cast to fp16."""
    t5 = models.save("t5", tmp_path / "t5", layers=1)
    dcp.save({"model": tensors(t5)}, storage_writer=dcp.FileSystemWriter(tmp_path / "run"), no_dist=True)
    push(hub, t5, "alice/t5")
    push(hub, tmp_path / "run", "alice/t5-run")
    shard(hub, "alice/t5-run", "alice/t5-trained", Options("2MB", base="alice/t5", dtype="fp16"))
    card = hub.ask("GET", "/alice/t5-trained/resolve/main/README.md").body.decode()
    [command] = [line for line in card.splitlines() if line.startswith("shard-my-repo verify")]
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = invoke(*shlex.split(command)[1:])
    assert (done.exit_code, "Equal to the original" in done.stdout) == (0, True), done.stdout + done.stderr
