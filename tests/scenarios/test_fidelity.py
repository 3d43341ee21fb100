"""The result is what transformers and huggingface_hub themselves write, and loads in all the usual ways (docs/architectures.md)."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights, load_checkpoint_and_dispatch
from huggingface_hub import load_torch_model, save_torch_state_dict
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.trainer_utils import load_sharded_checkpoint

from tests import models
from tests.folders import reshard, tensors, weights
from tests.lora import DTYPES, each_one, pickled_base
from tests.promises import promise
from tests.scenarios import every_repo
from tests.scenarios.architectures import ARCHITECTURES
from tests.scenarios.every_repo import CASES, Way, found, in_docs

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
    source = models.save(name, tmp_path / "source", layers=None if name == "llama-tied" else 2)
    model = models.class_of(name).from_pretrained(source)
    for size in (SIZE, SHARDS_OF_ONE):
        theirs = tmp_path / f"theirs {size}"
        model.save_pretrained(theirs, max_shard_size=size)
        reshard(source, tmp_path / size, size)
        if name in models.FUSED_OR_RENAMED and size == SIZE:
            assert every_repo.same_bits(tensors(theirs), tensors(tmp_path / size))
        else:
            assert weights(tmp_path / size) == weights(theirs)
        assert (size == SHARDS_OF_ONE) == (len(weights(theirs)) == 1)
    reshard(source, tmp_path / "in their order", SIZE, order="transformers")
    assert weights(tmp_path / "in their order") == weights(tmp_path / f"theirs {SIZE}")
    wanted = models.logits(model)
    assert torch.equal(models.logits(models.class_of(name).from_pretrained(tmp_path / SIZE)), wanted)
    if name == "llama-tied":  # the other loaders know no weight conversion, and of other names or classes nothing
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


@pytest.mark.parametrize(("name", "dtype"), [("t5", "fp16"), ("llama-tied", "bf16"), ("mixtral", "fp32")])
def test_a_cast_is_what_loading_as_that_dtype_and_saving_gives(name: str, dtype: str, tmp_path: Path) -> None:
    source, out, theirs = (tmp_path / place for place in ("source", "out", "theirs"))
    models.build(name, torch.float32, layers=2).save_pretrained(source)
    reshard(source, out, SIZE, order="transformers", dtype=dtype)
    wanted = DTYPES[dtype]
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


# --- Every kind of model: the table in the docs ------------------------------------------------------

RENAMED = {"gpt_neox", "vit", "beit", "dinov2", "yolos", "audio-spectrogram-transformer"}
FUSED = {"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"}
"""Of these `save_pretrained` cuts elsewhere, as it goes by the names and experts that it has in memory."""
SAMPLE = {"vit", "resnet", "whisper", "clip", "mamba"}
"""One of every kind that is not tried above; the others are for `make thorough`."""


def case(name: str, way: Way) -> Any:
    is_quick = name == "mixtral" or (name in SAMPLE and way == Way())
    return pytest.param(name, way, id=f"{name}: {way.title}", marks=[] if is_quick else pytest.mark.thorough)


@pytest.mark.parametrize(("name", "way"), [case(*one) for one in CASES])
def test_every_architecture_comes_out_with_its_bits_loads_and_computes_the_same(name: str, way: Way) -> None:
    row = found(name, way)
    assert row.line(name, ARCHITECTURES[name].kind, way) in in_docs()
    assert row.bits_equal and row.loads and row.same_logits
    if way.strategy == "size":
        cut_elsewhere = name in RENAMED | FUSED and way.order != "transformers" and way.source != ".bin"
        # Buffers are no parameters, but in a single file of a ResNet nothing says which tensors are buffers.
        usual = every_repo.COUNT_DIFFERS if name == "resnet" else every_repo.EQUAL
        assert row.layout == (every_repo.CUT_ELSEWHERE if cut_elsewhere else usual)


def test_a_pipeline_comes_out_with_its_bits_loads_and_draws_the_same() -> None:
    row = every_repo.found_of_pipeline()
    assert row.line("stable-diffusion", "diffusers", Way()) in in_docs()
    assert row.bits_equal and row.loads and row.same_logits


def test_the_table_in_the_docs_has_every_case_and_says_no_to_none() -> None:
    cases = [tuple(line.split(" | ")[0::2])[:2] for line in in_docs()]
    assert cases == [(f"| {name}", way.title) for name, way in (*CASES, ("stable-diffusion", Way()))]
    assert not [line for line in in_docs() if " no |" in line or "different" in line]
    assert len(ARCHITECTURES) >= 25


# --- The dtype that a model loads in, also where only the order of the tensors decides (transformers #34919)

SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_mixed(folder: Path, wide: str, *, shards: str = "1GB", pickled: bool = False) -> Path:
    """Save a model of bfloat16 without a dtype in its configuration. The weights with `wide` in their names are fp32."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=96, num_key_value_heads=2, **SMALL)).to(torch.bfloat16)
    model.save_pretrained(folder, max_shard_size=shards)
    for file in folder.glob("*.safetensors"):
        each_one(lambda name, tensor: tensor.float() if wide in name else tensor, file.name)(folder)
    if pickled:
        pickled_base(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["dtype"]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("form", "wide"),
    [
        *product(["one file"], ["lm_head", "norm", "embed_tokens", "layers.0"]),
        *product(["shards"], ["lm_head", "embed_tokens"]),
        *[("pickle", "norm"), ("pickle", "embed_tokens"), ("index", "lm_head")],
    ],
)
def test_a_copy_loads_in_the_dtype_of_its_original(form: str, wide: str, tmp_path: Path) -> None:
    of_several = form in ("shards", "index")
    source = save_mixed(tmp_path / "in", wide, shards="9kB" if of_several else "1GB", pickled=form == "pickle")
    if form == "index":
        document = json.loads((source / INDEX).read_text())
        document["metadata"]["dtype"] = "float16"
        (source / INDEX).write_text(json.dumps(document))
    theirs = AutoModelForCausalLM.from_pretrained(source)
    for size in ("9kB", "single-file"):
        out = tmp_path / size
        report = reshard(source, out, size)
        ours = AutoModelForCausalLM.from_pretrained(out)
        assert ours.dtype == theirs.dtype
        assert all(torch.equal(one, other) for one, other in zip(ours.parameters(), theirs.parameters(), strict=True))
        is_written = "dtype" in json.loads((out / "config.json").read_text())
        assert is_written == ("dtype-written" in {finding.code for finding in report.plan.findings})
