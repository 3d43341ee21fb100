"""Ordinary weights stay ordinary, whatever a configuration says of them or of the base that they were trained from."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile, copytree
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.errors import UsageError
from sharding.core.options import Options
from tests import models, quantized
from tests.conftest import listing
from tests.folders import compared, reshard, tensors, weights
from tests.lora import configured

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SAID: dict[str, dict[str, Any]] = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "something": {"bits": 3},
}


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = models.save("llama", tmp_path / "in", "100kB", layers=2)
    configured("config.json", quantization_config=SAID[request.param])(folder)
    (folder / "hf_quant_config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("folder", "choices"),
    [("fp8", {"dequantize": True}), ("gptq", {"dequantize": True, "dtype": "fp32"}), ("something", {"dtype": "fp16"})],
    indirect=["folder"],
)
def test_plain_weights_are_cast_or_kept_and_the_entry_goes(
    choices: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    report = reshard(folder, tmp_path / "out", "50kB", **choices)
    assert "quantization-dropped" in {finding.code for finding in report.plan.findings}
    assert {change.kind for change in report.plan.made} <= {"dtype"}
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config and "hf_quant_config.json" not in listing(tmp_path / "out")
    plain = models.save("llama", tmp_path / "plain", "100kB", layers=2)
    reshard(plain, tmp_path / "same", "50kB", **{name: each for name, each in choices.items() if name == "dtype"})
    assert weights(tmp_path / "out") == weights(tmp_path / "same")
    _, told = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}


@pytest.mark.parametrize("folder", ["bitsandbytes", "something"], indirect=True)
def test_without_a_choice_it_stays_and_a_warning_says_so(folder: Path, tmp_path: Path) -> None:
    report = reshard(folder, tmp_path / "out", "50kB")
    [warning] = [finding for finding in report.plan.findings if finding.code == "quantization-left-over"]
    assert warning.level == "warning" and "--dequantize" in warning.hint
    assert (tmp_path / "out/config.json").read_bytes() == (folder / "config.json").read_bytes()


# --- What was trained from a quantized base -----------------------------------------------------------

OF_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
INT4 = {
    "quant_method": "compressed-tensors", "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": OF_INT4}},
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "fp8": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    "an old int4": {"compression_config": INT4},
    "a part of a part": {"thinker_config": {"text_config": {"quantization_config": {"quant_method": "fp8"}}}},
}
BESIDE = {"recipe.yaml", "quantize_config.json", "quant_config.json", "hf_quant_config.json"}


def saved(folder: Path, state: dict[str, Any]) -> Path:
    """What a trainer of one rank leaves of `state`."""
    dcp.save({"model": state}, storage_writer=dcp.FileSystemWriter(folder), no_dist=True)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "model"
    quantized.build("qwen3", folder)
    return folder


@pytest.fixture
def run_of(model: Path, tmp_path: Path) -> Path:
    return saved(tmp_path / "run", tensors(model))


@pytest.fixture
def base_of(model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The model as its base, whose config.json says that it is quantized, with the files that quantizers leave."""

    def base_of(method: str) -> Path:
        base = Path(copytree(model, tmp_path / "base"))
        configured("config.json", **METHODS[method])(base)
        for name in BESIDE:
            (base / name).write_text("{}")
        return base

    return base_of


@pytest.mark.parametrize("method", METHODS)
def test_what_config_json_says_of_the_quantized_base_does_not_hold_for_what_was_trained(
    method: str, run_of: Path, model: Path, base_of: Callable[[str], Path], tmp_path: Path
) -> None:
    base = base_of(method)
    report = reshard(run_of, tmp_path / "out", base=str(base))
    config = (tmp_path / "out/config.json").read_text()
    assert "quantization_config" not in config and "compression_config" not in config
    assert {path.name for path in (tmp_path / "out").iterdir()}.isdisjoint(BESIDE)
    codes = {finding.code: finding.message for finding in report.plan.findings}
    assert "but none are" in codes["quantization-dropped"] and "recipe.yaml" in codes["left-out"]
    assert "base-lacks" not in codes
    if method == "fp8":
        assert torch.equal(models.loaded_logits(tmp_path / "out"), models.loaded_logits(model))


def test_weights_of_a_quantized_base_are_cast_and_verified_as_any_other(
    run_of: Path, model: Path, base_of: Callable[[str], Path], tmp_path: Path
) -> None:
    base = base_of("fp8")
    reshard(run_of, tmp_path / "out", base=str(base), dtype="fp16", strategy="blocks")
    reshard(model, tmp_path / "plain", dtype="fp16", strategy="blocks")
    ours, theirs = (json.loads((tmp_path / out / "config.json").read_text()) for out in ("out", "plain"))
    assert ours == theirs
    assert torch.equal(models.loaded_logits(tmp_path / "out"), models.loaded_logits(tmp_path / "plain"))
    assert compared(run_of, tmp_path / "out", dtype="fp16", base=str(base)).identical
    with pytest.raises(UsageError, match="not quantized"):
        job.plan(str(run_of), Options(base=str(base), dequantize=True))


def test_weights_that_were_really_quantized_are_not_called_missing(run_of: Path, tmp_path: Path) -> None:
    fp8 = quantized.save_fp8("qwen3", tmp_path / "fp8")
    checkpoint = job.inspect(str(run_of), base=str(fp8))
    told = [finding.message + finding.hint for finding in checkpoint.findings if finding.code.startswith("base-")]
    assert told == []
    _, plan = job.plan(str(run_of), Options(base=str(fp8), dtype="bf16"))
    assert {tensor.dtype for shard in plan.shards for tensor in shard.tensors} == {"BF16"}


@pytest.mark.parametrize("save", [lambda folder: quantized.save_fp8("qwen3", folder), quantized.save_mxfp4])
def test_a_run_that_trained_quantized_weights_keeps_what_says_how(save: Callable[[Path], Path], tmp_path: Path) -> None:
    base = save(tmp_path / "base")
    (base / "quant_config.json").write_text("{}")
    run = saved(tmp_path / "run", tensors(base))
    reshard(run, tmp_path / "out", base=str(base))
    assert (tmp_path / "out/config.json").read_bytes() == (base / "config.json").read_bytes()
    assert (tmp_path / "out/quant_config.json").exists()
    report = reshard(run, tmp_path / "plain", base=str(base), dequantize=True)
    assert [change.kind for change in report.plan.made] == ["dequantize"]
    assert compared(run, tmp_path / "plain", base=str(base), dequantize=True).identical


def test_buffers_and_unlucky_names_are_no_quantized_weights(
    model: Path, base_of: Callable[[str], Path], tmp_path: Path
) -> None:
    odd = {"attn.bias": torch.ones(4, dtype=torch.uint8), "position_ids": torch.arange(4, dtype=torch.int8)}
    odd |= {"conv.weight_scale": torch.ones(2), "codebook.absmax": torch.ones(2)}
    run = saved(tmp_path / "run", tensors(model) | odd)
    reshard(run, tmp_path / "out", base=str(base_of("fp8")))
    assert "quantization_config" not in (tmp_path / "out/config.json").read_text()


def test_a_configuration_beside_the_files_of_ranks_is_held_to_the_same(
    run_of: Path, model: Path, tmp_path: Path
) -> None:
    copyfile(model / "config.json", run_of / "config.json")
    configured("config.json", **METHODS["fp8"])(run_of)
    (run_of / "recipe.yaml").write_text("of the base")
    reshard(run_of, tmp_path / "out", dtype="bf16")
    assert "quantization_config" not in (tmp_path / "out/config.json").read_text()
    copyfile(model / "config.json", run_of / "config.json")
    reshard(run_of, tmp_path / "own")
    assert (tmp_path / "own/recipe.yaml").exists()


def test_the_card_does_not_call_what_was_trained_a_quantization(
    run_of: Path, base_of: Callable[[str], Path], tmp_path: Path
) -> None:
    base = base_of("fp8")
    (base / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\nbase_model_relation: quantized\n---\n")
    reshard(run_of, tmp_path / "out", base=str(base))
    card = (tmp_path / "out/README.md").read_text()
    assert "license: mit" in card and "base_model_relation" not in card
