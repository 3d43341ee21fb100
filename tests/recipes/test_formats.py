"""Weights of each quantizer become what its own library computes, bit for bit, whatever comes at a time."""

import json
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.format import infer_module_format
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32, unpack_from_int32
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter
from compressed_tensors.quantization import QuantizationConfig
from hypothesis import given
from hypothesis import strategies as st

from sharding.recipes import quantized
from sharding.transfer import pages
from tests.quantized import BLOCK, MXFP4, MXFP8, NVFP4, compressed, integers, random_bytes
from tests.recipes.checkpoints import DTYPES, bytes_of, dequantized_bytes, in_memory
from tests.recipes.test_quantized import SEEDS
from tests.recipes.updates import with_one_nan

Tensors = dict[str, torch.Tensor]
CUTS = st.tuples(st.sampled_from([1, 70, 32768]), st.sampled_from([4, 24, 1 << 18]), st.sampled_from([5, 1 << 20]))
LONG = st.tuples(st.integers(1, 150), st.integers(1, 20))
"""Shapes with several blocks along one side; a square of them takes long in small pieces."""
FLOATS = st.sampled_from([torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that holds a weight to what is `expected`, dequantized in steps, pages and batches of a size."""

    def hold(
        tensors: Tensors, said: dict[str, Any] | None, cut: tuple[int, int, int], expected: torch.Tensor, *dtypes: str
    ) -> None:
        monkeypatch.setattr(quantized, "PIECE_ELEMENTS", cut[0])
        monkeypatch.setattr(quantized, "BATCH_BYTES", 8 * cut[0])
        monkeypatch.setattr(pages, "PAGE_BYTES", cut[1])
        source, checkpoint = in_memory(tensors, json.dumps({"quantization_config": said} if said else {}))
        source.batch_bytes = cut[2]
        for dtype in dtypes or ["bf16"]:
            found = dequantized_bytes(source, checkpoint, "m.weight", dtype)
            assert found == bytes_of(with_one_nan(expected.to(DTYPES[dtype])))

    return hold


def theirs(tensors: Tensors, said: dict[str, Any]) -> torch.Tensor:
    """What compressed-tensors makes of the parts of a module, as its `CompressedTensorsDequantizer` does."""
    (scheme,) = QuantizationConfig.model_validate(said).config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(infer_module_format(torch.nn.Linear, scheme))
    parts = {name.removeprefix("m."): tensor for name, tensor in tensors.items()}
    made: torch.Tensor = compressor.decompress(parts, scheme)["weight"]
    return made


# --- compressed-tensors --------------------------------------------------------------------------------------


@given(
    bits=st.sampled_from([2, 4, 8]),
    rows=st.integers(9, 40),  # fewer make its `unpack_from_int32` fail
    groups=st.integers(1, 5),
    group=st.sampled_from([None, 4, 32]),
    scale=FLOATS,
    symmetric=st.booleans(),
    cut=CUTS,
    seed=SEEDS,
)
def test_packed_integers(
    bits: int, rows: int, groups: int, group: int | None, scale: torch.dtype, symmetric: bool, cut: Any, seed: int,
    hold: Any,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    columns = groups * group if group else 7 * groups
    of_row = groups if group else 1
    tensors = {
        "m.weight_packed": random_bytes(torch.int32, rows, -(-columns * bits // 32)),
        "m.weight_scale": random_bytes(scale, rows, of_row),
        "m.weight_shape": torch.tensor([rows, columns]),
    }
    if not symmetric:
        tensors["m.weight_zero_point"] = random_bytes(torch.int32, -(-rows * bits // 32), of_row)
    said = integers(bits, group, symmetric=symmetric)
    hold(tensors, said, cut, theirs(tensors, said), *DTYPES)


@given(rows=st.integers(9, 20), groups=st.integers(1, 5), symmetric=st.booleans(), cut=CUTS, seed=SEEDS)
def test_packed_integers_whose_columns_have_scales_in_another_order(
    rows: int, groups: int, symmetric: bool, cut: Any, seed: int, hold: Any
) -> None:
    """compressed-tensors 0.20 reads no `weight_g_idx` any more, so it gets the columns in their order."""
    torch.manual_seed(seed)
    index = torch.arange(groups).repeat_interleave(8)[torch.randperm(groups * 8)].int()
    tensors = {
        "m.weight_packed": random_bytes(torch.int32, rows, groups),
        "m.weight_scale": random_bytes(torch.bfloat16, rows, groups),
    }
    if not symmetric:
        tensors["m.weight_zero_point"] = random_bytes(torch.int32, -(-rows // 8), groups)
    said = integers(4, 8, symmetric=symmetric)
    shape = {"m.weight_shape": torch.tensor([rows, groups * 8])}
    order = index.argsort(stable=True)
    codes = unpack_from_int32(tensors["m.weight_packed"], 4, torch.Size([rows, groups * 8]))
    sorted_codes = {"m.weight_packed": pack_to_int32(codes[:, order], 4)}
    expected = theirs(tensors | shape | sorted_codes, said)[:, order.argsort()]
    for numbers, wanted in ((index, expected), (torch.full_like(index, -1), theirs(tensors | shape, said))):
        hold(tensors | {"m.weight_g_idx": numbers}, said, cut, wanted)


@given(
    shape=LONG | LONG.map(lambda shape: shape[::-1]),
    strategy=st.sampled_from(["tensor", "channel", "block", "group"]),
    scale=FLOATS,
    symmetric=st.booleans(),
    form=st.sampled_from(["int-quantized", "naive-quantized"]),
    cut=CUTS,
    seed=SEEDS,
)
def test_integers_of_8_bits(
    shape: tuple[int, int], strategy: str, scale: torch.dtype, symmetric: bool, form: str, cut: Any, seed: int,
    hold: Any,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    rows, columns = shape
    columns = columns // 4 * 4 + 4 if strategy == "group" else columns
    grid = {"tensor": (1,), "channel": (rows, 1), "group": (rows, columns // 4)}.get(strategy)
    grid = grid or (-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    tensors = {"m.weight": random_bytes(torch.int8, rows, columns), "m.weight_scale": random_bytes(scale, *grid)}
    if not symmetric:
        tensors["m.weight_zero_point"] = random_bytes(torch.int8, *grid)
    said = compressed(strategy, format=form)
    weights = said["config_groups"]["group_0"]["weights"]
    weights |= {"type": "int", "symmetric": symmetric, "group_size": 4 if strategy == "group" else None}
    said["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int", "dynamic": True}
    hold(tensors, said, cut, theirs(tensors, said), *DTYPES)


@given(rows=st.integers(1, 40), groups=st.integers(1, 20), form=st.sampled_from(["nv", "mx"]), cut=CUTS, seed=SEEDS)
def test_fp4_of_compressed_tensors(rows: int, groups: int, form: str, cut: Any, seed: int, hold: Any) -> None:
    torch.manual_seed(seed)
    group = {"nv": 16, "mx": 32}[form]
    tensors = {"m.weight_packed": random_bytes(torch.uint8, rows, groups * group // 2)}
    said = {"nv": NVFP4, "mx": MXFP4}[form]
    if form == "nv":
        tensors["m.weight_scale"] = random_bytes(torch.float8_e4m3fn, rows, groups)
        tensors["m.weight_global_scale"] = torch.rand(1) * 1000
    else:
        tensors["m.weight_scale"] = torch.randint(0, 255, (rows, groups), dtype=torch.uint8)
    hold(tensors, said, cut, theirs(tensors, said))


@given(rows=st.integers(1, 40), groups=st.integers(1, 20), cut=CUTS, seed=SEEDS)
def test_fp8_with_a_power_of_two_for_32(rows: int, groups: int, cut: Any, seed: int, hold: Any) -> None:
    torch.manual_seed(seed)
    tensors = {
        "m.weight": random_bytes(torch.float8_e4m3fn, rows, groups * 32),
        "m.weight_scale": torch.randint(0, 256, (rows, groups), dtype=torch.uint8),
    }
    hold(tensors, MXFP8, cut, theirs(tensors, MXFP8))


# --- FP8 and FP4 as transformers dequantizes them ------------------------------------------------------------


@given(
    rows=st.integers(1, 2),
    columns=st.integers(1, 2),
    block=st.sampled_from([(128, 128), (1, 32)]),
    is_fp4=st.booleans(),
    scale=st.sampled_from([torch.uint8, torch.float8_e8m0fnu]),
    names=st.sampled_from(["weight_scale_inv", "scale"]),
    cut=CUTS,
    seed=SEEDS,
)
def test_deepseek_v4_and_mxfp8(
    rows: int, columns: int, block: tuple[int, int], is_fp4: bool, scale: torch.dtype, names: str, cut: Any, seed: int,
    hold: Any,
) -> None:  # fmt: skip
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    torch.manual_seed(seed)
    block = (1, 32) if is_fp4 else block
    grid = torch.randint(0, 256, (rows, columns), dtype=torch.uint8).view(scale)
    shape = rows * block[0], columns * block[1]
    codes = random_bytes(torch.int8, shape[0], shape[1] // 2) if is_fp4 else random_bytes(torch.float8_e4m3fn, *shape)
    said = {"quant_method": "fp8", "weight_block_size": [128, 128], "scale_fmt": "ue8m0", "expert_dtype": "fp4"}
    said = said if is_fp4 or block[0] > 1 else {"quant_method": "mxfp8"}
    expected = Fp8Dequantize(None)._dequantize_one(codes, grid, torch.bfloat16)  # type: ignore[no-untyped-call]
    hold({"m.weight": codes, f"m.{names}": grid}, said, cut, expected)


@given(
    shape=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    grid=st.sampled_from(["tensor", "none", "channel", "channels", "blocks"]),
    name=st.sampled_from(["weight_scale", "weight_scale_inv", "scale", "scale_weight", "qscale_weight"]),
    said=st.sampled_from([None, {"quant_method": "fp8"}, {"quant_method": "modelopt", "quant_algo": "FP8"}]),
    stored=FLOATS,
    cut=CUTS,
    seed=SEEDS,
)
def test_fp8_by_every_name(
    shape: tuple[int, int], grid: str, name: str, said: Any, stored: torch.dtype, cut: Any, seed: int, hold: Any
) -> None:
    torch.manual_seed(seed)
    sizes = {"tensor": (1,), "none": (), "channel": (shape[0], 1), "channels": (shape[0],), "blocks": (1, 1)}[grid]
    scales = torch.rand(sizes).to(stored)
    codes = random_bytes(torch.float8_e4m3fn, *shape)
    expected = codes.float() * (scales.float()[:, None] if grid == "channels" else scales.float())
    hold({"m.weight": codes, f"m.{name}": scales, "m.input_scale": torch.ones(1)}, said, cut, expected, *DTYPES)


@given(rows=st.integers(1, 40), groups=st.integers(1, 20), said=st.booleans(), cut=CUTS, seed=SEEDS)
def test_nvfp4_of_modelopt(rows: int, groups: int, said: bool, cut: Any, seed: int, hold: Any) -> None:
    """`NVFP4QTensor.dequantize` of nvidia-modelopt 0.47, whose second scale multiplies."""
    torch.manual_seed(seed)
    tensors = {
        "m.weight": random_bytes(torch.uint8, rows, groups * 8),
        "m.weight_scale": random_bytes(torch.float8_e4m3fn, rows, groups),
        "m.weight_scale_2": torch.rand(()) / 100,
        "m.input_scale": torch.rand(()),
    }
    numbers = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    codes = torch.stack([tensors["m.weight"] & 15, tensors["m.weight"] >> 4], -1).flatten(1).long()
    signed = torch.where(codes > 7, -numbers[codes & 7], numbers[codes & 7])
    scales = tensors["m.weight_scale"].float() * tensors["m.weight_scale_2"]
    expected = signed * scales.repeat_interleave(16, 1)
    how = {"quant_method": "modelopt", "quant_algo": "NVFP4"} if said else None
    hold(tensors, how, cut, expected)


@given(count=st.integers(1, 99), nested=st.integers(2, 5), cut=CUTS, seed=SEEDS)
def test_nf4_whose_scales_have_scales(count: int, nested: int, cut: Any, seed: int, hold: Any) -> None:
    """As `dequantize_4bit` of bitsandbytes 0.50, whose upper four bits come first."""
    torch.manual_seed(seed)
    state = {"blocksize": 4, "nested_blocksize": nested, "nested_offset": 0.25, "dtype": "float32", "shape": [count]}
    tensors = {
        "m.weight": random_bytes(torch.uint8, -(-count // 2), 1),
        "m.weight.absmax": random_bytes(torch.uint8, -(-count // 4)),
        "m.weight.nested_absmax": torch.rand(-(-count // (4 * nested))),
        "m.weight.nested_quant_map": torch.rand(256),
        "m.weight.quant_map": torch.rand(16),
        "m.weight.quant_state.bitsandbytes__nf4": torch.frombuffer(
            bytearray(json.dumps(state).encode()), dtype=torch.uint8
        ),
    }
    packed, absmax = (tensors[name].flatten().long() for name in ("m.weight", "m.weight.absmax"))
    spread = tensors["m.weight.nested_absmax"].repeat_interleave(nested)[: len(absmax)]
    scales = tensors["m.weight.nested_quant_map"][absmax] * spread + 0.25
    codes = torch.stack([packed >> 4, packed & 15], -1).flatten()[:count]
    expected = tensors["m.weight.quant_map"][codes] * scales.repeat_interleave(4)[:count]
    hold(tensors, None, cut, expected, "fp32")


# --- GPTQ and AWQ, which lie transposed ----------------------------------------------------------------------


@given(
    bits=st.sampled_from([2, 4, 8]),
    outs=st.integers(1, 3),
    groups=st.integers(1, 4),
    group=st.sampled_from([-1, 16, 32]),
    version=st.sampled_from(["gptq", "gptq_v2"]),
    order=st.sampled_from(["none", "usual", "other"]),
    scale=FLOATS,
    tile=st.sampled_from([64, 1 << 20]),
    cut=CUTS,
    seed=SEEDS,
)
def test_gptq(
    bits: int, outs: int, groups: int, group: int, version: str, order: str, scale: torch.dtype, tile: int, cut: Any,
    seed: int, hold: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """As the torch kernel of GPTQModel and AutoGPTQ: scales * (weight - zeros), in the dtype of the scales.

    The zeros of v1 are one too small, and 0 is the largest number there (`_correct_gptq_v1_qzeros` of GPTQModel 7.7).
    """
    monkeypatch.setattr("sharding.planning.quantizers.transposed.TILE_BYTES", tile)
    torch.manual_seed(seed)
    size = group if group > 0 else 32
    ins, outs, groups = groups * size, outs * 32 // bits, groups if group > 0 else 1
    ins = ins if group > 0 else 32
    index = torch.arange(ins) // size
    index = index[torch.randperm(ins)] if order == "other" else index
    words = random_bytes(torch.int32, ins * bits // 32, outs)
    zeros = random_bytes(torch.int32, groups, outs * bits // 32)
    scales = torch.rand(groups, outs).to(scale)
    tensors = {"m.qweight": words, "m.qzeros": zeros, "m.scales": scales}
    if order != "none":
        tensors["m.g_idx"] = index.int()
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    unpacked = (words[:, None] >> shifts[None, :, None]).reshape(ins, outs) & (1 << bits) - 1
    points = (zeros[..., None] >> shifts).reshape(groups, outs) & (1 << bits) - 1
    points = points + (version == "gptq") & (1 << bits) - 1
    expected = scales[index] * (unpacked - points[index])
    assert expected.dtype == scale
    said = {"quant_method": "gptq", "bits": bits, "group_size": group, "checkpoint_format": version}
    hold(tensors, said, cut, expected.t())


@given(
    outs=st.integers(1, 5),
    groups=st.integers(1, 4),
    group=st.sampled_from([8, 32]),
    tile=st.sampled_from([64, 1 << 20]),
    cut=CUTS,
    seed=SEEDS,
)
def test_awq(
    outs: int, groups: int, group: int, tile: int, cut: Any, seed: int, hold: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What compressed-tensors makes of its own conversion of AutoAWQ's tensors."""
    monkeypatch.setattr("sharding.planning.quantizers.transposed.TILE_BYTES", tile)
    torch.manual_seed(seed)
    ins, outs = groups * group, outs * 8 + 8  # one word fails as above
    tensors = {
        "m.qweight": random_bytes(torch.int32, ins, outs // 8),
        "m.qzeros": random_bytes(torch.int32, groups, outs // 8),
        "m.scales": torch.rand(groups, outs).half(),
    }
    said = {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}
    converted = AutoAWQConverter.from_autoawq_config(said).process(dict(tensors))
    hold(tensors, said, cut, theirs(converted, integers(4, group, symmetric=False)))
