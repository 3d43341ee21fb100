"""Verifying names what differs, and refuses digests that are none."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.events import Progress, Verified
from sharding.recipes.stored import place_of
from tests.conftest import write_checkpoint
from tests.folders import finish
from tests.promises import promise

INDEX = "model.safetensors.index.json"


def test_verify_names_the_tensor_that_differs(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    path = out / json.loads((out / INDEX).read_text())["weight_map"]["layers.7.weight"]
    with safe_open(path, "numpy") as file:
        tensors = {name: file.get_tensor(name) for name in file.offset_keys()}
    tensors["layers.7.weight"].view(np.uint8)[1234] ^= 1
    save_file(tensors, path, metadata={"format": "pt"})
    *_, verified = job.verify(str(checkpoint), str(out))
    assert isinstance(verified, Verified)
    assert [(mismatch.tensor, mismatch.problem) for mismatch in verified.verification.mismatches] == [
        ("layers.7.weight", "its bytes differ")
    ]


@promise("docs/formats.md#what-verify-compares")
@pytest.mark.parametrize("side", ["original", "copy"])
def test_every_tensor_of_every_file_is_read_to_its_last_byte(checkpoint: Path, tmp_path: Path, side: str) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    changed = checkpoint if side == "original" else out
    *_, sound = job.verify(str(checkpoint), str(out))
    assert isinstance(sound, Verified) and sound.verification.identical
    tensors = job.inspect(str(changed)).tensors
    assert sound.verification.tensors == len(tensors) == 14
    for tensor in tensors:
        data = (changed / tensor.file).read_bytes()
        wrong = bytearray(data)
        wrong[place_of(tensor).end_byte - 1] ^= 1
        (changed / tensor.file).write_bytes(wrong)
        *_, verified = job.verify(str(checkpoint), str(out))
        assert isinstance(verified, Verified)
        assert [one.tensor for one in verified.verification.mismatches] == [tensor.name]
        (changed / tensor.file).write_bytes(data)


def test_verify_names_missing_extra_and_reshaped_tensors(tmp_path: Path) -> None:
    one = write_checkpoint(tmp_path / "one", {"model.safetensors": {"a": np.zeros(4), "b": np.zeros(4)}}, index=False)
    two = write_checkpoint(
        tmp_path / "two", {"model.safetensors": {"b": np.zeros((2, 2)), "c": np.zeros(4)}}, index=False
    )
    *_, verified = job.verify(str(one), str(two))
    assert isinstance(verified, Verified)
    assert {mismatch.tensor: mismatch.problem for mismatch in verified.verification.mismatches} == {
        "a": "it is missing",
        "b": "it is F64 [2, 2] and should be F64 [4]",
        "c": "it is not in the original",
    }


@promise("docs/formats.md#the-proof")
def test_quick_verification_compares_stored_digests_and_says_so(checkpoint: Path, tmp_path: Path) -> None:
    for name, size in (("one", "60kB"), ("two", "20kB")):
        finish(job.shard(str(checkpoint), str(tmp_path / name), size))
    (verified,) = job.verify(str(tmp_path / "one"), str(tmp_path / "two"), quick=True)
    assert isinstance(verified, Verified)
    assert verified.verification.identical
    assert "no weights were read" in verified.verification.method
    with pytest.raises(SourceError, match="has no sharding_digests.json"):
        list(job.verify(str(checkpoint), str(tmp_path / "one"), quick=True))


@pytest.mark.parametrize(
    "change", [b"", b"{}", b'{"schema": 2, "tensors": {}}', b'{"schema": 1, "tensors": {"a": 1}}', b"[" * 100_000]
)
def test_digests_that_are_none_are_refused(checkpoint: Path, tmp_path: Path, change: bytes) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    (out / "sharding_digests.json").write_bytes(change)
    with pytest.raises(SourceError, match=r"sharding_digests\.json of .* is not valid"):
        list(job.verify(str(out), str(out), quick=True))


OTHER: dict[str, Callable[[dict[str, Any]], object]] = {
    "one fewer": lambda tensors: tensors.pop("layers.3.weight"),
    "one more": lambda tensors: tensors.update(more=tensors["layers.3.weight"]),
    "another name": lambda tensors: tensors.update(more=tensors.pop("layers.3.weight")),
    "another dtype": lambda tensors: tensors["layers.3.weight"].update(dtype="I32"),
    "another shape": lambda tensors: tensors["layers.3.weight"].update(shape=[50, 100]),
}


@pytest.mark.parametrize("other", OTHER)
def test_digests_of_other_weights_are_refused(checkpoint: Path, tmp_path: Path, other: str) -> None:
    right, out = tmp_path / "right", tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    copytree(out, right)
    document = json.loads((out / "sharding_digests.json").read_text())
    OTHER[other](document["tensors"])
    (out / "sharding_digests.json").write_text(json.dumps(document))
    for pair in ((out, out), (right, out), (out, right)):
        with pytest.raises(SourceError, match="does not describe the weights") as refusal:
            list(job.verify(*map(str, pair), quick=True))
        assert "Leave out --quick" in refusal.value.hint


def test_stored_digests_say_nothing_of_a_cast(checkpoint: Path, tmp_path: Path) -> None:
    finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    for choice in ({"dtype": "bf16"}, {"dequantize": True}):
        with pytest.raises(UsageError, match="because a cast changes the bytes"):
            list(job.verify(str(tmp_path / "out"), str(tmp_path / "out"), quick=True, **choice))  # type: ignore[arg-type]


def test_a_quick_look_names_every_tensor_whose_stored_digests_differ(checkpoint: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    finish(job.shard(str(checkpoint), str(one), "60kB"))
    copytree(one, other)
    document = json.loads((other / "sharding_digests.json").read_text())
    wrong = ["layers.7.weight", "norm.steps"]
    for name in wrong:
        document["tensors"][name]["blake3"] = "0" * 64
    (other / "sharding_digests.json").write_text(json.dumps(document))
    for pair in ((one, other), (other, one)):
        (verified,) = job.verify(*map(str, pair), quick=True)
        assert isinstance(verified, Verified)
        assert {(one.tensor, one.problem) for one in verified.verification.mismatches} == {
            (name, "its bytes differ") for name in wrong
        }


def test_a_variant_is_that_of_the_original_alone(
    tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    weights = {"w": np.arange(8, dtype=np.float16)}
    files = {"model.safetensors": {"w": np.zeros(8, np.float32)}, "model.fp16.safetensors": weights}
    original = write_checkpoint(tmp_path / "original", files, index=False)
    copy = write_checkpoint(tmp_path / "copy", {"model.safetensors": weights}, index=False)
    for variant, identical in (("fp16", True), ("", False)):
        *_, verified = job.verify(str(original), str(copy), variant=variant)
        assert isinstance(verified, Verified)
        assert verified.verification.identical is identical
        chosen = ("--variant", variant) if variant else ()
        assert run("verify", original, copy, *chosen).returncode == (0 if identical else 1)
    with pytest.raises(SourceError, match="no variant"):
        list(job.verify(str(copy), str(original), variant="fp16"))


def test_progress_is_that_of_both_and_goes_from_nothing_to_all(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    told = [event for event in job.verify(str(checkpoint), str(out)) if isinstance(event, Progress)]
    both = 2 * job.inspect(str(checkpoint)).total_bytes
    assert {progress.bytes_total for progress in told} == {both}
    assert [progress.bytes_done for progress in told] == sorted(progress.bytes_done for progress in told)
    assert told[-1].bytes_done == both
    assert told[-1].seconds_left in (0.0, None)
