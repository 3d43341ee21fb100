"""MXFP4 weights are their numbers times their scales, transposed: bit for bit what transformers computes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.values import Tensor
from sharding.recipes.laid import Box, Laid
from sharding.transfer import pages
from tests.quantized import plain_fp4
from tests.recipes.checkpoints import DTYPES, bytes_of, checkpoint_of, dequantized_bytes, in_memory
from tests.recipes.executor import FILE, ShortChunks

CONFIG = '{"quantization_config": {"quant_method": "mxfp4"}}'


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4)),
    page=st.sampled_from([4, 1 << 18]),
    batch=st.sampled_from([5, 64, 1 << 20]),
    dtype=st.sampled_from(list(DTYPES)),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_weight_is_its_numbers_transposed_whatever_comes_at_a_time(
    shape: tuple[int, int, int], page: int, batch: int, dtype: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", page)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    source, checkpoint = in_memory({"e.up_blocks": blocks, "e.up_scales": scales}, CONFIG)
    source.batch_bytes = batch
    expected = plain_fp4(blocks, scales).to(DTYPES[dtype])
    assert dequantized_bytes(source, checkpoint, "e.up", dtype) == bytes_of(expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_byte_and_every_scale_gives_what_transformers_computes(dtype: str) -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1).repeat(1, 1, 16)
    source, checkpoint = in_memory({"e.up_blocks": blocks, "e.up_scales": scales}, CONFIG)
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
    checkpoint = checkpoint_of(tensors, len(data), CONFIG)
    found = dequantized_bytes(ShortChunks(data), checkpoint, "e.up", "fp32")
    assert found == bytes_of(plain_fp4(blocks, scales))
