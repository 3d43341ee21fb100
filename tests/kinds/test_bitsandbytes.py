"""Devices are planned for weights of bitsandbytes, the printed code loads them, and --dequantize computes its numbers."""

import json
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.storage.folder_source import open_folder
from tests import models, quantized
from tests.folders import reshard
from tests.kinds import libraries
from tests.recipes.checkpoints import DTYPES, bytes_of, dequantized_bytes, in_memory

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::UserWarning")]
KINDS: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
elsewhere = libraries.elsewhere


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


# --- Ordinary weights ----------------------------------------------------------------------------------------

SHAPES = [(1, 2), (3, 5), (64, 256), (33, 130), (2, 4096), (7, 129, 3)]
"""No rows that are shorter than a block and long enough for AVX-512: there bitsandbytes 0.50 mixes up its blocks."""
Cases = list[tuple[dict[str, torch.Tensor], torch.Tensor]]


def quantized_weights(kind: str, nested: bool, size: int, dtype: torch.dtype) -> Cases:
    """Weights with every code, as bitsandbytes saves them, and what it computes of them."""
    from bitsandbytes import functional

    cases: Cases = []
    for shape in SHAPES:
        torch.manual_seed(len(cases))
        weight = (torch.randn(shape) * torch.logspace(-3, 3, shape[0]).reshape(-1, *[1] * (len(shape) - 1))).to(dtype)
        packed, state = functional.quantize_4bit(weight, None, None, size, nested, kind)
        packed = torch.randint(0, 256, packed.shape, dtype=torch.uint8)
        parts = {f"m.weight.{name}": tensor for name, tensor in state.as_dict(packed=True).items()}
        cases.append(({"m.weight": packed, **parts}, functional.dequantize_4bit(packed, state)))
    return cases


def quantized_rows() -> Cases:
    from bitsandbytes import functional

    cases: Cases = []
    for shape in SHAPES[:5]:
        codes, scales = torch.randint(-128, 128, shape).to(torch.int8), torch.rand(shape[0]) * 100
        parts = {"m.weight": codes, "m.SCB": scales, "m.weight_format": torch.tensor(0, dtype=torch.uint8)}
        cases.append((parts, functional.int8_vectorwise_dequant(codes, scales)))
    return cases


def same_as_theirs(cases: Cases) -> None:
    for tensors, expected in cases:
        for said in (json.dumps({"quantization_config": {"quant_method": "bitsandbytes"}}), "{}"):
            source, checkpoint = in_memory(tensors, said)
            for dtype, name in DTYPES.items():
                data = bytearray(dequantized_bytes(source, checkpoint, "m.weight", dtype))
                found = torch.frombuffer(data, dtype=name).reshape(expected.shape)
                # The sign of a zero in FP4 depends on the kernel that bitsandbytes takes.
                assert bytes_of(found + 0) == bytes_of(expected.to(name) + 0), (expected.shape, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_weights_of_4_bits_become_what_bitsandbytes_computes(
    kind: str, nested: bool, dtype: torch.dtype, elsewhere: ProcessPoolExecutor
) -> None:
    for size in (64, 256):
        same_as_theirs(elsewhere.submit(quantized_weights, kind, nested, size, dtype).result())


def test_weights_of_8_bits_become_what_bitsandbytes_computes(elsewhere: ProcessPoolExecutor) -> None:
    same_as_theirs(elsewhere.submit(quantized_rows).result())


def dequantized_logits(folder: str) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, device_map={"": "cpu"}, dtype=torch.bfloat16)
    return models.logits(model.dequantize().eval())


def test_an_ordinary_copy_has_the_logits_of_the_model_that_bitsandbytes_dequantizes(
    folder: Path, elsewhere: ProcessPoolExecutor, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    reshard(folder, tmp_path / "out", "300kB", dequantize=True)
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16)
    theirs = elsewhere.submit(dequantized_logits, str(folder)).result()
    assert torch.equal(models.logits(ours.eval()), theirs)
