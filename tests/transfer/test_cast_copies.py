"""A cast copy holds the numbers that `tensor.to(dtype)` gives, and says that it is one."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from sharding import job
from sharding.core.dtypes import BY_OPTION
from sharding.core.errors import OverflowRefused, UsageError
from sharding.core.options import Options
from sharding.formats.quantization import configured
from tests import models
from tests.casts import MIXED, cast, save_mixed
from tests.folders import bits, compared, kept, tensors, until_shard
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


@pytest.mark.parametrize("dtype", BY_OPTION)
def test_a_copy_holds_what_torch_makes_of_floats_and_the_rest_as_it_was(dtype: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    cast(save_mixed(tmp_path / "in"), tmp_path / "out", dtype, size="200B")
    floats = {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn}
    target = getattr(torch, BY_OPTION[dtype].torch)
    expected = dict(MIXED)
    for name, tensor in MIXED.items():
        if tensor.dtype in floats - {target}:  # of a NaN that is cast it is always the same one
            expected[name] = (made := tensor.to(target)).masked_fill(made.isnan(), float("nan"))
    found = tensors(tmp_path / "out")
    assert {name: bits(tensor) for name, tensor in found.items()} == {n: bits(t) for n, t in expected.items()}


def llama(folder: Path, large: int = 0) -> Path:
    """A Llama in fp32; so many numbers of its last layer are beyond fp16."""
    models.build("llama", torch.float32).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.11.mlp.up_proj.weight"].view(-1)[:large] = 1e6
    weights["model.norm.weight"][0] = float("inf")  # which stays what it is
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_the_result_says_that_it_is_a_cast_and_not_that_it_is_the_source(tmp_path: Path) -> None:
    source = llama(tmp_path / "source")
    report = cast(source, tmp_path / "out", strategy="blocks")
    assert report.verification.identical
    (change,) = report.plan.made
    assert change == report.verification.made[0] and change.changed == change.of == len(report.plan.weight_map)
    assert report.verification.method.endswith("compared with the source's, cast to fp16")
    card = (tmp_path / "out/README.md").read_text()
    assert "cast to fp16" in card and "bit-identical to the original" not in card
    before, after = tensors(source), tensors(tmp_path / "out")
    assert all(torch.equal(before[name].to(torch.float16), tensor) for name, tensor in after.items())
    written = json.loads((tmp_path / "out/sharding_report.json").read_text())
    assert (written["plan"]["asked"], written["source"]["dtypes"].keys()) == ({"dtype": "fp16"}, {"F32"})


def test_verify_compares_a_copy_with_the_cast_source(tmp_path: Path) -> None:
    source = llama(tmp_path / "source")
    cast(source, tmp_path / "out", "bf16")
    assert compared(source, tmp_path / "out", dtype="bf16").identical
    assert not compared(source, tmp_path / "out", dtype="fp16").identical
    assert not compared(source, tmp_path / "out").identical
    with pytest.raises(UsageError, match="The stored digests"):
        compared(source, tmp_path / "out", dtype="bf16", quick=True)


def test_another_dtype_is_another_job_and_the_same_one_goes_on(tmp_path: Path) -> None:
    source = llama(tmp_path / "source")
    for dtype in ("fp16", "bf16"):
        out = str(tmp_path / dtype)
        until_shard(job.shard(str(source), out, Options("20kB", dtype="fp16")), 3, stop=True)
        staged = job.find_unfinished(out)
        assert staged and (staged.options.dtype, staged.options.allow_overflow) == ("fp16", False)
        found = kept(job.shard(str(source), out, Options("20kB", dtype=dtype)))
        assert found >= 3 if dtype == "fp16" else found == 0


def test_a_configuration_says_the_new_dtype_wherever_it_said_one() -> None:
    before = {
        "torch_dtype": "float32",
        "text_config": {"dtype": "torch.bfloat16", "layers": [{"torch_dtype": "float16"}]},
        "audio_config": {"torch_dtype": None, "mamba_ssm_dtype": "float32"},
        "names": {"dtype": "a name"},
    }
    assert configured(json.dumps(before), "float16") == {
        "torch_dtype": "float16",
        "text_config": {"dtype": "float16", "layers": [{"torch_dtype": "float16"}]},
        "audio_config": {"torch_dtype": None, "mamba_ssm_dtype": "float32"},
        "names": {"dtype": "a name"},
    }
    assert configured('{"model_type": "llama"}', "float16") == {"model_type": "llama", "dtype": "float16"}
    assert configured("{}", "float16") == {}
    assert configured("[", "float16") is None


def test_what_a_job_has_staged_that_was_allowed_to_overflow_is_not_taken_over_by_one_that_is_not(
    hub: InHouse, tmp_path: Path
) -> None:
    source, out = push(hub, llama(tmp_path / "source", large=300), "alice/wide"), str(tmp_path / "out")
    options, at = Options("20kB", dtype="fp16", allow_overflow=True), {"endpoint": hub.address, "token": TOKEN}
    until_shard(job.shard(source, out, options, **at), 0, stop=True)  # type: ignore[arg-type]
    with pytest.raises(OverflowRefused, match="300 finite numbers"):
        list(job.shard(source, out, replace(options, allow_overflow=False), **at))  # type: ignore[arg-type]
