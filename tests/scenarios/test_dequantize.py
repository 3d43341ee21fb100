"""Quantized models become ordinary ones: bit for bit what transformers itself loads dequantized, with equal logits."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from compressed_tensors.entrypoints.convert import convert_checkpoint
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config, Mxfp4Config

from sharding import job
from sharding.core.errors import OverflowRefused, SourceError, UsageError
from sharding.core.options import Options
from sharding.core.verification import Verification
from sharding.report.schema import Report, parse_report
from tests import hubs, models
from tests.conftest import listing
from tests.folders import bits, compared, kept, reshard, tensors, until_shard, weights
from tests.inhouse import InHouse
from tests.lora import DTYPES, Case, configured, save_adapter
from tests.promises import promise
from tests.quantized import (
    FORMS,
    INT8,
    MXFP4,
    MXFP8,
    NVFP4,
    build,
    integers,
    save_compressed,
    save_form,
    save_fp8,
    save_mxfp4,
    save_mxfp8,
    save_packed,
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
Run = Callable[..., subprocess.CompletedProcess[str]]


def dequantize(source: Path, out: Path, dtype: str = "keep", size: str = "200kB", **more: Any) -> Report:
    return reshard(source, out, size, dtype=dtype, dequantize=True, **more)


def verified(source: Path, out: Path, **asked: Any) -> Verification:
    return compared(source, out, dequantize=True, **asked)


def same_as_theirs(source: Path, out: Path, asked: Any, dtype: str = "bf16") -> None:
    """What is in `out`, loaded as usual, is `source` loaded as `asked`: names, dtypes, bits and logits."""
    theirs = AutoModelForCausalLM.from_pretrained(source, quantization_config=asked, dtype=DTYPES[dtype])
    ours = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    found, expected = ours.state_dict(), theirs.state_dict()
    assert found.keys() == expected.keys()
    assert [name for name in found if bits(found[name]) != bits(expected[name])] == []
    assert torch.equal(models.logits(ours), models.logits(theirs))


@promise("docs/formats.md#quantized-weights")
@pytest.mark.parametrize("model_type", ["qwen3", "qwen3_moe", "deepseek_v3"])
def test_block_fp8_becomes_what_transformers_loads_dequantized(model_type: str, tmp_path: Path) -> None:
    source = save_fp8(model_type, tmp_path / "source")
    report = dequantize(source, tmp_path / "out")
    same_as_theirs(source, tmp_path / "out", FineGrainedFP8Config(dequantize=True))
    assert [one.done for one in report.plan.made] == ["dequantized to bf16 (fp8, one scale for each 128 x 128)"]


def test_fp8_of_compressed_tensors_is_what_transformers_loads_with_that_library(tmp_path: Path) -> None:
    source = save_compressed("channel", tmp_path / "source", "qwen3_moe")
    dequantize(source, tmp_path / "out")
    same_as_theirs(source, tmp_path / "out", CompressedTensorsConfig(dequantize=True))


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(integers(4, 32), id="int4"),
        pytest.param(integers(4, 64, symmetric=False), id="int4 with zeros", marks=pytest.mark.thorough),
        pytest.param(integers(8, None), id="packed int8"),
        pytest.param(INT8, id="int8", marks=pytest.mark.thorough),
        pytest.param(NVFP4, id="nvfp4"),
        pytest.param(MXFP4, id="mxfp4", marks=pytest.mark.thorough),
        pytest.param(MXFP8, id="mxfp8", marks=pytest.mark.thorough),
    ],
)
def test_numbers_of_compressed_tensors_are_what_transformers_loads_with_that_library(
    said: dict[str, Any], tmp_path: Path
) -> None:
    source = save_packed(said, tmp_path / "source")
    dequantize(source, tmp_path / "out")
    same_as_theirs(source, tmp_path / "out", CompressedTensorsConfig(dequantize=True))


@pytest.mark.thorough
@pytest.mark.parametrize("powers", [torch.uint8, torch.float8_e8m0fnu], ids=str)
def test_mxfp8_becomes_what_transformers_loads_dequantized(powers: torch.dtype, tmp_path: Path) -> None:
    source = save_mxfp8(tmp_path / "source", powers)
    dequantize(source, tmp_path / "out")
    same_as_theirs(source, tmp_path / "out", FineGrainedFP8Config(dequantize=True, weight_block_size=(1, 32)))


@pytest.mark.thorough
def test_awq_becomes_what_transformers_loads_after_compressed_tensors_has_converted_it(tmp_path: Path) -> None:
    _, tensors = build("qwen3", tmp_path / "source")
    source = save_form("awq", tmp_path / "source", tensors)
    said = json.loads((source / "config.json").read_text())["quantization_config"]
    convert_checkpoint(source, tmp_path / "converted", AutoAWQConverter.from_autoawq_config(said))
    dequantize(source, tmp_path / "out")
    same_as_theirs(tmp_path / "converted", tmp_path / "out", CompressedTensorsConfig(dequantize=True))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_mxfp4_becomes_the_weights_that_the_class_of_gpt_oss_saves(dtype: str, tmp_path: Path) -> None:
    source = save_mxfp4(tmp_path / "source")
    dequantize(source, tmp_path / "out", dtype, "20kB")
    same_as_theirs(source, tmp_path / "out", Mxfp4Config(dequantize=True), dtype)
    names = tensors(tmp_path / "out")
    assert {"model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.experts.down_proj"} <= names.keys()


@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_what_is_not_quantized_keeps_its_dtype_unless_a_cast_is_asked_for(dtype: str, tmp_path: Path) -> None:
    source = save_fp8("deepseek_v3", tmp_path / "source")
    held = {name: each.float() + 12.02 for name, each in tensors(source).items() if "correction_bias" in name}
    save_file({**tensors(source), **held}, source / "model.safetensors", {"format": "pt"})
    report = dequantize(source, tmp_path / "out", dtype)
    found = tensors(tmp_path / "out")
    # The class of transformers keeps this bias in fp32, so a cast leaves it as it is too.
    assert held and all(torch.equal(found[name], tensor) for name, tensor in held.items())
    assert torch.equal(found["model.embed_tokens.weight"], tensors(source)["model.embed_tokens.weight"])
    assert verified(source, tmp_path / "out", dtype=dtype).identical
    assert [one.kind for one in report.plan.made] == ["dequantize", "dtype"][: 1 + (dtype != "keep")]


def test_a_model_without_a_class_keeps_its_router_in_fp32(tmp_path: Path) -> None:
    """Kimi-K2 and MiniMax-M2, whose own code says nothing of dtypes."""
    source = save_fp8("qwen3", tmp_path / "source")
    name, bias = "model.layers.0.mlp.gate.e_score_correction_bias", torch.full((4,), 12.02)
    save_file({**tensors(source), name: bias}, source / "model.safetensors", {"format": "pt"})
    configured("config.json", model_type="kimi_k2", auto_map={"AutoModelForCausalLM": "x.Y"})(source)
    for dtype, is_kept in (("keep", True), ("bf16", False)):
        dequantize(source, tmp_path / dtype, dtype)
        assert torch.equal(tensors(tmp_path / dtype)[name], bias if is_kept else bias.bfloat16())


@promise("docs/formats.md#how-the-numbers-are-checked")
def test_a_result_says_how_it_was_quantized_that_it_is_computed_and_how_that_was_checked(tmp_path: Path) -> None:
    source = save_fp8("qwen3", tmp_path / "source")
    names = {"hf_quant_config.json", "quantize_config.json", "quant_config.json"}
    for name in names:
        (source / name).write_text("{}")
    (source / "recipe.yaml").write_text("default_stage: fp8\n")
    configured("config.json", torch_dtype="float8_e4m3fn", dtype="float8_e4m3fn")(source)
    before = listing(source)
    report = dequantize(source, tmp_path / "out")
    assert listing(source) == before
    assert not listing(tmp_path / "out").keys() & names and not {*report.files} & names
    assert [each.code for each in report.plan.findings if "hf_quant_config.json" in each.message] == ["left-out"]
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config and config["dtype"] == config["torch_dtype"] == "bfloat16"
    assert (tmp_path / "out/recipe.yaml").read_text() == "default_stage: fp8\n"
    written = parse_report((tmp_path / "out/sharding_report.json").read_bytes())
    assert written == report
    assert written.source.dtypes.keys() == {"F8_E4M3", "F32", "BF16"}
    done = "dequantized to bf16 (fp8, one scale for each 128 x 128)"
    assert done in report.verification.method
    index = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["metadata"]
    found = tensors(tmp_path / "out")
    assert index["total_parameters"] == sum(tensor.numel() for tensor in found.values())
    card = (tmp_path / "out/README.md").read_text()
    assert done in card and "as precise as the quantized original" in card
    assert "bit-identical to the original" not in card
    reshard(source, tmp_path / "as it is", "400kB")
    assert names < listing(tmp_path / "as it is").keys()


def test_numbers_that_become_infinite_are_refused_or_counted(tmp_path: Path) -> None:
    weight = torch.full((4, 8), 448.0)
    weight[1:] = 1.0
    said = {"quant_method": "fp8", "weight_block_size": None}
    found = {"a.weight": weight.to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.tensor(1000.0)}
    source = write(tmp_path / "source", found, said)
    with pytest.raises(OverflowRefused, match="a.weight has 8 finite numbers"):
        dequantize(source, tmp_path / "out", "fp16")
    assert not (tmp_path / "out").exists()
    report = dequantize(source, tmp_path / "out", "fp16", allow_overflow=True)
    assert report.overflowed == {"a.weight": 8}
    assert dequantize(source, tmp_path / "bf16").overflowed == {}


def test_verify_computes_all_of_it_once_more(run: Run, tmp_path: Path) -> None:
    source = save_mxfp4(tmp_path / "source")
    dequantize(source, tmp_path / "out")
    proof = verified(source, tmp_path / "out")
    assert proof.identical and "dequantized to bf16 (mxfp4, one scale for each 32 numbers)" in proof.method
    assert not verified(source, tmp_path / "out", dtype="fp16").identical
    with pytest.raises(UsageError):
        verified(source, tmp_path / "out", quick=True)
    (shard,) = (tmp_path / "out").glob("*-00001-of-*.safetensors")
    data = shard.read_bytes()
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert len(verified(source, tmp_path / "out").mismatches) == 1
    done = run("verify", source, tmp_path / "out", "--dequantize")
    assert (done.returncode, "Different: 1 mismatch" in done.stdout) == (1, True)


@promise("docs/formats.md#lora-adapters")
@pytest.mark.parametrize(
    ("form", "dtype"),
    [("fp8", "keep"), ("fp8", "fp16"), *(pytest.param(form, "keep", marks=pytest.mark.thorough) for form in FORMS[1:])],
)
def test_an_adapter_is_merged_into_a_quantized_base_as_into_its_ordinary_copy(
    form: str, dtype: str, tmp_path: Path
) -> None:
    _, plain = build("qwen3", tmp_path / "plain")
    source = save_form(form, copytree(tmp_path / "plain", tmp_path / "source"), plain)
    adapter = save_adapter(
        Case(lora={"target_modules": ["q_proj", "down_proj"]}), tmp_path / "plain", tmp_path / "lora"
    )
    report = dequantize(source, tmp_path / "out", dtype, adapter=str(adapter))
    assert [one.kind for one in report.plan.made] == ["dequantize", "adapter", "dtype"][: 2 + (dtype != "keep")]
    dequantize(source, tmp_path / "ordinary")
    reshard(tmp_path / "ordinary", tmp_path / "merged", "200kB", dtype=dtype, adapter=str(adapter))
    assert weights(tmp_path / "out") == weights(tmp_path / "merged")
    assert weights(tmp_path / "merged") != weights(tmp_path / "ordinary")
    assert verified(source, tmp_path / "out", dtype=dtype, adapter=str(adapter)).identical
    with pytest.raises(SourceError, match="The base is quantized") as refused:
        job.plan(str(source), Options(adapter=str(adapter)))
    assert "--dequantize" in refused.value.hint


def test_shards_that_transformers_cuts_otherwise_are_cut_by_its_class(tmp_path: Path) -> None:
    source = save_mxfp4(tmp_path / "source")
    report = dequantize(source, tmp_path / "out", size="60kB", strategy="pp:2")
    assert report.plan.pipeline is not None and len(report.plan.stages) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_repo_in_any_format_becomes_what_its_folder_does_also_after_it_was_interrupted(
    form: str, hub: InHouse, name: str, tmp_path: Path
) -> None:
    source = save_form(form, tmp_path / "source")
    assert dequantize(source, tmp_path / "out", size="20kB").plan.made
    repo, options = hubs.push(hub, source, f"{name}-source"), Options("20kB", dequantize=True)
    for stop in (True, False):
        events = job.shard(repo, name, options, endpoint=hub.address, token=hubs.TOKEN)
        if stop:
            until_shard(events, 2, stop=True)
    *went_on, report = events
    assert kept(went_on) and isinstance(report, Report) and report.verification.identical
    found = weights(hubs.download(hub, name, tmp_path / "found"))
    assert weights(tmp_path / "out").items() <= found.items()
