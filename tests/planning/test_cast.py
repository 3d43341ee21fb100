"""Which tensors a cast changes, which it keeps, and what is not cast at all."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sharding import job
from sharding.core.dtypes import BY_NAME, CASTABLE
from sharding.core.errors import SourceError, UsageError
from sharding.core.options import Options
from sharding.planning.cast import cast_tensors, may_overflow
from tests import models
from tests.casts import cast, save_mixed
from tests.folders import tensors
from tests.tensors import stored_tensor

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mixed(tmp_path_factory.mktemp("mixed"))


def test_integers_booleans_and_fp8_stay_and_the_plan_counts_what_is_written(mixed: Path, tmp_path: Path) -> None:
    report = cast(mixed, tmp_path / "out")
    found = tensors(tmp_path / "out")
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        **dict.fromkeys("acefgi", torch.float16), "b": torch.int64, "d": torch.bool, "h": torch.float8_e4m3fn,
    }  # fmt: skip
    assert report.plan.total_bytes == sum(tensor.nbytes for tensor in found.values())
    assert [finding.code for finding in report.plan.findings] == ["no-known-loader", "cast-without-class"]


@pytest.mark.parametrize("target", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("stored", CASTABLE)
def test_a_cast_may_overflow_where_the_largest_number_becomes_infinite_and_nowhere_else(
    stored: str, target: str
) -> None:
    before, after = (getattr(torch, CASTABLE[dtype].torch) for dtype in (stored, target))
    largest = torch.tensor(torch.finfo(before).max, dtype=before)
    one, steps = (stored_tensor(dtype, dtype, (1,), "f", 0, 8) for dtype in (stored, "I64"))
    tensors = cast_tensors([one, steps], BY_NAME[target].option, {})
    assert may_overflow(tensors) == bool(largest.to(after).isinf())
    assert not may_overflow([one, steps])


@pytest.mark.parametrize(
    ("config", "names"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, ["w"]),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, ["w"]),
        ({}, ["h.0.qweight"]),
        ({}, ["h.0.w.weight_scale_inv"]),
        ({}, ["h.0.weight.quant_state.bitsandbytes__nf4"]),
        ({}, ["h.0.weight:qdata"]),
    ],
    ids=str,
)
def test_a_quantized_checkpoint_is_not_cast(config: dict[str, object], names: list[str], tmp_path: Path) -> None:
    save_file({name: torch.ones(4) for name in names}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match="quantized"):
        job.plan(str(tmp_path), Options("1MB", dtype="fp16"))
    assert job.plan(str(tmp_path), "1MB")[1].options.dtype == "keep"


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "w", r"quantized with gptq\. "),
        ({"quantization_config": {"bits": 4}}, "w", r"quantized with an unnamed method\. "),
        ({}, "h.0.qweight", r"quantized, as h\.0\.qweight shows\. "),
    ],
    ids=["named", "unnamed", "by a tensor"],
)
def test_a_refusal_says_what_tells_that_a_checkpoint_is_quantized(
    config: dict[str, object], name: str, said: str, tmp_path: Path
) -> None:
    save_file({name: torch.ones(4)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match=said):
        job.plan(str(tmp_path), Options("1MB", dtype="fp16"))


def test_modules_that_the_class_keeps_in_fp32_are_named(tmp_path: Path) -> None:
    plan = job.plan(str(models.save("t5", tmp_path)), Options("60kB", dtype="fp16"))[1]
    (finding,) = plan.findings
    assert finding.code == "kept-dtype" and "T5ForConditionalGeneration" in finding.message
    kept = {tensor.name for shard in plan.shards for tensor in shard.tensors if tensor.dtype == "F32"}
    assert len(kept) == 22 and all(".wo." in name for name in kept)
    assert not job.plan(str(tmp_path), Options("60kB", dtype="bf16"))[1].findings


def test_an_unknown_dtype_is_refused(mixed: Path) -> None:
    with pytest.raises(UsageError, match="int4"):
        job.plan(str(mixed), Options("1MB", dtype="int4"))
