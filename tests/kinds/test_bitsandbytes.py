"""Devices are planned for 4-bit and 8-bit weights as bitsandbytes has them, and the printed code loads them."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.storage.folder_source import open_folder
from tests import models, quantized
from tests.kinds import libraries

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::UserWarning")]
KINDS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    with libraries.process() as pool:
        yield pool


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, elsewhere: ProcessPoolExecutor, tmp_path: Path) -> Path:
    # Kernels of bitsandbytes for CPUs take rows of 64 numbers at least.
    quantized.build("qwen3", tmp_path / "plain")
    elsewhere.submit(quantize, str(tmp_path / "plain"), str(tmp_path / "in"), KINDS[request.param]).result()
    return tmp_path / "in"


def quantize(plain: str, out: str, how: dict[str, Any]) -> None:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    asked = BitsAndBytesConfig(**how)
    model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=asked, device_map={"": "cpu"})
    model.save_pretrained(out, max_shard_size="300kB")


def load(snippet: str, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the code; return the logits of its model, and those of a model that was loaded by the name of its class."""
    from transformers import AutoModelForCausalLM

    space: dict[str, Any] = {}
    exec(snippet, space)
    theirs = AutoModelForCausalLM.from_pretrained(folder, device_map={"": "cpu"})
    return models.logits(space["model"].eval()), models.logits(theirs.eval())


def is_taken(folder: str, device_map: dict[str, str]) -> bool:
    """Return whether transformers takes such a device map for these weights."""
    from transformers import AutoConfig
    from transformers.quantizers.auto import AutoHfQuantizer

    quantization = AutoConfig.from_pretrained(folder).quantization_config
    try:
        AutoHfQuantizer.from_config(quantization, pre_quantized=True).validate_environment(device_map=device_map)
    except ValueError:
        return False
    return True


def test_the_printed_code_loads_weights_that_no_gpu_has_room_for(folder: Path, elsewhere: ProcessPoolExecutor) -> None:
    plan = job.devices(str(folder), "cuda:0=1kB,cpu=1GB")
    assert plan.fits
    assert set(plan.device_map.values()) == {"cpu"}
    ours, theirs = elsewhere.submit(load, plan.snippet, str(folder)).result()
    assert torch.equal(ours, theirs)


def test_code_is_printed_exactly_if_transformers_takes_the_devices(
    folder: Path, elsewhere: ProcessPoolExecutor
) -> None:
    total = read_checkpoint(open_folder(str(folder))).total_bytes
    seen = set()
    for gpu, memory in ((2.0, 1.0), (1.0, 0.1), (0.6, 0.6), (0.5, 1.0), (0.1, 0.5)):
        plan = job.devices(str(folder), f"cuda:0={int(gpu * total)}B,cpu={int(memory * total)}B")
        taken = elsewhere.submit(is_taken, str(folder), dict(plan.device_map)).result()
        assert taken == bool(plan.snippet) == (not plan.trouble)
        assert plan.fits == (max(gpu, memory) >= 1.0)
        seen.add(plan.fits)
    assert seen == {True, False}


def test_what_fits_a_place_fits_its_devices_up_to_the_last_byte(folder: Path) -> None:
    total = read_checkpoint(open_folder(str(folder))).total_bytes
    assert sum(load.bytes for load in job.devices(str(folder), "colab-t4").devices) == total
    for room in (total, total - 1):
        assert job.devices(str(folder), f"cuda:0={room}B").fits == (room >= total)
