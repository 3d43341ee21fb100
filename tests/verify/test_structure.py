"""What is known of a copy without reading weights, and what is not."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from sharding import job
from sharding.core.options import Options
from sharding.core.values import Content, TensorDigest
from sharding.verify.structure import Claims, Contrast, Likeness, claims_of, compare_structure, sentence_of
from tests import quantized
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import compared

Tensors = Mapping[str, np.ndarray]
Write = Callable[..., Content]


def stated(folder: Path, variant: str = "") -> Content:
    """The checkpoint in a folder, with the hashes that a Hub would state."""
    checkpoint = job.inspect(str(folder), variant=variant)
    hashes = (sha256((folder / file.path).read_bytes()).hexdigest() for file in checkpoint.weight_files)
    hashed = (replace(file, sha256=one) for file, one in zip(checkpoint.weight_files, hashes, strict=True))
    return replace(checkpoint, weight_files=tuple(hashed))


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a checkpoint with these tensors, in one file or in several."""

    def write(
        name: str, tensors: Tensors, files: int = 1, file: str = "model.safetensors", variant: str = ""
    ) -> Content:
        parts: dict[str, Tensors] = {file: tensors}
        if files > 1:
            names = [f"model-{n + 1:05}-of-{files:05}.safetensors" for n in range(files)]
            parts = {part: {key: tensors[key] for key in list(tensors)[n::files]} for n, part in enumerate(names)}
        return stated(write_checkpoint(tmp_path / name, parts, files > 1), variant)

    return write


@pytest.fixture
def original(write: Write) -> Content:
    return write("original", random_tensors())


def test_equal_files_are_the_same_by_their_hashes_whatever_their_names(original: Content, write: Write) -> None:
    likeness = compare_structure(original, write("copy", random_tensors()))
    assert (likeness.verdict, likeness.in_same_files, likeness.tensors) == ("same-files", 14, 14)
    assert likeness.mismatches == ()
    renamed = write("renamed", random_tensors(), file="model.bf16.safetensors", variant="bf16")
    assert compare_structure(original, renamed).verdict == "same-files"


def test_without_equal_hashes_the_structure_is_the_same_and_the_numbers_are_unknown(
    original: Content, write: Write
) -> None:
    unstated = replace(original, weight_files=tuple(replace(one, sha256=None) for one in original.weight_files))
    sharded = [write(f"copy-{seed}", random_tensors(seed=seed), 3) for seed in (0, 1)]  # the same numbers, and others
    for one, other in ((original, unstated), (unstated, unstated), *((original, copy) for copy in sharded)):
        likeness = compare_structure(one, other)
        assert (likeness.verdict, likeness.in_same_files) == ("same-structure", 0)
    changed = random_tensors()
    changed["layers.1.weight"] = changed["layers.1.weight"] + 1
    likeness = compare_structure(write("a", random_tensors(), 2), write("b", changed, 2))
    assert (likeness.verdict, likeness.in_same_files) == ("same-structure", 7), "those in equal files count"


def test_every_kind_of_difference_is_named_as_verify_names_it(original: Content, write: Write, tmp_path: Path) -> None:
    changed = random_tensors()
    changed["layers.12.weight"] = changed.pop("layers.11.weight")
    changed["layers.2.weight"] = changed["layers.2.weight"][:5]
    changed["norm.steps"] = changed["norm.steps"].astype(np.int32)
    likeness = compare_structure(original, write("copy", changed))
    assert likeness.verdict == "different"
    assert [(one.tensor, one.kind, one.original, one.copy) for one in likeness.mismatches] == [
        ("layers.2.weight", "shape", "F32 [5000]", "F32 [5]"),
        ("layers.11.weight", "missing", "F32 [5000]", ""),
        ("layers.12.weight", "added", "", "F32 [5000]"),
        ("norm.steps", "dtype", "I64 [7]", "I32 [7]"),
    ]
    read = {(one.tensor, one.problem) for one in compared(tmp_path / "original", tmp_path / "copy").mismatches}
    assert {(one.tensor, one.problem) for one in likeness.mismatches} == read
    assert likeness.have_common and not compare_structure(original, write("other", {"x": np.ones(3)})).have_common


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_cast_is_named_and_verify_with_it_finds_the_same_tensors(dtype: str, tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "original", {"model.safetensors": random_tensors()}, False)
    (tmp_path / "original/config.json").unlink()
    *_, _ = job.shard(str(tmp_path / "original"), str(tmp_path / "copy"), Options("60kB", dtype=dtype))  # type: ignore[arg-type]
    likeness = compare_structure(stated(tmp_path / "original"), stated(tmp_path / "copy"))
    assert (likeness.verdict, likeness.asked, likeness.in_same_files) == ("converted", {"dtype": dtype}, 0)
    assert compared(tmp_path / "original", tmp_path / "copy", **likeness.asked).identical


def test_a_cast_may_leave_tensors_in_fp32_and_one_tensor_in_another_dtype_is_no_cast(
    original: Content, write: Write
) -> None:
    tensors = random_tensors()
    half = {name: tensor.astype(np.float16) for name, tensor in tensors.items()}
    wide = {**half, "layers.3.weight": tensors["layers.3.weight"]}
    likeness = compare_structure(original, write("copy", {**wide, "norm.steps": tensors["norm.steps"]}))
    assert (likeness.verdict, likeness.asked) == ("converted", {"dtype": "fp16"})
    likeness = compare_structure(write("half", half), write("wide", wide))
    assert (likeness.verdict, likeness.asked) == ("different", {})
    assert [one.tensor for one in likeness.mismatches] == ["layers.3.weight"]
    mixed = {**tensors, "layers.3.weight": tensors["layers.3.weight"].astype(np.float64)}
    assert compare_structure(original, write("mixed", mixed)).verdict == "different"
    # Nor is a tensor that became wider while the others became narrower.
    layers = [f"layers.{n}.weight" for n in range(12)]
    before = {name: np.ones(3, np.float16 if name == layers[3] else np.float32) for name in layers}
    after = {name: np.ones(3, np.float32 if name == layers[3] else np.float16) for name in layers}
    likeness = compare_structure(write("before", before), write("after", after))
    assert (likeness.verdict, [one.tensor for one in likeness.mismatches]) == ("different", [layers[3]])


def test_a_dequantized_copy_is_named_and_a_tensor_that_it_lacks_too(tmp_path: Path) -> None:
    folder = quantized.save_fp8("qwen3", tmp_path / "fp8")
    *_, _ = job.shard(str(folder), str(tmp_path / "wide"), Options("1MB", dequantize=True, dtype="fp32"))
    likeness = compare_structure(stated(folder), stated(tmp_path / "wide"))
    assert (likeness.verdict, likeness.asked) == ("converted", {"dtype": "fp32", "dequantize": True})
    *_, _ = job.shard(str(folder), str(tmp_path / "copy"), Options("1MB", dequantize=True))
    first, second = stated(folder), stated(tmp_path / "copy")
    likeness = compare_structure(first, second)
    assert (likeness.verdict, likeness.asked) == ("converted", {"dequantize": True})
    assert "dequantized to bf16 (fp8, one scale" in sentence_of(likeness)
    short = replace(second, tensors=second.tensors[1:])
    likeness = compare_structure(first, short)
    assert likeness.verdict == "different"
    assert [(one.tensor, one.kind) for one in likeness.mismatches] == [(second.tensors[0].name, "missing")]
    # The other way round nothing is known that would make one of the other.
    assert compare_structure(second, first).verdict == "different"


def test_a_tied_weight_that_was_left_out_is_said_to_be_one(write: Write, tmp_path: Path) -> None:
    tied, folder = torch.ones(4, 3), tmp_path / "tied"
    folder.mkdir()
    torch.save({"embed.weight": tied, "lm_head.weight": tied, "norm": torch.ones(2)}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({"architectures": ["X"]}))
    both = job.inspect(str(folder)), write("copy", {"embed.weight": tied.numpy(), "norm": np.ones(2, np.float32)})
    for pair, kind in ((both, "missing"), (both[::-1], "added")):
        (one,) = compare_structure(*pair).mismatches
        assert (one.tensor, one.kind) == ("lm_head.weight", kind) and "embed.weight" in one.note


def test_weights_beside_a_model_count(original: Content) -> None:
    one, other, unstated = (
        replace(original, copied_weights=(replace(original.weight_files[0], path="adapter_model.bin", sha256=sha256),))
        for sha256 in ("1" * 64, "2" * 64, None)
    )
    likeness = compare_structure(one, other)
    assert likeness.verdict == "different"
    assert likeness.mismatches == (Contrast("adapter_model.bin", "file", "its bytes differ"),)
    assert compare_structure(one, one).verdict == "same-files"
    assert compare_structure(one, unstated).verdict == "same-structure"


@pytest.mark.parametrize(
    "name", ["model.fp16.safetensors", "evil.safetensors", "consolidated.safetensors", "pytorch_model.bin", "x.gguf"]
)
def test_weights_of_the_copy_that_are_not_compared_are_named(name: str, tmp_path: Path) -> None:
    folders = [write_checkpoint(tmp_path / side, {"model.safetensors": random_tensors()}, False) for side in "ab"]
    (folders[1] / name).write_bytes((folders[1] / "model.safetensors").read_bytes())
    (folders[1] / "training_args.bin").write_bytes(b"no weights")
    original, copy = map(stated, folders)
    assert compare_structure(original, copy).unread == (name,)
    assert compare_structure(copy, original).unread == ()


def test_commits_on_no_branch_are_kept_of_both(original: Content) -> None:
    one, other = replace(original, unreached=("a/b@1",)), replace(original, unreached=("c/d@2",))
    assert compare_structure(one, other).unreached == ("a/b@1", "c/d@2")


def test_stored_digests_are_claims_beside_the_verdict(original: Content, write: Write) -> None:
    one = {"a": TensorDigest("F32", (1,), "aa"), "b": TensorDigest("F32", (1,), "bb")}
    assert claims_of(one, one) == Claims(2, ())
    assert claims_of(one, {**one, "b": TensorDigest("F32", (1,), "xx")}) == Claims(1, ("b",))
    likeness: Likeness = compare_structure(original, write("copy", random_tensors(), 2))
    claimed = replace(likeness, claims=Claims(14, ()))
    assert (claimed.verdict, sentence_of(claimed)) == ("same-structure", sentence_of(likeness))
