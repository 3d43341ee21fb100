"""The result is what transformers and huggingface_hub themselves write, and loads in all the usual ways."""

import json
from pathlib import Path

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
from tests.folders import reshard, tensors, weights
from tests.promises import promise
from tests.scenarios.every_repo import same_bits

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SIZE = "30kB"
SHARDS_OF_ONE = "10GB"
INDEX = "model.safetensors.index.json"


@promise("docs/formats.md#what-a-repo-may-hold", "docs/formats.md#the-layout")
@pytest.mark.parametrize("name", models.USUAL)
def test_the_result_is_byte_for_byte_what_save_pretrained_writes_and_loads_in_every_usual_way(
    name: str, tmp_path: Path
) -> None:
    """Other classes have a line each in docs/architectures.md."""
    source = models.save(name, tmp_path / "source")
    model = models.class_of(name).from_pretrained(source)
    for size in (SIZE, SHARDS_OF_ONE):
        theirs = tmp_path / f"theirs {size}"
        model.save_pretrained(theirs, max_shard_size=size)
        reshard(source, tmp_path / size, size)
        if name in models.FUSED_OR_RENAMED and size == SIZE:
            assert same_bits(tensors(theirs), tensors(tmp_path / size))
        else:
            assert weights(tmp_path / size) == weights(theirs)
        assert (size == SHARDS_OF_ONE) == (len(weights(theirs)) == 1)
    reshard(source, tmp_path / "in their order", SIZE, order="transformers")
    assert weights(tmp_path / "in their order") == weights(tmp_path / f"theirs {SIZE}")
    wanted = models.logits(model)
    assert torch.equal(models.logits(models.class_of(name).from_pretrained(tmp_path / SIZE)), wanted)
    if name not in models.FUSED_OR_RENAMED:  # the other loaders know no weight conversion
        assert torch.equal(models.logits(dispatched(name, tmp_path / SIZE)), wanted)
        for load in load_sharded_checkpoint, load_torch_model:
            zeros = empty(name)
            load(zeros, str(tmp_path / SIZE), strict=False)
            assert torch.equal(models.logits(zeros), wanted), load.__name__


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


def test_tensors_that_the_class_does_not_save_come_last(tmp_path: Path) -> None:
    source = models.save("gpt-neox", tmp_path / "source", SHARDS_OF_ONE)
    more = {"a.first": torch.ones(2), "rope.inv_freq": torch.ones(3)}
    file = source / "model.safetensors"
    save_file({**load_file(file), **more}, file, {"format": "pt"})
    plan = job.plan(str(source), Options(SIZE, order="transformers"))[1]
    (finding,) = plan.findings
    assert (finding.code, "2 tensors" in finding.message) == ("not-saved-by-class", True)
    assert more.keys() <= {tensor.name for tensor in plan.shards[-1].tensors}


@pytest.mark.parametrize(
    ("name", "dtype"), [("t5", "fp16"), ("t5", "bf16"), ("llama-tied", "bf16"), ("mixtral", "fp32")]
)
def test_a_cast_is_what_loading_as_that_dtype_and_saving_gives(name: str, dtype: str, tmp_path: Path) -> None:
    source, out, theirs = (tmp_path / place for place in ("source", "out", "theirs"))
    models.build(name, torch.float32).save_pretrained(source)
    reshard(source, out, SIZE, order="transformers", dtype=dtype)
    wanted = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[dtype]
    model = models.class_of(name).from_pretrained(source, dtype=wanted)
    model.save_pretrained(theirs, max_shard_size=SIZE)
    assert weights(out) == weights(theirs)
    of_ours, of_theirs = (json.loads((folder / "config.json").read_text()) for folder in (out, theirs))
    assert of_ours["dtype"] == of_theirs["dtype"]
    again = type(model).from_pretrained(out)
    assert again.dtype == wanted
    assert torch.equal(models.logits(again), models.logits(model))


@pytest.mark.parametrize("size", [SIZE, SHARDS_OF_ONE])
def test_stored_order_is_what_save_torch_state_dict_writes(size: str, tmp_path: Path) -> None:
    source = models.save("gpt2", tmp_path / "source")
    reshard(source, tmp_path / "out", size, order="stored")
    stored = {}
    for path in sorted(source.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            stored.update({key: file.get_tensor(key) for key in file.offset_keys()})
    (tmp_path / "theirs").mkdir()
    save_torch_state_dict(stored, tmp_path / "theirs", max_shard_size=size)
    ours, theirs = weights(tmp_path / "out"), weights(tmp_path / "theirs")
    assert ours.keys() == theirs.keys()
    assert [file for file in ours if file != INDEX and ours[file] != theirs[file]] == []
