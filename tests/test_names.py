"""Names that no file could have, or that are far too long, are refused by name before a byte moves; texts travel."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.limits import MAX_NAME_CHARACTERS
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.report.schema import parse_report
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import HubSource
from tests.commands import invoke
from tests.conftest import listing, write_checkpoint
from tests.folders import finish

HALF = "\ud800"
LONG = "n" * (MAX_NAME_CHARACTERS + 1)
SHARD = "model-00001-of-00001.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    tensors = {"model.safetensors": {"a": np.ones(3, np.float32)}}
    return write_checkpoint(tmp_path / "in", tensors, index=False)


def name_a_file(source: Path, name: bytes) -> None:
    Path(os.fsdecode(os.fsencode(source) + b"/" + name)).write_bytes(b"x")


def write_bin(source: Path, state: dict[Any, Any]) -> None:
    (source / "model.safetensors").unlink()
    torch.save(state, source / "pytorch_model.bin")


def write_index(source: Path, weight_map: dict[str, str]) -> None:
    (source / "model.safetensors").rename(source / SHARD)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def write_ranks(source: Path, name: str) -> None:
    import torch.distributed.checkpoint as dcp

    (source / "model.safetensors").unlink()
    dcp.save({"a": torch.ones(2), name: torch.ones(2)}, checkpoint_id=source, no_dist=True)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a side file": (lambda source: name_a_file(source, b"no\xffte.txt"), "no\\udcffte.txt is not UTF-8"),
    "weights": (lambda source: name_a_file(source, b"w\xff.safetensors"), "w\\udcff.safetensors is not UTF-8"),
    "half a pair in a pickle": (lambda source: write_bin(source, {HALF: torch.ones(2)}), "\\ud800 is not UTF-8"),
    "half a pair in an index": (lambda source: write_index(source, {"a": SHARD, HALF: SHARD}), "\\ud800"),
    "half a pair in a file of an index": (lambda source: write_index(source, {"a": HALF + ".safetensors"}), "ud800"),
    "a long name in a header": (
        lambda source: save_file({LONG: np.ones(3)}, source / "model.safetensors"),
        "4,097 characters",
    ),
    "a long name in a pickle": (lambda source: write_bin(source, {LONG: torch.ones(2)}), "4,097 characters"),
    "a long name in an index": (lambda source: write_index(source, {"a": SHARD, LONG: SHARD}), "4,097 characters"),
    "a long name of ranks": (lambda source: write_ranks(source, LONG), "4,097 characters"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("case", REFUSED)
def test_a_name_that_cannot_be_kept_is_refused_before_anything_moves(case: str, source: Path, tmp_path: Path) -> None:
    change, says = REFUSED[case]
    change(source)
    before = listing(source)
    for ask in (lambda: job.inspect(str(source)), lambda: list(job.shard(str(source), str(tmp_path / "out"), "1MB"))):
        with pytest.raises(SourceError) as refusal:
            ask()
        assert says in refusal.value.message and len(refusal.value.message) < 400
        assert refusal.value.message.encode() and refusal.value.hint
    assert listing(source) == before
    assert not (tmp_path / "out").exists()
    said = invoke("inspect", source, "--json")
    assert (said.exit_code, json.loads(said.stdout)["error"]["message"]) == (3, refusal.value.message)


def test_the_longest_name_that_is_taken_travels(source: Path, tmp_path: Path) -> None:
    save_file({LONG[1:]: np.ones(3)}, source / "model.safetensors")
    finish(job.shard(str(source), str(tmp_path / "out"), "1MB"))
    assert [tensor.name for tensor in job.inspect(str(tmp_path / "out")).tensors] == [LONG[1:]]


@pytest.mark.parametrize("name", ["note" + HALF, LONG])
def test_a_hub_that_lists_such_a_file_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import HfApi, RepoFile

    listed = [RepoFile(path=name, size=1, oid="0" * 40)]
    monkeypatch.setattr(HfApi, "list_repo_tree", lambda *_, **__: iter(listed))
    with pytest.raises(SourceError, match="is not UTF-8|4,097 characters"):
        HubSource(Hub("http://127.0.0.1:9", None), Place("hub", "a/b", "0" * 40))


TEXTS: dict[str, dict[str, Any]] = {
    "an architecture": {"architectures": ["X" + HALF]},
    "an entry": {"architectures": ["X"], "note": HALF, HALF: [HALF]},
    "a dtype to change": {"dtype": "float32", "note": HALF},
    "a name of weights": {"transformers_weights": "model.safetensors", "note": HALF},
    "a long architecture": {"architectures": ["X" * 1_000_000]},
}


@pytest.mark.parametrize("case", TEXTS)
def test_what_a_configuration_says_beside_names_travels(case: str, source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text(json.dumps(TEXTS[case]))
    done = invoke("shard", source, tmp_path / "out", *(["--events"] if case == "an entry" else []))
    assert done.exit_code == 0, done.output
    written = json.loads((tmp_path / "out/config.json").read_bytes())
    assert written == {name: value for name, value in TEXTS[case].items() if name != "transformers_weights"}
    assert parse_report((tmp_path / "out/sharding_report.json").read_bytes()).verification.identical
    assert len((tmp_path / "out/README.md").read_text()) < 20_000


def test_a_cast_keeps_what_else_a_configuration_says(source: Path, tmp_path: Path) -> None:
    (source / "config.json").write_text(json.dumps({"dtype": "float32", "note": HALF}))
    finish(job.shard(str(source), str(tmp_path / "out"), Options("1MB", dtype="fp16")))
    assert json.loads((tmp_path / "out/config.json").read_bytes()) == {"dtype": "float16", "note": HALF}


def test_what_else_describes_a_repo_may_say_anything(source: Path, tmp_path: Path) -> None:
    modules = [{"path": "", "type": "a.Transformer"}, {"path": HALF, "type": HALF}]
    pipeline = {"_class_name": "X" + HALF, "unet": ["a", "B"], HALF: ["a", "B"]}
    for name, value in (("modules.json", modules), ("model_index.json", pipeline)):
        (source / name).write_text(json.dumps(value))
        if value is pipeline:
            (source / "modules.json").unlink()
            (source / "unet").mkdir()
            (source / "model.safetensors").rename(source / "unet/diffusion_pytorch_model.safetensors")
        assert finish(job.shard(str(source), str(tmp_path / name), "1MB")).verification.identical
        assert (tmp_path / name / name).read_bytes() == (source / name).read_bytes()


def test_a_folder_of_any_name_is_a_source_and_a_destination(source: Path, tmp_path: Path) -> None:
    one, other = (os.fsdecode(os.fsencode(tmp_path) + name) for name in (b"/\xff", b"/\xfe"))
    source.rename(one)
    assert finish(job.shard(one, other, "1MB")).source.repo_id == "\\udcff"
    said = invoke("verify", one, other, "--json")
    assert (said.exit_code, json.loads(said.stdout)["identical"]) == (0, True)
    assert invoke("verify", one, other + "no", "--json").exit_code == 3


def test_keys_that_are_no_tensors_are_named_in_short(source: Path, tmp_path: Path) -> None:
    write_bin(source, {"a": torch.ones(2), HALF: 1, LONG: 2})
    report = finish(job.shard(str(source), str(tmp_path / "out"), "1MB"))
    (left,) = [finding.message for finding in report.plan.findings if finding.code == "no-tensors"]
    assert "\\ud800" in left and len(left) < 300
