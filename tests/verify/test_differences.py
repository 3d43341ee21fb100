"""By how much tensors differ: as exact arithmetic says, whatever their dtypes and wherever their bytes come from."""

import json
import math
import struct
import sys
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from sharding.core.dtypes import BY_NAME
from sharding.core.verification import Difference, Verification
from sharding.recipes.cast import numbers
from sharding.verify import differences
from sharding.verify.differences import Sums
from tests.casts import MIXED, save_mixed
from tests.folders import compared
from tests.quantized import write

NUMERIC = [name for name, dtype in BY_NAME.items() if dtype.bits >= 8 and name != "C64"]
WHOLE = {"U64", "I64", "U32", "I32", "U16", "I16", "U8", "I8", "BOOL"}
MOST = sys.float_info.max


def as_doubles(data: bytes, dtype: str) -> list[float]:
    """The numbers in `data` as torch reads them."""
    array = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return [float(number) for number in array.view(getattr(torch, BY_NAME[dtype].torch)).to(torch.float64)]


def expected(first: list[float], second: list[float]) -> tuple[float | None, float | None, float | None, float]:
    """The four figures, by exact arithmetic on float64."""
    pairs = list(zip(first, second, strict=True))
    equal = sum(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs) / len(pairs) if pairs else 1.0
    finite = [(Fraction(a), Fraction(b)) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if not finite:
        return None, None, None, equal
    # The difference of two float64 is one too, so it is rounded.
    gaps = [min(abs(float(a) - float(b)), MOST) for a, b in finite]
    lengths = sum(a * a for a, _ in finite) * sum(b * b for _, b in finite)
    product = sum(a * b for a, b in finite)
    cosine = math.sqrt(product * product / lengths) * (-1 if product < 0 else 1) if lengths else None
    return max(gaps), float(sum(map(Fraction, gaps)) / len(gaps)), cosine, equal


def is_as_expected(found: Difference, figures: tuple[float | None, ...]) -> bool:
    pairs = zip((found.largest_abs, found.mean_abs, found.cosine, found.equal), figures, strict=True)
    return all(
        one is other
        or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-9, abs_tol=slack))
        for (one, other), slack in zip(pairs, (0, 0, 1e-12, 0), strict=True)
    )


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, bytes, str, bytes, int]:
    """Two dtypes, the bytes of as many numbers of each, often alike, and where to cut them."""
    first = draw(st.sampled_from(NUMERIC))
    second = draw(st.sampled_from([first, draw(st.sampled_from(NUMERIC))]))
    count = draw(st.integers(1, 12))

    def some(dtype: str) -> bytes:
        size = count * BY_NAME[dtype].bits // 8
        given = draw(st.binary(min_size=size, max_size=size))
        return bytes(byte & 1 for byte in given) if dtype == "BOOL" else given

    one = other = some(first)
    if first != second or draw(st.booleans()):
        other = some(second)
    else:
        at = draw(st.integers(0, len(one) - 1))
        other = one[:at] + bytes([one[at] ^ 1]) + one[at + 1 :]
    return first, one, second, other, draw(st.integers(0, count))


@given(pairs())
@pytest.mark.filterwarnings("error")
def test_the_figures_of_any_two_dtypes_are_those_of_exact_arithmetic(given: tuple[str, bytes, str, bytes, int]) -> None:
    first, one, second, other, cut = given
    arrays, sums = (numbers(one, first), numbers(other, second)), Sums()
    for part in (slice(cut), slice(cut, None)):
        sums.add(*(array[part] for array in arrays))
    figures = expected(as_doubles(one, first), as_doubles(other, second))
    if {first, second} <= WHOLE:  # they are compared to the last digit
        same = [int(a) == int(b) for a, b in zip(*arrays, strict=True)]
        figures = (*figures[:3], sum(same) / len(same))
    assert is_as_expected(sums.difference("w"), figures)


def sums(first: Any, second: Any) -> Difference:
    found = Sums()
    found.add(np.array(first), np.array(second))
    return found.difference("w")


@pytest.mark.filterwarnings("error")
def test_numbers_at_the_ends_of_float64_have_figures_that_json_can_hold() -> None:
    apart = sums([MOST, -MOST, MOST], [-MOST, MOST, -MOST])
    assert apart == Difference("w", MOST, MOST, -1.0, 0.0)
    assert sums([1e300, 1e300], [1e300, 0.0]).cosine == pytest.approx(math.sqrt(0.5))
    tiny = sums([1e-310, 0.0], [2e-310, 0.0])
    assert (tiny.cosine, tiny.largest_abs, tiny.equal) == (pytest.approx(1.0), pytest.approx(1e-310), 0.5)
    assert sums([1e300, 1e-300], [1e300, 0.0]).mean_abs == pytest.approx(5e-301)


def test_what_has_no_direction_has_no_cosine_and_what_has_no_finite_pair_has_only_a_share() -> None:
    assert sums([0.0, 0.0], [0.0, 1.0]) == Difference("w", 1.0, 0.5, None, 0.5)
    assert sums([np.nan, np.inf, np.inf], [np.nan, np.inf, -np.inf]) == Difference("w", equal=2 / 3)
    assert sums([np.nan, 1.0], [2.0, 4.0]) == Difference("w", 3.0, 3.0, 1.0, 0.0)
    assert sums([2.0, 1.0], [np.inf, 4.0]) == Difference("w", 3.0, 3.0, 1.0, 0.0)
    assert Sums().difference("w") == Difference("w", equal=1.0)


def test_whole_numbers_beyond_float64_are_equal_only_if_all_their_digits_are() -> None:
    assert sums([2**53, 5], [2**53 + 1, 5]).equal == 0.5
    assert sums(np.array([2**64 - 1, 1], np.uint64), np.array([-1, 1])).equal == 0.5


# Whole checkpoints.


def save(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    save_file({name: one.clone() for name, one in tensors.items()}, folder / "model.safetensors", {"format": "pt"})
    return folder


def verified(first: object, second: object, **choices: Any) -> Verification:
    return compared(first, second, **{"numeric": True, **choices})


def differing(first: object, second: object, **choices: Any) -> dict[str, Difference]:
    found = verified(first, second, **choices)
    assert found.differences is not None
    assert {one.tensor for one in found.differences} == {one.tensor for one in found.mismatches}
    assert found.identical == (not found.differences)
    return {one.tensor: one for one in found.differences}


def figures_of(first: torch.Tensor, second: torch.Tensor) -> tuple[float | None, ...]:
    return expected(*(tensor.double().flatten().tolist() for tensor in (first, second)))


kinds = st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.bool])
models = st.dictionaries(
    st.sampled_from([f"layers.{n}.weight" for n in range(12)]),
    st.tuples(kinds, st.sampled_from([(), (0, 4), (4, 0), (1,), (7, 3), (3, 7), (21,), (40,)]), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def tensors_of(model: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {
        name: torch.randn(shape, generator=torch.Generator().manual_seed(seed)).mul(3).to(dtype)
        for name, (dtype, shape, seed) in model.items()
    }


@settings(max_examples=60)
@given(models, models, st.sampled_from([1, 8, 1 << 13]))
def test_each_tensor_that_differs_is_named_with_its_figures_and_no_other(
    monkeypatch: pytest.MonkeyPatch, one: dict[str, Any], other: dict[str, Any], at_a_time: int
) -> None:
    monkeypatch.setattr("sharding.verify.digests.SPAN_BYTES", 64)
    monkeypatch.setattr(differences, "_ELEMENTS", at_a_time)
    first, second = tensors_of(one), tensors_of(other)
    with tempfile.TemporaryDirectory() as folder:
        found = differing(save(Path(folder, "one"), first), save(Path(folder, "two"), second))
    differ = {name for name in {*one, *other} if one.get(name) != other.get(name)}
    for name in differ & first.keys() & second.keys():  # other seeds may give the same
        a, b = first[name], second[name]
        if (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(a, b):
            differ.remove(name)
    assert list(found) == sorted(differ, key=lambda name: int(name.split(".")[1])), "in natural order"
    for name, difference in found.items():
        if name not in first or name not in second:
            where = "first" if name in first else "second"
            assert difference == Difference(name, note=f"only in the {where}")
        elif (a := first[name]).shape != (b := second[name]).shape:
            note = f"{list(a.shape)} in the first and {list(b.shape)} in the second"
            assert difference == Difference(name, note=note)
        else:
            assert is_as_expected(difference, figures_of(a, b)), name
            assert (" in the first and " in difference.note) == (a.dtype != b.dtype)


def test_a_note_says_what_the_figures_do_not(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    nans = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    same, halves = torch.tensor([1.5, -2.0]), torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    one = {"dtype": same, "nan": nans[:1], "zero": torch.tensor([0.0, 1.0])}
    two = {"dtype": halves, "nan": nans[1:], "zero": torch.tensor([-0.0, 1.0])}
    one |= {"w": torch.tensor([0.5, 1.0, 2.0, inf]), "x": torch.tensor([1.0, 2.0])}
    two |= {"w": torch.tensor([nan, inf, 2.0, inf]), "x": torch.tensor([1.0, nan])}
    equal = "the numbers are equal, the bytes differ"
    assert differing(save(tmp_path / "one", one), save(tmp_path / "two", two)) == {
        "dtype": Difference("dtype", 0.0, 0.0, 1.0, 1.0, "F32 in the first and BF16 in the second"),
        "nan": Difference("nan", equal=1.0, note=equal),
        "zero": Difference("zero", 0.0, 0.0, 1.0, 1.0, equal),
        "w": Difference("w", 0.0, 0.0, 1.0, 0.5, "2 numbers that differ are NaN or infinite"),
        "x": Difference("x", 0.0, 0.0, 1.0, 0.5, "1 number that differs is NaN or infinite"),
    }


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3", "F6_E3M2", "C64"])
def test_a_dtype_without_numbers_is_named_and_has_no_figures(dtype: str, tmp_path: Path) -> None:
    size = 4 * BY_NAME[dtype].bits // 8
    header = json.dumps({"w": {"dtype": dtype, "shape": [4], "data_offsets": [0, size]}}).encode()
    for name in "ab":
        (tmp_path / name).mkdir()
        data = struct.pack("<Q", len(header)) + header + name.encode() * size
        (tmp_path / name / "model.safetensors").write_bytes(data)
    note = f"{dtype} cannot be compared as numbers"
    assert differing(tmp_path / "a", tmp_path / "b") == {"w": Difference("w", note=note)}


def test_a_cast_is_compared_after_the_cast_and_one_that_is_right_has_no_differences(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    source = save_mixed(tmp_path / "source")
    halves = {n: tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor for n, tensor in MIXED.items()}
    copy = save(tmp_path / "copy", halves)
    assert verified(source, copy, dtype="bf16").differences == ()
    found = differing(source, copy)
    assert found.keys() == {"a", "c", "f", "g", "h", "i"}
    for name, difference in found.items():
        assert is_as_expected(difference, figures_of(MIXED[name], halves[name]))
    halves["a"] = halves["a"] + 1
    found = differing(source, save(tmp_path / "other", halves), dtype="bf16")
    assert found.keys() == {"a"}
    assert is_as_expected(found["a"], figures_of(MIXED["a"].bfloat16(), halves["a"]))


def test_weights_of_torch_that_are_transposed_are_compared_in_their_order(tmp_path: Path) -> None:
    weights = {"w": torch.randn(30, 7).T, "v": torch.randn(50)[10:20]}
    (tmp_path / "bin").mkdir()
    torch.save(weights, tmp_path / "bin/pytorch_model.bin")
    other = {name: (tensor + 0.5).contiguous() for name, tensor in weights.items()}
    for pair in ((tmp_path / "bin", save(tmp_path / "st", other)), (tmp_path / "st", tmp_path / "bin")):
        found = differing(*pair)
        assert found.keys() == weights.keys()
        for name, difference in found.items():
            assert is_as_expected(difference, figures_of(weights[name], other[name]))


@pytest.mark.filterwarnings("ignore")
def test_what_ranks_saved_is_compared_with_an_ordinary_checkpoint(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    weights = {f"layers.{n}.weight": torch.randn(20, 30) for n in range(3)}
    dcp.save({"model": weights}, storage_writer=dcp.FileSystemWriter(tmp_path / "ranks"), no_dist=True)
    other = {**weights, "layers.1.weight": weights["layers.1.weight"] * 2}
    found = differing(tmp_path / "ranks", save(tmp_path / "st", other))
    assert found.keys() == {"layers.1.weight"}
    assert is_as_expected(found["layers.1.weight"], figures_of(*(one["layers.1.weight"] for one in (weights, other))))


def test_quantized_weights_are_compared_as_what_they_stand_for(tmp_path: Path) -> None:
    packed = torch.randn(40, 30).to(torch.float8_e4m3fn)
    stored = {"a.weight": packed, "a.weight_scale_inv": torch.full((1, 1), 2.0)}
    source = write(tmp_path / "fp8", stored, {"quant_method": "fp8", "weight_block_size": [128, 128]})
    right = (packed.float() * 2).bfloat16()
    copies = [save(tmp_path / f"{factor}", {"a.weight": right * factor}) for factor in (1, 1.5)]
    assert verified(source, copies[0], dequantize=True).differences == ()
    found = differing(source, copies[1], dequantize=True)
    assert is_as_expected(found["a.weight"], figures_of(right, right * 1.5))


def test_the_method_counts_the_tensors_whose_numbers_were_compared_and_claims_nothing_of_others(tmp_path: Path) -> None:
    of, zero = torch.ones(2), torch.zeros(2)
    one = save(tmp_path / "one", {"a": of, "b": of, "c": of})
    two = save(tmp_path / "two", {"a": of, "b": zero, "d": of})
    three = save(tmp_path / "three", {"a": zero, "b": zero, "c": torch.ones(1)})
    for other in (one, save(tmp_path / "four", {"a": of, "b": of})):
        assert "float64" not in verified(one, other).method
    assert verified(one, one).differences == ()
    assert verified(one, two).method.endswith("; the numbers of 1 tensor that differs were compared in float64")
    assert verified(one, three).method.endswith("; the numbers of 2 tensors that differ were compared in float64")
    assert verified(one, two, numeric=False).differences is None
