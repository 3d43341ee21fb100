"""The result is what transformers and huggingface_hub themselves write, and loads in all the usual ways."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from huggingface_hub import load_torch_model, save_torch_state_dict
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedModel
from transformers.trainer_utils import load_sharded_checkpoint

from sharding import job
from sharding.core.options import Options
from tests import models
from tests.folders import tensors, weights
from tests.promises import promise

pytestmark = [
    # transformers and accelerate warn about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
SIZE = "30kB"
SHARDS_OF_ONE = "10GB"


def reshard(source: Path, out: Path, size: str = SIZE, **choices: Any) -> Path:
    for _ in job.shard(str(source), str(out), Options(size, **choices)):
        pass
    return out


def same_bits(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name].view(torch.uint8), other[name].view(torch.uint8))
        for name in one
    )


@promise("docs/formats.md#what-a-repo-may-hold", "docs/formats.md#the-layout")
@pytest.mark.parametrize("size", [SIZE, SHARDS_OF_ONE])
@pytest.mark.parametrize("name", models.USUALLY)
def test_the_result_is_byte_for_byte_what_save_pretrained_writes(name: str, size: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    out = reshard(source, tmp_path / "out", size)
    theirs = models.class_of(name).from_pretrained(source)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    if name in models.FUSED_OR_RENAMED and size == SIZE:
        assert same_bits(tensors(out), tensors(tmp_path / "theirs"))
    else:
        assert weights(out) == weights(tmp_path / "theirs")
    assert (size == SHARDS_OF_ONE) == (len(weights(out)) == 1)


@promise("docs/formats.md#the-layout")
@pytest.mark.parametrize("name", models.USUALLY)
def test_the_order_of_transformers_gives_what_save_pretrained_writes_for_every_class(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    out = reshard(source, tmp_path / "out", order="transformers")
    models.class_of(name).from_pretrained(source).save_pretrained(tmp_path / "theirs", max_shard_size=SIZE)
    assert weights(out) == weights(tmp_path / "theirs")


def test_tensors_that_the_class_does_not_save_come_last(tmp_path: Path) -> None:
    source = models.save("gpt-neox", tmp_path / "source", SHARDS_OF_ONE)
    stored = load_file(source / "model.safetensors")
    save_file(
        {**stored, "a.first": torch.ones(2), "rope.inv_freq": torch.ones(3)},
        source / "model.safetensors",
        {"format": "pt"},
    )
    plan = job.plan(str(source), Options(SIZE, order="transformers"))[1]
    (finding,) = plan.findings
    assert (finding.code, "2 tensors" in finding.message) == ("not-saved-by-class", True)
    assert {"a.first", "rope.inv_freq"} <= {tensor.name for tensor in plan.shards[-1].tensors}


@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("name", ["t5", "llama-tied", "mixtral"])
def test_a_cast_is_what_loading_as_that_dtype_and_saving_gives(name: str, dtype: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    models.build(name, torch.float32).save_pretrained(source)
    out = reshard(source, tmp_path / "out", order="transformers", dtype=dtype)
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    model = models.class_of(name).from_pretrained(source, dtype=wanted)
    model.save_pretrained(tmp_path / "theirs", max_shard_size=SIZE)
    assert weights(out) == weights(tmp_path / "theirs")
    ours, theirs = (json.loads((folder / "config.json").read_text()) for folder in (out, tmp_path / "theirs"))
    assert ours["dtype"] == theirs["dtype"]
    again = type(model).from_pretrained(out)
    assert again.dtype == wanted
    assert torch.equal(models.logits(again), models.logits(model))


@pytest.mark.parametrize("size", [SIZE, SHARDS_OF_ONE])
@pytest.mark.parametrize("name", models.USUALLY)
def test_stored_order_is_what_save_torch_state_dict_writes(name: str, size: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    out = reshard(source, tmp_path / "out", size, order="stored")
    stored = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            stored.update({key: file.get_tensor(key) for key in file.offset_keys()})
    (tmp_path / "theirs").mkdir()
    save_torch_state_dict(stored, tmp_path / "theirs", max_shard_size=size)
    ours, theirs = weights(out), weights(tmp_path / "theirs")
    index = "model.safetensors.index.json"
    assert {file: data for file, data in ours.items() if file != index} == {
        file: data for file, data in theirs.items() if file != index
    }
    assert ours.keys() == theirs.keys()


def empty(name: str) -> PreTrainedModel:
    model = models.build(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model


def dispatched(name: str, folder: Path) -> PreTrainedModel:
    """What accelerate loads from `folder`."""
    with init_empty_weights():
        model = models.class_of(name)._from_config(AutoConfig.from_pretrained(folder), dtype=models.DTYPE)
    model.tie_weights()
    classes = list(model._no_split_modules or [])
    loaded: PreTrainedModel = load_checkpoint_and_dispatch(
        model.eval(), str(folder), device_map={"": "cpu"}, no_split_module_classes=classes
    )
    return loaded


@pytest.mark.parametrize("name", models.USUALLY)
def test_the_result_loads_in_every_usual_way_and_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    source = models.save(name, tmp_path / "source")
    out = reshard(source, tmp_path / "out", "100kB")  # load_sharded_checkpoint knows sharded ones only
    wanted = models.logits(models.class_of(name).from_pretrained(source))
    assert torch.equal(models.logits(models.class_of(name).from_pretrained(out)), wanted)
    if name not in models.FUSED_OR_RENAMED:  # the other loaders know no weight conversion
        assert torch.equal(models.logits(dispatched(name, out)), wanted)
        for load in load_sharded_checkpoint, load_torch_model:
            model = empty(name)
            load(model, str(out), strict=False)
            assert torch.equal(models.logits(model), wanted), load.__name__
