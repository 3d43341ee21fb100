"""Quantized checkpoints in memory, and what a plan makes of them."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from sharding.checkpoint.notes import read_notes
from sharding.core.dtypes import BY_NAME
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.recipe import Recipe
from sharding.core.values import Component, Content, FileEntry, Tensor
from sharding.recipes.quantized import Codes, Grid, Scaled
from tests.folders import bits
from tests.recipes.executor import FILE, ShortChunks, outcome
from tests.tensors import plan_of, stored_tensor

NAMES = {getattr(torch, dtype.torch): name for name, dtype in BY_NAME.items() if hasattr(torch, dtype.torch)}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fp8(of: Recipe, scales: Recipe, stored: str, shape: tuple[int, ...], block: tuple[int, int], dtype: str) -> Scaled:
    """FP8 times scales of the dtype `stored`, one for each `block`, rounded to `dtype`."""
    return Scaled(of, Codes("F8_E4M3"), shape, Grid(scales, Codes(stored), block), dtype)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return bits(tensor)[2]


def in_memory(tensors: Mapping[str, torch.Tensor], config: str) -> tuple[ShortChunks, Content]:
    """A source that holds `tensors` one after another, and the checkpoint it is."""
    stored, end = list[Tensor](), 0
    for name, tensor in tensors.items():
        stored.append(stored_tensor(name, NAMES[tensor.dtype], tuple(tensor.shape), FILE, end, end + tensor.nbytes))
        end += tensor.nbytes
    source = ShortChunks(b"".join(map(bytes_of, tensors.values())), 1 << 16)
    return source, replace(checkpoint_of(stored, end, config), notes=read_notes(source, stored))


def checkpoint_of(tensors: list[Tensor], size: int, config: str) -> Content:
    ref, files = Place("folder", "memory", "0"), (FileEntry(FILE, size),)
    return Content(ref, tuple(tensors), (Component(),), files, (), (), configs={"": config})


def dequantized_tensors(checkpoint: Content, dtype: str = "bf16") -> tuple[Tensor, ...]:
    """The tensors of a checkpoint as a job plans them, in the order of the source."""
    options = Options("1GB", dtype=dtype, dequantize=True, allow_overflow=True)  # type: ignore[arg-type]
    return plan_of(checkpoint, options).tensors


def dequantized_bytes(source: ShortChunks, checkpoint: Content, name: str, dtype: str) -> bytes:
    """The bytes of the tensor `name` as a job makes them."""
    data, _ = outcome(dequantized_tensors(checkpoint, dtype), source)
    return data[name]
