"""Weights are computed with their scales: any range of any shape, bit for bit what the plain formula gives."""

import json
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from threading import Event, Thread

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharding.core.computed import Computed, Numbers
from sharding.core.gathered import Box, Gathered
from sharding.transfer.dequantize_source import DequantizeSource

from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.core.values import Checkpoint, Component, FileEntry, RepoRef
from sharding.planning.dequantize import dequantized
from sharding.transfer.kept import Kept
from sharding.transfer.prepare import making_of
from tests.folders import bits
from tests.fuzz.targets import Memory
from tests.quantized import compressed, plain_fp4, spread
from tests.tensors import stored_tensor

FILE = "pytorch_model.bin"
"""What the memory source calls its only file."""
SEEDS = st.integers(0, 2**32 - 1)
CUT = st.tuples(st.floats(0, 1), st.floats(0, 1))


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bits(tensor)[2]


def in_memory(tensors: dict[str, torch.Tensor], config: str) -> tuple[Memory, Checkpoint]:
    """A source that holds `tensors` one after another, and the checkpoint it is."""
    names = {torch.uint8: "U8", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e8m0fnu: "F8_E8M0"}
    names |= {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    entries, end = [], 0
    for name, tensor in tensors.items():
        entries.append(stored_tensor(name, names[tensor.dtype], tuple(tensor.shape), FILE, end, end + tensor.nbytes))
        end += tensor.nbytes
    source = Memory(b"".join(map(bytes_of, tensors.values())))
    files = (FileEntry(FILE, end),)
    ref = RepoRef("folder", "memory", "0")
    return source, Checkpoint(ref, tuple(entries), (Component(),), files, (), (), configs={"": config})


def read(source: Memory, checkpoint: Checkpoint, name: str, cut: Sequence[float], dtype: str = "fp32") -> bytes:
    """The bytes of a tensor between two shares of it, as a job with `dtype` reads them."""
    options = Options(dtype=dtype, dequantize=True, allow_overflow=True)  # type: ignore[arg-type]
    after = dequantized(checkpoint, options)
    reading = making_of(after, options, {}).read_from(source)
    position = [tensor.name for tensor in after.tensors].index(name)
    entry = reading._tensors[FILE][position][1]
    assert entry.name == name
    start, stop = sorted(int(share * entry.bytes) for share in cut)
    return b"".join(reading.read(FILE, entry.start_byte + start, entry.start_byte + stop))


def portion(tensor: torch.Tensor, cut: Sequence[float]) -> bytes:
    data = bytes_of(tensor)
    start, stop = sorted(int(share * len(data)) for share in cut)
    return data[start:stop]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    lead=st.lists(st.integers(1, 3), max_size=2),
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    block=st.tuples(st.integers(1, 17), st.integers(1, 17)),
    piece=st.sampled_from([1, 7, 64, 32768]),
    page=st.sampled_from([4, 24, 1 << 18]),
    scale=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float8_e8m0fnu]),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    cut=CUT,
    seed=SEEDS,
)
def test_any_range_of_any_fp8_weight_in_any_blocks_is_the_product(
    lead: list[int],
    rows: int,
    columns: int,
    block: tuple[int, int],
    piece: int,
    page: int,
    scale: torch.dtype,
    dtype: str,
    cut: tuple[float, float],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sharding.transfer.dequantize_source._PIECE_ELEMENTS", piece)
    monkeypatch.setattr("sharding.transfer.pages.PAGE_BYTES", page)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, (*lead, rows, columns), dtype=torch.uint8, generator=generator)
    weight = weight.view(torch.float8_e4m3fn)
    grid = (*lead, -(-rows // block[0]), -(-columns // block[1]))
    scales = torch.rand(grid, generator=generator).to(scale)
    before = torch.zeros(3, dtype=torch.float32)
    source, checkpoint = in_memory(
        {"a.weight": before, "m.weight": weight, "m.weight_scale_inv": scales},
        json.dumps({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}}),
    )
    product = weight.float() * spread(scales, block, weight.shape)
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert read(source, checkpoint, "m.weight", cut, dtype) == portion(product.to(torch_dtype), cut)


@settings(max_examples=60)
@given(
    strategy=st.sampled_from(["tensor", "channel", "block"]),
    rows=st.integers(1, 300),
    columns=st.integers(1, 300),
    scale=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    experts=st.booleans(),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    cut=CUT,
    seed=SEEDS,
)
def test_compressed_tensors_multiplies_in_the_dtype_of_the_scales_but_experts_in_float32(
    strategy: str,
    rows: int,
    columns: int,
    scale: torch.dtype,
    experts: bool,
    dtype: str,
    cut: tuple[float, float],
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randint(0, 256, (rows, columns), dtype=torch.uint8, generator=generator).view(torch.float8_e4m3fn)
    block = {"tensor": (rows, columns), "channel": (1, columns), "block": (128, 128)}[strategy]
    scales = torch.rand(-(-rows // block[0]), -(-columns // block[1]), generator=generator).to(scale)
    stored = scales.reshape(1) if strategy == "tensor" else scales
    name = "mlp.experts.3.up_proj.weight" if experts else "mlp.up_proj.weight"
    config = json.dumps({"quantization_config": compressed(strategy)})
    source, checkpoint = in_memory({name: weight, f"{name}_scale": stored}, config)
    whole = spread(scales, block, weight.shape)
    # As `_dequantize` of compressed-tensors 0.20, and as transformers does where it unites experts.
    product = weight.float() * whole if experts else weight.to(scale) * whole.to(scale)
    if product.dtype != torch.float32:  # which NaN it is, torch decides by where it stands
        product[product.isnan()] = float("nan")
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    assert read(source, checkpoint, name, cut, dtype) == portion(product.to(torch_dtype), cut)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    experts=st.integers(1, 3),
    rows=st.integers(1, 9),
    groups=st.integers(1, 4),
    tile=st.sampled_from([16, 100, 1 << 24]),
    page=st.sampled_from([4, 1 << 18]),
    dtype=st.sampled_from(["fp32", "bf16", "fp16"]),
    cut=CUT,
    seed=SEEDS,
)
def test_any_range_of_any_mxfp4_weight_is_its_numbers_transposed(
    experts: int,
    rows: int,
    groups: int,
    tile: int,
    page: int,
    dtype: str,
    cut: tuple[float, float],
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sharding.transfer.strided_source.TILE_BYTES", tile)
    monkeypatch.setattr("sharding.transfer.strided_source.GATHERED_SPAN_BYTES", tile)
    monkeypatch.setattr("sharding.transfer.pages.PAGE_BYTES", page)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, groups, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(0, 256, (experts, rows, groups), dtype=torch.uint8, generator=generator)
    source, checkpoint = in_memory(
        {"e.up_blocks": blocks, "e.up_scales": scales}, '{"quantization_config": {"quant_method": "mxfp4"}}'
    )
    torch_dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    expected = plain_fp4(blocks, scales).to(torch_dtype)
    assert read(source, checkpoint, "e.up", cut, dtype) == portion(expected, cut)


def test_every_byte_of_fp4_and_of_its_scales_gives_what_transformers_computes() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 16, 16).repeat(1, 256, 1, 1)
    scales = torch.arange(256, dtype=torch.uint8).reshape(1, 256, 1).repeat(1, 1, 16)
    config = '{"quantization_config": {"quant_method": "mxfp4"}}'
    source, checkpoint = in_memory({"e.up_blocks": blocks, "e.up_scales": scales}, config)
    for dtype, torch_dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch_dtype)
        assert read(source, checkpoint, "e.up", (0, 1), dtype) == bytes_of(theirs)


def test_what_lies_before_computed_tensors_is_passed_on() -> None:
    weight = torch.randint(0, 256, (4, 6), dtype=torch.uint8).view(torch.float8_e4m3fn)
    data = bytes_of(weight) + bytes_of(torch.tensor([2.0]))
    end = len(data)
    numbers, scales = Numbers(FILE, 0, "F8_E4M3", (4, 6)), Numbers(FILE, 24, "F32", (1,))
    part = Computed(FILE, end, end + 96, "F32", (4, 6), "fp8", numbers, scales, (4, 6))
    whole = b"".join(DequantizeSource(Memory(data), [part]).read(FILE, 0, end + 96))
    assert whole == data + bytes_of(2 * weight.float())


class Noting(Memory):
    """A source that notes what is read of it, and gives it in short chunks."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.noted: list[tuple[int, int]] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.noted.append((start_byte, end_byte))
        for at in range(start_byte, end_byte, 1 << 16):
            yield from super().read(file, at, min(at + (1 << 16), end_byte))


def test_scales_that_lie_together_cost_one_read_and_weights_that_do_another() -> None:
    tensors = {f"m.{number}.weight_scale_inv": torch.rand(2, 2) for number in range(20)}
    zeros = torch.zeros(200, 200).to(torch.float8_e4m3fn)
    tensors |= {f"m.{number}.weight": zeros for number in range(20)}
    memory, checkpoint = in_memory(tensors, '{"quantization_config": {"quant_method": "fp8"}}')
    source = Noting(b"".join(memory._files.values()))
    computed = dequantized(checkpoint, Options(dequantize=True)).computed
    list(DequantizeSource(source, computed).read(FILE, computed[0].start_byte, computed[-1].end_byte))
    assert sorted(source.noted) == [(0, 320), (320, 320 + 20 * 40_000)]


def test_a_page_that_could_not_be_read_is_read_again_by_who_asks_next() -> None:
    kept: Kept[int] = Kept(100)
    with pytest.raises(SourceError):
        kept.get("page", 10, lambda: (_ for _ in ()).throw(SourceError("gone")))
    assert kept.get("page", 10, lambda: 7) == 7
    assert kept.get("page", 10, lambda: 8) == 7
    kept.get("large", 95, lambda: 1)  # which leaves no room for the first
    assert kept.get("page", 10, lambda: 9) == 9


def test_who_asks_for_what_another_thread_makes_waits_for_it() -> None:
    kept: Kept[str] = Kept(100)
    begun, go_on, found = Event(), Event(), []

    def make() -> str:
        begun.set()
        assert go_on.wait(30)
        return "made once"

    first = Thread(target=lambda: found.append(kept.get("tile", 1, make)))
    first.start()
    assert begun.wait(30)
    second = Thread(target=lambda: found.append(kept.get("tile", 1, lambda: "made twice")))
    second.start()
    go_on.set()
    for thread in (first, second):
        thread.join(30)
    assert found == ["made once"] * 2


def test_little_of_a_large_weight_is_in_memory_at_a_time() -> None:
    weight = torch.zeros(4096, 4096, dtype=torch.uint8).view(torch.float8_e4m3fn)
    memory, checkpoint = in_memory(
        {"m.weight_scale_inv": torch.ones(32, 32), "m.weight": weight},
        '{"quantization_config": {"quant_method": "fp8"}}',
    )
    (part,) = dequantized(checkpoint, Options(dequantize=True)).computed
    reading = DequantizeSource(Noting(b"".join(memory._files.values())), [part])
    assert len(b"".join(reading.read(FILE, part.start_byte, part.start_byte + 4096))) == 4096  # what is imported
    tracemalloc.start()
    size = sum(len(chunk) for chunk in reading.read(FILE, part.start_byte, part.end_byte))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == 4 * weight.numel()
    assert peak < 2_000_000


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_experts_in_pieces_of_ranks_are_computed_as_if_they_lay_together(axis: int) -> None:
    blocks = torch.randint(0, 256, (4, 6, 2, 16), dtype=torch.uint8)
    scales = torch.randint(100, 150, (4, 6, 2), dtype=torch.uint8)
    data, entries, gathered = b"", [], []
    for tensor in (blocks, scales):
        boxes, offset = [], 0
        for half in tensor.split(-(-tensor.shape[axis] // 2), axis):
            strides = half.contiguous().stride()
            offsets = tuple(offset if at == axis else 0 for at in range(half.ndim))
            boxes.append(Box(FILE, len(data), offsets, tuple(half.shape), strides))
            data += bytes_of(half)
            offset += half.shape[axis]
        gathered.append((tuple(tensor.shape), tuple(boxes)))
    end, parts = len(data), []
    for name, (shape, boxes) in zip(("e.up_blocks", "e.up_scales"), gathered, strict=True):
        size = prod(shape)
        parts.append(Gathered(FILE, end, end + size, 1, shape, boxes))
        entries.append(stored_tensor(name, "U8", shape, FILE, end, end + size))
        end += size
    files = (FileEntry(FILE, len(data)),)
    config = '{"quantization_config": {"quant_method": "mxfp4"}}'
    checkpoint = Checkpoint(RepoRef("folder", "memory", "0"), tuple(entries), (Component(),), files, (), ())
    checkpoint = replace(checkpoint, gathered=tuple(parts), configs={"": config})
    found = read(Memory(data), checkpoint, "e.up", (0, 1))
    assert found == bytes_of(plain_fp4(blocks, scales))
