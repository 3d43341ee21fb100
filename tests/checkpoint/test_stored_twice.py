"""A tensor in two files is the one that libraries load, or it is refused."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.errors import SourceError
from tests import models
from tests.folders import bits, compared, finish, reshard, said, tensors
from tests.hubs import TOKEN, push, shard
from tests.localhub.conftest import Server

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
OVERLAY = "model-overlay.safetensors"
INDEX = "model.safetensors.index.json"


def overlaid(folder: Path, overlay: str = OVERLAY) -> set[str]:
    """Add a file with other numbers for the norms, and name it in the index; return these tensors."""
    models.save("llama", folder, "40kB", layers=4)
    index = json.loads((folder / INDEX).read_text())
    chosen = {name for name in index["weight_map"] if "norm" in name}
    held = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    save_file({name: held[name] + 1 for name in chosen}, folder / overlay, {"format": "pt"})
    index["weight_map"] |= dict.fromkeys(chosen, overlay)
    (folder / INDEX).write_text(json.dumps(index))
    return chosen


def test_a_tensor_of_an_overlay_is_the_one_that_transformers_loads(
    served: Callable[..., Server], tmp_path: Path
) -> None:
    chosen = overlaid(tmp_path / "in")
    assert f"{len(chosen)} tensor" in said(tmp_path / "in")["stored-twice"]
    report = reshard(tmp_path / "in", tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype="auto").state_dict()
    ours = tensors(tmp_path / "out")
    assert {name: bits(tensor) for name, tensor in ours.items()} == {name: bits(theirs[name]) for name in ours}
    assert ours.keys() == theirs.keys() and report.verification.identical
    hub = served("--user", "alice")
    push(hub, tmp_path / "in", "alice/overlaid")
    copied = shard(hub, "alice/overlaid", str(tmp_path / "from-hub"))
    assert copied.verification.identical and not copied.verification.unstated
    assert {name: bits(tensor) for name, tensor in tensors(tmp_path / "from-hub").items()} == {
        name: bits(tensor) for name, tensor in ours.items()
    }
    assert compared("alice/overlaid", tmp_path / "out", endpoint=hub.address, token=TOKEN).identical


def test_one_that_the_index_looks_for_in_an_earlier_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    overlaid(tmp_path / "in", "a-first.safetensors")
    with pytest.raises(SourceError, match=r"is in two files: a-first.*libraries load the one in model-0") as refusal:
        finish(job.shard(str(tmp_path / "in"), str(tmp_path / "out"), "40kB"))
    assert "index" in refusal.value.hint
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype="auto").state_dict()
    first = load_file(tmp_path / "in/a-first.safetensors")
    assert not any(torch.equal(loaded[name], tensor) for name, tensor in first.items())


def test_an_index_of_one_file_is_no_second_checkpoint(tmp_path: Path) -> None:
    folder = models.save("llama", tmp_path / "in", "1GB")
    weight_map = dict.fromkeys(load_file(folder / "model.safetensors"), "model.safetensors")
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    assert "several-checkpoints" not in said(folder)
    reshard(folder, tmp_path / "out")
    (folder / INDEX).write_text(json.dumps({"weight_map": {**weight_map, "x": "other.safetensors"}}))
    assert "several-checkpoints" in said(folder)
