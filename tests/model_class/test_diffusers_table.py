"""What classes of diffusers keep in fp32 is known without diffusers, and a cast keeps it as the library does."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DModel, WanTransformer3DModel

from sharding import job
from sharding.core.options import Options
from sharding.model_class.class_table import OF_DIFFUSERS
from tests.folders import bits, reshard, tensors
from tests.lora import DTYPES, configured
from tests.model_class.table_maker import diffusers_table, quietly

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
WAN = {
    "num_attention_heads": 2, "attention_head_dim": 12, "in_channels": 4, "out_channels": 4, "text_dim": 16,
    "freq_dim": 16, "ffn_dim": 32, "num_layers": 2, "cross_attn_norm": True, "rope_max_seq_len": 32,
}  # fmt: skip


@pytest.mark.thorough
def test_the_table_is_that_of_the_installed_library() -> None:
    quietly()
    assert json.loads(OF_DIFFUSERS.read_text()) == diffusers_table()


@pytest.mark.parametrize(("stored", "dtype"), [("fp32", "fp16"), ("fp32", "bf16"), ("bf16", "fp16")])
def test_a_cast_keeps_what_the_class_keeps_in_fp32(stored: str, dtype: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = WanTransformer3DModel(**WAN)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(DTYPES[stored])
    model.save_pretrained(tmp_path / "in")
    report = reshard(tmp_path / "in", tmp_path / "out", "20kB", dtype=dtype)
    loaded = WanTransformer3DModel.from_pretrained(tmp_path / "in", torch_dtype=DTYPES[dtype])
    loaded.save_pretrained(tmp_path / "theirs")
    ours, theirs = tensors(tmp_path / "out"), tensors(tmp_path / "theirs")
    assert {name: bits(each) for name, each in ours.items()} == {name: bits(each) for name, each in theirs.items()}
    codes = {finding.code: finding.message for finding in report.plan.findings}
    assert "cast-without-class" not in codes and "WanTransformer3DModel" in codes["kept-dtype"]


def test_a_class_that_keeps_nothing_needs_no_warning_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    UNet2DModel(sample_size=8, block_out_channels=(32,) * 4, layers_per_block=1).save_pretrained(tmp_path)
    for is_known in (True, False):
        findings = job.plan(str(tmp_path), Options("1MB", dtype="fp16"))[1].findings
        told = [finding.message for finding in findings if finding.code == "cast-without-class"]
        assert ["OfTheFuture" in message for message in told] == [True] * (not is_known)
        configured("config.json", _class_name="OfTheFuture")(tmp_path)
