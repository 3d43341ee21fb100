"""Which tensors a cast changes, which it keeps, and what is not cast at all."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sharding import job
from sharding.core.dtypes import BY_OPTION, CASTABLE
from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.planning.cast import cast_tensors
from sharding.recipes.cast import narrows
from tests import models
from tests.casts import cast, save_mixed
from tests.folders import tensors
from tests.promises import promise
from tests.tensors import stored_tensor

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


def test_integers_and_booleans_stay_and_the_plan_counts_what_is_written(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    report = cast(save_mixed(tmp_path / "in"), tmp_path / "out")
    found = tensors(tmp_path / "out")
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        **dict.fromkeys("acefghi", torch.float16), "b": torch.int64, "d": torch.bool,
    }  # fmt: skip
    assert report.plan.total_bytes == sum(tensor.nbytes for tensor in found.values())
    assert [finding.code for finding in report.plan.findings] == ["no-known-loader", "cast-without-class"]


@pytest.mark.parametrize("target", BY_OPTION)
@pytest.mark.parametrize("stored", CASTABLE)
def test_a_cast_may_overflow_where_the_largest_number_becomes_infinite_and_nowhere_else(
    stored: str, target: str
) -> None:
    before, after = (getattr(torch, dtype.torch) for dtype in (CASTABLE[stored], BY_OPTION[target]))
    largest = torch.tensor(torch.finfo(before).max, dtype=before)
    one, steps = (stored_tensor(dtype, dtype, (1,), "f", 0, 8) for dtype in (stored, "I64"))
    cast, same = cast_tensors([one, steps], target, {})
    assert narrows(cast.recipe) == bool(largest.to(after).isinf())
    assert not narrows(one.recipe) and not narrows(same.recipe)


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "w", r"quantized with gptq\. "),
        ({"quantization_config": {"bits": 4}}, "w", r"quantized with an unnamed method\. "),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "w", r"quantized with fp8\. "),
        ({}, "h.0.qweight", r"quantized, as h\.0\.qweight shows\. "),
        ({}, "h.0.w.weight_scale_inv", "weight_scale_inv shows"),
        ({}, "h.0.weight.quant_state.bitsandbytes__nf4", "nf4 shows"),
        ({}, "h.0.weight:qdata", "qdata shows"),
    ],
)
def test_a_quantized_checkpoint_is_not_cast_and_the_refusal_says_what_tells(
    config: dict[str, object], name: str, said: str, tmp_path: Path
) -> None:
    save_file({name: torch.ones(4)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(SourceError, match=said):
        job.plan(str(tmp_path), Options("1MB", dtype="fp16"))
    assert job.plan(str(tmp_path), "1MB")[1].options.dtype == "keep"


Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]
E4M3, CODES = torch.float8_e4m3fn, torch.int8
QUANTIZED: dict[str, Forms] = {
    "ComfyUI": {"weight": (E4M3, (8, 16)), "scale_weight": (torch.float32, ()), "bias": (torch.bfloat16, (8,))},
    "FP8 with .scale": {"weight": (E4M3, (8, 16)), "scale": (torch.float32, (1, 1))},
    "FP8 of quanto's library": {"weight": (E4M3, (8, 16)), "qscale_weight": (torch.float32, (8,))},
    "E5M2": {"weight": (torch.float8_e5m2, (8, 16)), "scale_weight": (torch.float32, (8, 1))},
    "quanto": {"weight._data": (CODES, (8, 16)), "weight._scale": (torch.bfloat16, (8, 1))},
    "MLX": {"weight": (torch.uint32, (8, 2)), "scales": (torch.float16, (8, 1)), "biases": (torch.float16, (8, 1))},
    "EXL2": {"q_weight": (torch.int32, (2, 8)), "q_scale": (torch.int32, (1, 1)), "q_scale_max": (torch.float16, (1,))},
    "HQQ": {"W_q": (torch.uint8, (8, 8)), "scale": (torch.float16, (16, 1)), "zero": (torch.float16, (16, 1))},
    "int8": {"weight": (CODES, (8, 16)), "scales": (torch.float16, (8,))},
    "MXFP4 of DeepSeek": {"weight": (CODES, (8, 8)), "scale": (torch.float8_e8m0fnu, (8, 1))},
}
OTHERS: dict[str, Forms] = {
    "positions": {"position_ids": (torch.int32, (1, 64)), "weight": (torch.float32, (64, 8))},
    "a mask": {"attn.bias": (torch.uint8, (1, 1, 8, 8)), "attn.masked_bias": (torch.float32, ())},
    "indices": {"relative_position_index": (torch.int32, (8, 8)), "table": (torch.float32, (15, 2))},
    "FP8 without scales": {"weight": (E4M3, (8, 16)), "bias": (torch.bfloat16, (8,))},
}


def save_module(folder: Path, forms: Forms) -> Path:
    of_bytes = {name: torch.zeros(shape, dtype=torch.float32).to(dtype) for name, (dtype, shape) in forms.items()}
    others = {"norm.weight": torch.ones(8, dtype=torch.bfloat16)}
    save_file({f"h.0.{name}": tensor for name, tensor in of_bytes.items()} | others, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("kind", QUANTIZED)
def test_numbers_that_need_the_scales_beside_them_are_not_cast(kind: str, tmp_path: Path) -> None:
    source = save_module(tmp_path, QUANTIZED[kind])
    with pytest.raises(SourceError, match="quantized"):
        job.plan(str(source), Options("1MB", dtype="fp16"))


@pytest.mark.parametrize("kind", OTHERS)
def test_buffers_beside_weights_and_plain_fp8_do_not_stop_a_cast(kind: str, tmp_path: Path) -> None:
    plan = job.plan(str(save_module(tmp_path, OTHERS[kind])), Options("1MB", dtype="fp16"))[1]
    assert {tensor.dtype for tensor in plan.tensors} <= {"F16", "I32", "U8"}


@promise("docs/formats.md#the-bits")
def test_modules_that_the_class_keeps_in_fp32_are_named(tmp_path: Path) -> None:
    plan = job.plan(str(models.save("t5", tmp_path)), Options("60kB", dtype="fp16"))[1]
    (finding,) = plan.findings
    assert finding.code == "kept-dtype" and "T5ForConditionalGeneration" in finding.message
    kept = {tensor.name for shard in plan.shards for tensor in shard.tensors if tensor.dtype == "F32"}
    assert len(kept) == 22 and all(".wo." in name for name in kept)
    assert not job.plan(str(tmp_path), Options("60kB", dtype="bf16"))[1].findings
