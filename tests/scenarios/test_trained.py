"""What the ranks of a training run have saved, with the writers that trainers use, becomes an ordinary checkpoint."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
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
from sharding.report.schema import Report, parse_report
from tests.conftest import ROOT, environment, listing
from tests.folders import reshard, said, tensors
from tests.hubs import TOKEN, download, push, shard
from tests.localhub.conftest import Server
from tests.promises import promise

WAYS = ("hf", "hf-columns", "plain", "columns", "accelerate")
ONE_PROCESS = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
TOKENS = torch.arange(3, 15).view(1, 12)


def trained(model: Path, out: Path, ranks: int, *ways: str) -> Path:
    """Save `model` as `ranks` do, in each of `ways`, a folder each below `out`."""
    command = [sys.executable, "-m", "tests.scenarios.trainer", str(model), str(out), str(ranks), *ways]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


def small_model(folder: Path) -> Path:
    """A model whose dimensions no number of ranks divides, with a tokenizer and a licence."""
    tokenizer, sizes = samples._begin(folder)
    config = AutoConfig.for_model(
        "qwen3", hidden_size=30, intermediate_size=50, num_attention_heads=3, num_key_value_heads=1, head_dim=10,
        num_hidden_layers=3, **{**sizes, "vocab_size": 97, "eos_token_id": 1, "pad_token_id": None},
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
def saved(base: Path) -> Path:
    return trained(base, base.parent / "3", 3, *WAYS)


def logits(folder: Path) -> torch.Tensor:
    model, told = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    assert not told["missing_keys"] and not told["mismatched_keys"]
    with torch.no_grad():
        found: torch.Tensor = model.eval()(TOKENS).logits
    return found


def assert_is_that_model(result: Path, model: Path) -> None:
    """The same tensors, bit for bit; but for buffers that only `hf` adds, nothing else; and the same logits."""
    ours, theirs = tensors(result), load_file(model / "model.safetensors")
    assert theirs.keys() == ours.keys() - {"model.steps", "model.scale"}
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype and torch.equal(ours[name], tensor), name
    if "model.steps" in ours:
        assert ours["model.steps"].tolist() == [0, 1, 2]
        assert ours["model.scale"].shape == () and ours["model.scale"].item() == 7
    assert torch.equal(logits(result), logits(model))


@promise("docs/formats.md#what-a-training-run-has-saved")
@pytest.mark.parametrize("way", WAYS)
def test_pieces_of_ranks_become_the_model_that_was_saved(way: str, base: Path, saved: Path, tmp_path: Path) -> None:
    report = reshard(saved / way, tmp_path / "out", base=str(base))
    assert report.source.in_pieces > 20
    assert_is_that_model(tmp_path / "out", saved / "trained" if way == "accelerate" else base)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").is_fast
    assert (tmp_path / "out/LICENSE").read_text() == "Do as you like."
    assert not list((tmp_path / "out").rglob("*.distcp")) + list((tmp_path / "out").rglob("*.pkl"))


@promise("docs/formats.md#what-happens-to-the-pieces")
@pytest.mark.thorough
@pytest.mark.parametrize("ranks", [2, 4])
def test_any_number_of_ranks_is_put_together(ranks: int, base: Path, tmp_path: Path) -> None:
    out = trained(base, tmp_path / "saved", ranks, *WAYS)
    for way in WAYS:
        reshard(out / way, tmp_path / way, base=str(base), strategy="blocks")
        assert_is_that_model(tmp_path / way, out / "trained" if way == "accelerate" else base)


def test_files_of_ranks_are_explained_and_never_called_out_of_date(saved: Path) -> None:
    for way in WAYS:
        found = said(saved / way)
        assert {"ranks", "no-base"} <= found.keys()
        told = json.dumps([[f.message, f.hint] for f in job.inspect(str(saved / way)).findings])
        assert "out of date" not in told and "--base" in told
    assert "and 4 more (training state)" in said(saved / "accelerate")["left-out"]
    assert "72 tensors of training state" in said(saved / "plain")["training-state"]


def test_what_is_put_together_is_cast_cut_and_verified_as_any_other(base: Path, saved: Path, tmp_path: Path) -> None:
    reshard(saved / "columns", tmp_path / "ours", "40kB", base=str(base), dtype="bf16", strategy="pp:2")
    reshard(base, tmp_path / "theirs", "40kB", dtype="bf16", strategy="pp:2")
    ours, theirs = listing(tmp_path / "ours"), listing(tmp_path / "theirs")
    same = {name for name in theirs if name.startswith("model") or name == "config.json"}
    assert {name: ours[name] for name in same} == {name: theirs[name] for name in same}
    *_, verified = job.verify(str(saved / "columns"), str(tmp_path / "ours"), dtype="bf16", base=str(base))
    assert verified.verification.identical  # type: ignore[union-attr]


def test_what_is_read_of_the_base_is_counted_too(base: Path, saved: Path, tmp_path: Path) -> None:
    alone = reshard(saved / "plain", tmp_path / "alone").resources
    both = reshard(saved / "plain", tmp_path / "both", base=str(base)).resources
    assert both.bytes_read >= alone.bytes_read + (base / "config.json").stat().st_size
    assert both.read_requests > alone.read_requests


def test_the_card_has_the_licence_of_the_base_and_says_what_it_is_made_of(
    base: Path, saved: Path, tmp_path: Path
) -> None:
    reshard(saved / "accelerate", tmp_path / "out", base=str(base))
    card = (tmp_path / "out/README.md").read_text()
    assert "license: apache-2.0" in card and "All about the base" not in card
    assert "of its 36 tensors were in pieces, in 3 files of its ranks" in card and "from the folder `base`" in card
    report = parse_report((tmp_path / "out/sharding_report.json").read_text())
    assert report.source.base and report.source.base.repo_id == "base"


def copied(folder: Path, out: Path, leave_out: Callable[[str], bool] = lambda name: False) -> Path:
    out.mkdir(parents=True)
    for path in folder.iterdir():
        if not leave_out(path.name):
            (out / path.name).write_bytes(path.read_bytes())
    return out


def test_missing_files_are_refused_by_name(saved: Path, base: Path, tmp_path: Path) -> None:
    middle = copied(saved / "hf", tmp_path / "middle", lambda name: name.startswith("shard-00002"))
    with pytest.raises(SourceError, match="Pieces of .* are missing") as error:
        job.inspect(str(middle))
    assert "shard-00002-model-00001-of-00001.safetensors is missing" in error.value.hint
    last = copied(saved / "hf", tmp_path / "last", lambda name: name.startswith("shard-00003"))
    with pytest.raises(SourceError, match="files of a rank are missing"):
        job.inspect(str(last), base=str(base))
    part = copied(saved / "columns", tmp_path / "part", lambda name: name == "__1_0.distcp")
    with pytest.raises(SourceError, match=r"1 of the 6 files that \.metadata names are missing: __1_0\.distcp"):
        job.inspect(str(part))


def test_files_of_two_saves_are_refused(saved: Path, tmp_path: Path) -> None:
    both = copied(saved / "hf", tmp_path / "both")
    for path in (saved / "hf-columns").iterdir():
        (both / path.name).write_bytes(path.read_bytes())
    with pytest.raises(SourceError, match="several saves, with 00001 and 00003 files"):
        job.inspect(str(both))


def test_a_distcp_file_that_changed_or_was_cut_off_is_refused(saved: Path, tmp_path: Path) -> None:
    cut = copied(saved / "plain", tmp_path / "cut")
    (cut / "__1_0.distcp").write_bytes((cut / "__1_0.distcp").read_bytes()[:5000])
    with pytest.raises(SourceError, match=r"__1_0\.distcp is too short. It ends before byte"):
        job.inspect(str(cut))
    other = copied(saved / "plain", tmp_path / "other")
    data = bytearray((other / "__0_0.distcp").read_bytes())
    data[: len(data) // 2] = bytes(len(data) // 2)
    (other / "__0_0.distcp").write_bytes(data)
    with pytest.raises(SourceError, match="cannot be read"):
        job.inspect(str(other))


def test_an_optimizer_alone_is_no_model(saved: Path) -> None:
    with pytest.raises(SourceError, match="no weights, only training state"):
        job.inspect(str(saved / "accelerate/optimizer_0"))


def test_an_interrupted_job_goes_on(saved: Path, base: Path, tmp_path: Path) -> None:
    options = Options("40kB", base=str(base))
    events = job.shard(str(saved / "columns"), str(tmp_path / "out"), options)
    for event in events:
        if type(event).__name__ == "ShardFinished":
            break
    events.close()
    kept = list(job.shard(str(saved / "columns"), str(tmp_path / "out"), options))
    assert any(getattr(event, "kept", False) for event in kept)
    assert isinstance(kept[-1], Report) and kept[-1].verification.identical
    assert_is_that_model(tmp_path / "out", base)


@pytest.fixture(scope="module")
def hub(served: Callable[..., Server]) -> Server:
    return served("--user", "alice")


def test_from_a_hub_onto_a_hub_and_back(hub: Server, saved: Path, base: Path, tmp_path: Path) -> None:
    push(hub, base, "alice/base")
    for way in ("accelerate", "hf-columns"):
        push(hub, saved / way, f"alice/{way}")
        report = shard(hub, f"alice/{way}", f"alice/{way}-whole", Options("60kB", base="alice/base"))
        assert report.verification.identical and report.source.base
        assert "SHA-256 that the Hub states" not in report.verification.method.partition(";")[0]
        result = download(hub, f"alice/{way}-whole", tmp_path / way)
        assert_is_that_model(result, saved / "trained" if way == "accelerate" else base)
        assert "base_model: alice/base" in (result / "README.md").read_text()
        *_, verified = job.verify(f"alice/{way}", f"alice/{way}-whole", endpoint=hub.address, token=TOKEN)
        assert verified.verification.identical  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def t5(hub: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A T5, here and on the Hub, and a run that has trained it: its class keeps some of it in fp32 when cast to fp16."""
    folder = samples.build_t5(tmp_path_factory.mktemp("t5") / "base")
    run = folder.parent / "run"
    dcp.save({"model": tensors(folder)}, storage_writer=dcp.FileSystemWriter(run), no_dist=True)
    push(hub, folder, "alice/t5")
    push(hub, run, "alice/t5-run")
    return folder


def commands_in(card: str) -> list[list[str]]:
    """The commands of a card that check the copy, as words."""
    return [shlex.split(line) for line in card.splitlines() if line.startswith("shard-my-repo verify")]


@ONE_PROCESS
def test_the_command_in_the_card_finds_a_copy_with_a_base_identical(
    hub: Server,
    t5: Path,
    tmp_path: Path,
    run: Callable[..., subprocess.CompletedProcess[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shard(hub, "alice/t5-run", "alice/t5-trained", Options("2MB", base="alice/t5", dtype="fp16"))
    card = (download(hub, "alice/t5-trained", tmp_path / "copy") / "README.md").read_text()
    [command] = commands_in(card)
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = run(*command[1:])
    assert (done.returncode, "Equal to the original" in done.stdout) == (0, True), done.stdout + done.stderr


@ONE_PROCESS
def test_a_card_names_no_command_that_would_need_a_base_of_this_disk(hub: Server, t5: Path, tmp_path: Path) -> None:
    shard(hub, "alice/t5-run", "alice/t5-here", Options("2MB", base=str(t5), dtype="fp16"))
    assert commands_in((download(hub, "alice/t5-here", tmp_path / "cast") / "README.md").read_text()) == []
    shard(hub, "alice/t5-run", "alice/t5-kept", Options("2MB", base=str(t5)))
    [command] = commands_in((download(hub, "alice/t5-kept", tmp_path / "kept") / "README.md").read_text())
    assert "--base" not in command  # what is not cast needs none


def test_the_command_line_says_what_is_wrong_usage(
    saved: Path, base: Path, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run("plan", base, "--base", base)
    assert (done.returncode, "Leave out --base" in done.stderr) == (2, True)
    done = run("plan", saved / "hf", "--base", base, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["total_parameters"] > 0
