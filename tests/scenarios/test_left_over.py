"""What the files hold decides whether weights are quantized, whatever an entry says that a program left behind."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from sharding import job
from sharding.core.errors import ShardingError
from tests import models, quantized
from tests.conftest import listing
from tests.folders import arrays, finish, reshard, same
from tests.lora import configured

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
SAID: dict[str, dict[str, Any]] = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "gptq": {"quant_method": "gptq", "bits": 4},
    "something": {"bits": 3},
}


@pytest.fixture(params=SAID)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = models.save("llama", tmp_path / "in", "100kB", layers=2)
    configured("config.json", quantization_config=SAID[request.param])(folder)
    (folder / "hf_quant_config.json").write_text("{}")
    return folder


DROPPED = [
    ("bitsandbytes", {"dtype": "fp16"}),
    ("fp8", {"dequantize": True}),
    ("gptq", {"dequantize": True, "dtype": "fp32"}),
    ("something", {"dtype": "fp16"}),
]


@pytest.mark.parametrize(("folder", "choices"), DROPPED, indirect=["folder"])
def test_plain_weights_are_cast_or_kept_and_the_entry_goes(
    choices: dict[str, Any], folder: Path, tmp_path: Path
) -> None:
    report = reshard(folder, tmp_path / "out", "50kB", **choices)
    assert "quantization-dropped" in {finding.code for finding in report.plan.findings}
    assert report.plan.dequantized == ""
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in config and "hf_quant_config.json" not in listing(tmp_path / "out")
    plain = models.save("llama", tmp_path / "plain", "100kB", layers=2)
    reshard(plain, tmp_path / "same", "50kB", **{name: each for name, each in choices.items() if name == "dtype"})
    assert same(arrays(tmp_path / "out"), arrays(tmp_path / "same"))
    _, told = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto", output_loading_info=True)
    assert {kind: keys for kind, keys in told.items() if keys} == {}


def test_without_a_choice_it_stays_and_a_warning_says_so(folder: Path, tmp_path: Path) -> None:
    report = reshard(folder, tmp_path / "out", "50kB")
    [warning] = [finding for finding in report.plan.findings if finding.code == "quantization-left-over"]
    assert warning.level == "warning" and "--dequantize" in warning.hint
    assert (tmp_path / "out/config.json").read_bytes() == (folder / "config.json").read_bytes()


@pytest.mark.parametrize("method", [*quantized.BESIDE, "fp8"])
def test_weights_that_are_quantized_are_still_refused(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    quantized.save_fp8("qwen3", folder) if method == "fp8" else quantized.save_beside(method, "qwen3", folder)
    with pytest.raises(ShardingError, match="quantized"):
        finish(job.shard(str(folder), str(tmp_path / "out"), job.Options("1MB", dtype="bf16")))
