"""What classes of diffusers keep in fp32 is known without diffusers, and a cast keeps it as the library does."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DModel, WanTransformer3DModel

from sharding import job
from sharding.core.options import Options
from sharding.model_class.class_table import OF_DIFFUSERS
from tests.folders import bits, finish, tensors
from tests.model_class.table_maker import diffusers_table, quietly

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
WAN = {
    "num_attention_heads": 2,
    "attention_head_dim": 12,
    "in_channels": 4,
    "out_channels": 4,
    "text_dim": 16,
    "freq_dim": 16,
    "ffn_dim": 32,
    "num_layers": 2,
    "cross_attn_norm": True,
    "rope_max_seq_len": 32,
}


@pytest.mark.thorough
def test_the_table_is_that_of_the_installed_library() -> None:
    quietly()
    assert json.loads(OF_DIFFUSERS.read_text()) == diffusers_table()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("stored", ["fp32", "bf16"])
def test_a_cast_keeps_what_the_class_keeps_in_fp32(stored: str, dtype: str, tmp_path: Path) -> None:
    names = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    torch.manual_seed(0)
    model = WanTransformer3DModel(**WAN)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(names[stored])
    model.save_pretrained(tmp_path / "in")
    report = finish(job.shard(str(tmp_path / "in"), str(tmp_path / "out"), Options("20kB", dtype=dtype)))  # type: ignore[arg-type]
    loaded = WanTransformer3DModel.from_pretrained(tmp_path / "in", torch_dtype=names[dtype])
    loaded.save_pretrained(tmp_path / "theirs")
    ours, theirs = tensors(tmp_path / "out"), tensors(tmp_path / "theirs")
    assert {name: bits(each) for name, each in ours.items()} == {name: bits(each) for name, each in theirs.items()}
    codes = {finding.code: finding.message for finding in report.plan.findings}
    assert "cast-without-class" not in codes and "WanTransformer3DModel" in codes["kept-dtype"]


def test_a_class_that_keeps_nothing_needs_no_warning_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    UNet2DModel(sample_size=8, block_out_channels=(32,) * 4, layers_per_block=1).save_pretrained(tmp_path)
    options = Options("1MB", dtype="fp16")
    assert "cast-without-class" not in {found.code for found in job.plan(str(tmp_path), options)[1].findings}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "_class_name": "OfTheFuture"}))
    [finding] = [found for found in job.plan(str(tmp_path), options)[1].findings if found.code == "cast-without-class"]
    assert "OfTheFuture" in finding.message
