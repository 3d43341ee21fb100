"""A cast gives every number that `tensor.to(dtype)` of torch gives, and counts what it makes infinite."""

import numpy as np
import pytest
import torch

from sharding.core.dtypes import BY_NAME, BY_OPTION, NUMBERS
from sharding.core.errors import OverflowRefused
from sharding.core.limits import BATCH_BYTES
from sharding.core.recipe import Feed
from sharding.core.values import Tensor
from sharding.planning.cast import cast_tensors
from sharding.recipes.cast import Cast
from sharding.recipes.laid import Box, Laid
from sharding.recipes.stored import Stored
from tests.folders import bits
from tests.fuzz.targets import Memory
from tests.recipes.executor import FILE, ShortChunks, moved, outcome, shard_of, tensor_of, whole
from tests.tensors import stored_tensor


def torch_dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, BY_NAME[name].torch)
    return dtype


def patterns(stored: str) -> torch.Tensor:
    """Every pattern of 8 or 16 bits; of more bits, signs and exponents with the mantissas that matter, and random ones.

    Of 32 bits, all of the upper 19 are among them, each with the lower ones between which a rounding to fp16 changes.
    """
    if BY_NAME[stored].bits == 8:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torch_dtype(stored))
    random = np.random.default_rng(0)
    if stored in ("F16", "BF16"):
        return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch_dtype(stored))
    wide, mantissa = (np.uint32, 23) if stored == "F32" else (np.uint64, 52)
    top = np.arange(1 << (np.dtype(wide).itemsize * 8 - mantissa), dtype=wide) << wide(mantissa)
    ones = (1 << mantissa) - 1
    # Around the bits where a rounding ties that drops so many bits, with and without a bit far below.
    edges = {0, 1, ones, *(edge for dropped in range(1, mantissa) for edge in _ties(dropped))}
    some = [top | wide(edge & ones) for edge in edges]
    if stored == "F32":
        upper = np.arange(1 << 19, dtype=wide) << wide(13)
        some += [upper | wide(edge) for edge in (0, 1, 0xFFF, 0x1000, 0x1001, 0x1FFF)]
    some.append(random.integers(0, np.iinfo(wide).max, 200_000, wide, endpoint=True))
    joined = np.concatenate(some)
    return torch.from_numpy(joined.view(np.int32 if stored == "F32" else np.int64)).view(torch_dtype(stored))


def _ties(dropped: int) -> set[int]:
    half = 1 << (dropped - 1)
    return {base + half + near for base in (0, 1 << dropped) for near in (-1, 0, 1)}


PAIRS = [(stored, after.name) for stored in NUMBERS for after in BY_OPTION.values() if stored != after.name]


@pytest.mark.parametrize(("stored", "after"), PAIRS)
def test_every_kind_of_number_is_cast_as_torch_does_whatever_comes_at_a_time(stored: str, after: str) -> None:
    numbers = patterns(stored).repeat(1 + (1 << 16) // len(patterns(stored)))
    if numbers.nbytes < 2 * BATCH_BYTES:  # so that more than one piece of it is cast
        numbers = numbers.repeat(-(-2 * BATCH_BYTES // numbers.nbytes))[:-7]
    expected = numbers.to(torch_dtype(after))
    count = int((expected.isinf() & numbers.double().isfinite()).sum())
    data = bits(numbers)[2]
    tensor = tensor_of(Cast(whole(data), stored, after), after)
    for chunk, batch in ((1 << 20, 1 << 20), (10_007, 1 << 20), (1 << 20, 70_001)):
        found, record = outcome([tensor], ShortChunks(data, chunk, batch))
        assert found["w"] == bits(expected.masked_fill(expected.isnan(), float("nan")))[2]
        assert record.overflowed == ({"w": count} if count else {})


def test_what_is_cast_may_lie_in_any_order() -> None:
    numbers = torch.linspace(-3, 3, 35, dtype=torch.float64).reshape(5, 7)
    boxes = (Box(FILE, 0, (0, 0), (7, 5), (1, 7)),)
    recipe = Cast(Laid(boxes, (7, 5), 8), "F64", "BF16")
    found, _ = outcome([tensor_of(recipe, "BF16")], Memory(bits(numbers)[2]))
    assert found["w"] == bits(numbers.t().to(torch.bfloat16))[2]


# --- What becomes infinite ----------------------------------------------------------------------------------------

LARGE, SMALL = 1e6, 1.5


def numbers(count: int, *large: int) -> np.ndarray:
    array = np.full(count, SMALL, np.float32)
    array[list(large)] = LARGE
    return array


def casting(arrays: dict[str, np.ndarray]) -> tuple[dict[str, Tensor], ShortChunks]:
    """`arrays` one after another in a file, as fp16; and the file, of which what lies between is read too."""
    stored, end = [], 0
    for name, array in arrays.items():
        stored.append(stored_tensor(name, "F32", array.shape, FILE, end, end + array.nbytes))
        end += array.nbytes
    after = cast_tensors(stored, "fp16", {})
    source = ShortChunks(b"".join(array.tobytes() for array in arrays.values()), 1001, batch_bytes=4096)
    source.join_gap_bytes = 4096
    return {tensor.name: tensor for tensor in after}, source


def test_what_lies_between_the_tensors_of_a_shard_is_counted_with_its_own_shard() -> None:
    tensors, source = casting({"a": numbers(20), "between": numbers(20, *range(20)), "c": numbers(20, 7)})
    shards = [shard_of([tensors["a"], tensors["c"]], "outer"), shard_of([tensors["between"]], "inner")]
    _, records = moved(shards, source)
    found = {file: record.overflowed for file, record in records.items()}
    assert found == {"outer": {"c": 1}, "inner": {"between": 20}}


@pytest.mark.parametrize(
    ("count", "large", "words"),
    [
        (300, [5], "1 finite number too"),
        (1234, range(1234), "1,234 finite numbers too"),
        (2 * BATCH_BYTES, [0, 2 * BATCH_BYTES - 1], "2 finite numbers too"),
    ],
    ids=["one", "all", "far apart"],
)
def test_a_refusal_says_how_many_the_whole_tensor_has(count: int, large: list[int], words: str) -> None:
    tensors, source = casting({"a": numbers(9), "b": numbers(count, *large), "c": numbers(9, 1)})
    source.batch_bytes = 1 << 20
    with pytest.raises(OverflowRefused, match=f"^b has {words} large for float16") as refusal:
        outcome(list(tensors.values()), source, may_overflow=False)
    assert "bf16" in refusal.value.hint and "--allow-overflow" in refusal.value.hint
    assert outcome([tensors["a"]], source)[1].overflowed == {}


def test_a_cast_takes_a_few_pieces_of_memory_whatever_the_size_of_the_tensor() -> None:
    zeros = np.zeros(4 * BATCH_BYTES, np.float32)
    recipe = Cast(Stored(0, FILE, 0, zeros.nbytes), "F32", "BF16")
    sizes = list[int]()

    class Inputs(Feed):
        def take(self, count: int) -> memoryview:
            sizes.append(count)
            return memoryview(bytearray(count))

    chunks = [len(chunk.data) for chunk in recipe.make(Inputs(iter(())), kept=None)]  # type: ignore[arg-type]
    assert sum(sizes) == zeros.nbytes and sum(chunks) == recipe.size_bytes
    assert max(sizes) <= BATCH_BYTES and max(chunks) <= BATCH_BYTES
