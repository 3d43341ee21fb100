"""Quantized weights are computed with their scales: each number is what the plain formula gives, in little memory."""

import json
import tracemalloc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.values import Tensor
from sharding.recipes import quantized
from sharding.recipes.laid import Box, Laid
from sharding.recipes.stored import Stored
from sharding.transfer import pages
from sharding.transfer.stream import only_tensors
from sharding.verify.digests import Reader
from tests.folders import result_of
from tests.quantized import compressed, plain_fp4, spread
from tests.recipes.checkpoints import (
    DTYPES,
    bytes_of,
    checkpoint_of,
    dequantized_bytes,
    dequantized_tensors,
    fp8,
    in_memory,
)
from tests.recipes.executor import FILE, ShortChunks, outcome, shard_of, tensor_of
from tests.recipes.updates import with_one_nan

SEEDS = st.integers(0, 2**32 - 1)
IN_FP8, IN_MXFP4 = (json.dumps({"quantization_config": {"quant_method": name}}) for name in ("fp8", "mxfp4"))


def random_weight(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Bytes of every kind, NaNs among them."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)


@given(
    sizes=st.tuples(st.lists(st.integers(1, 2), max_size=2), *[st.integers(1, 24)] * 2, *[st.integers(1, 13)] * 2),
    cut=st.tuples(
        st.sampled_from([1, 7, 64, 32768]), st.sampled_from([4, 24, 1 << 18]), st.sampled_from([5, 64, 1 << 20])
    ),
    scale=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu]),
    dtype=st.sampled_from(list(DTYPES)),
    seed=SEEDS,
)
def test_any_weight_in_any_blocks_is_the_product_whatever_comes_at_a_time(
    sizes: Any, cut: tuple[int, int, int], scale: torch.dtype, dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lead, rows, columns, *block), (piece, page, batch) = sizes, cut
    monkeypatch.setattr(quantized, "PIECE_ELEMENTS", piece)
    monkeypatch.setattr(pages, "PAGE_BYTES", page)
    generator = torch.Generator().manual_seed(seed)
    weight = random_weight((*lead, rows, columns), generator)
    grid = (*lead, -(-rows // block[0]), -(-columns // block[1]))
    scales = torch.rand(grid, generator=generator).to(scale)
    source, checkpoint = in_memory(
        {"a.weight": torch.zeros(3), "m.weight": weight, "m.weight_scale_inv": scales},
        json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}}),
    )
    source.batch_bytes = batch
    expected = (weight.float() * spread(scales, block, weight.shape)).to(DTYPES[dtype])
    assert dequantized_bytes(source, checkpoint, "m.weight", dtype) == bytes_of(with_one_nan(expected))


@given(
    strategy=st.sampled_from(["tensor", "channel", "block"]),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    scale=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    experts=st.booleans(),
    dtype=st.sampled_from(list(DTYPES)),
    seed=SEEDS,
)
def test_compressed_tensors_multiplies_in_the_dtype_of_the_scales_but_experts_in_float32(
    strategy: str, rows: int, columns: int, scale: torch.dtype, experts: bool, dtype: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = random_weight((rows, columns), generator)
    block = {"tensor": (rows, columns), "channel": (1, columns), "block": (128, 128)}[strategy]
    scales = torch.rand(-(-rows // block[0]), -(-columns // block[1]), generator=generator).to(scale)
    stored = scales.reshape(1) if strategy == "tensor" else scales
    name = "mlp.experts.3.up_proj.weight" if experts else "mlp.up_proj.weight"
    config = json.dumps({"quantization_config": compressed(strategy)})
    source, checkpoint = in_memory({name: weight, f"{name}_scale": stored}, config)
    whole = spread(scales, block, weight.shape)
    # As `_dequantize` of compressed-tensors 0.20, and as transformers does where it unites experts.
    expected = weight.float() * whole if experts else weight.to(scale) * whole.to(scale)
    assert dequantized_bytes(source, checkpoint, name, dtype) == bytes_of(with_one_nan(expected.to(DTYPES[dtype])))


def test_numbers_and_scales_may_lie_in_pieces_and_in_any_order() -> None:
    weight = random_weight((6, 10), torch.Generator().manual_seed(1))
    scales = torch.rand(2, 3)
    turned, right, left = bytes_of(weight.t()), bytes_of(scales[:, 1:]), bytes_of(scales[:, :1])
    data = turned + right + left
    packed = Laid((Box(FILE, 0, (0, 0), (6, 10), (1, 6)),), (6, 10), 1)
    boxes = Box(FILE, 76, (0, 0), (2, 1), (1, 1)), Box(FILE, 60, (0, 1), (2, 2), (2, 1))
    recipe = fp8(packed, Laid(boxes, (2, 3), 4), "F32", (6, 10), (4, 4), "F32")
    expected = with_one_nan(weight.float() * spread(scales, (4, 4), weight.shape))
    assert outcome([tensor_of(recipe)], ShortChunks(data))[0]["w"] == bytes_of(expected)


def test_scales_that_lie_together_cost_one_read_and_weights_that_do_another() -> None:
    tensors = {f"m.{number}.weight_scale_inv": torch.rand(2, 2) for number in range(20)}
    zeros = torch.zeros(200, 200).to(torch.float8_e4m3fn)
    tensors |= {f"m.{number}.weight": zeros for number in range(20)}
    source, checkpoint = in_memory(tensors, IN_FP8)
    outcome(dequantized_tensors(checkpoint), source)
    assert sorted(source.noted) == [(0, 320), (320, 320 + 20 * 40_000)]


def test_little_of_a_large_weight_is_in_memory_at_a_time() -> None:
    weight = torch.zeros(4096, 4096, dtype=torch.uint8).view(torch.float8_e4m3fn)
    source, checkpoint = in_memory({"m.weight_scale_inv": torch.ones(32, 32), "m.weight": weight}, IN_FP8)
    source.batch_bytes = 1 << 18
    tensors = dequantized_tensors(checkpoint)
    small = fp8(Stored(0, FILE, 0, 4), Stored(0, FILE, 0, 4), "F32", (2, 2), (2, 2), "F32")
    result_of(Reader().digest_shards([shard_of([tensor_of(small)])], only_tensors, [source]))  # what is imported
    tracemalloc.start()
    records = result_of(Reader().digest_shards([shard_of(tensors)], only_tensors, [source]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert records["out"].bytes == tensors[0].bytes == 2 * weight.numel()
    assert peak < weight.numel() / 2  # it varies with what the threads do at the same time


# --- MXFP4 --------------------------------------------------------------------------------------------------


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4)),
    page=st.sampled_from([4, 1 << 18]),
    batch=st.sampled_from([5, 64, 1 << 20]),
    dtype=st.sampled_from(list(DTYPES)),
    seed=SEEDS,
)
def test_any_weight_is_its_numbers_transposed_whatever_comes_at_a_time(
    shape: tuple[int, int, int], page: int, batch: int, dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", page)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    source, checkpoint = in_memory({"e.up_blocks": blocks, "e.up_scales": scales}, IN_MXFP4)
    source.batch_bytes = batch
    expected = plain_fp4(blocks, scales).to(DTYPES[dtype])
    assert dequantized_bytes(source, checkpoint, "e.up", dtype) == bytes_of(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_and_every_scale_gives_what_transformers_computes(dtype: str) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1).repeat(1, 1, 16)
    source, checkpoint = in_memory({"e.up_blocks": blocks, "e.up_scales": scales}, IN_MXFP4)
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=DTYPES[dtype])
    assert dequantized_bytes(source, checkpoint, "e.up", dtype) == bytes_of(theirs)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_experts_in_pieces_of_ranks_are_computed_as_if_they_lay_together(axis: int) -> None:
    blocks = torch.randint(0, 256, (4, 6, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (4, 6, 2), dtype=torch.uint8)
    data, tensors = b"", []
    for name, tensor in (("e.up_blocks", blocks), ("e.up_scales", scales)):
        boxes, offset = [], 0
        for half in tensor.split(-(-tensor.shape[axis] // 2), axis):
            offsets = tuple(offset if at == axis else 0 for at in range(half.ndim))
            boxes.append(Box(FILE, len(data), offsets, tuple(half.shape), half.contiguous().stride()))
            data += bytes_of(half)
            offset += half.shape[axis]
        tensors.append(Tensor(name, "U8", tuple(tensor.shape), Laid(tuple(boxes), tuple(tensor.shape), 1)))
    checkpoint = checkpoint_of(tensors, len(data), IN_MXFP4)
    found = dequantized_bytes(ShortChunks(data), checkpoint, "e.up", "fp32")
    assert found == bytes_of(plain_fp4(blocks, scales))
