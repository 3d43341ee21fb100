"""Verifying names what differs, and refuses digests that are none and downloads that broke."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import SourceError, UsageError
from sharding.core.events import Progress
from sharding.core.verification import Mismatch
from sharding.recipes.stored import place_of
from tests.conftest import in_two_files, write_checkpoint
from tests.folders import compared, finish, flip, in_cache
from tests.lora import Case, save_adapter, save_base
from tests.promises import promise


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A checkpoint and its copy, which no test changes."""
    folder = tmp_path_factory.mktemp("sharded")
    source = in_two_files(folder / "in")
    finish(job.shard(str(source), str(folder / "out"), "60kB"))
    return source, folder / "out"


@pytest.fixture
def out(sharded: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the copy, to change."""
    return Path(copytree(sharded[1], tmp_path / "out"))


@promise("docs/formats.md#what-verify-compares")
@pytest.mark.parametrize("side", ["original", "copy"])
def test_every_tensor_of_every_file_is_read_to_its_last_byte(sharded: tuple[Path, Path], out: Path, side: str) -> None:
    checkpoint, _ = sharded
    pair = (out, checkpoint) if side == "original" else (checkpoint, out)
    sound = compared(*pair)
    tensors = job.inspect(str(out)).tensors
    assert sound.identical and sound.tensors == len(tensors) == 14
    for tensor in tensors:
        data = (out / tensor.file).read_bytes()
        wrong = bytearray(data)
        wrong[place_of(tensor).end_byte - 1] ^= 1
        (out / tensor.file).write_bytes(wrong)
        assert compared(*pair).mismatches == (Mismatch(tensor.name, "its bytes differ"),)
        (out / tensor.file).write_bytes(data)


@promise("docs/formats.md#the-proof")
def test_quick_verification_compares_stored_digests_and_says_so(sharded: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, copy = sharded
    finish(job.shard(str(checkpoint), str(tmp_path / "two"), "20kB"))
    proof = compared(copy, tmp_path / "two", quick=True)
    assert proof.identical and "no weights were read" in proof.method
    with pytest.raises(SourceError, match="has no sharding_digests.json"):
        compared(checkpoint, copy, quick=True)
    for choice in ({"dtype": "bf16"}, {"dequantize": True}, {"adapter": "lora"}):
        with pytest.raises(UsageError, match=f"because --{next(iter(choice))} changes the bytes"):
            compared(copy, copy, quick=True, **choice)


@pytest.mark.parametrize(
    "change", [b"", b"{}", b'{"schema": 2, "tensors": {}}', b'{"schema": 1, "tensors": {"a": 1}}', b"[" * 100_000]
)
def test_digests_that_are_none_are_refused(out: Path, change: bytes) -> None:
    (out / "sharding_digests.json").write_bytes(change)
    with pytest.raises(SourceError, match=r"sharding_digests\.json of .* is not valid"):
        compared(out, out, quick=True)


OTHER: dict[str, Callable[[dict[str, Any]], object]] = {
    "one fewer": lambda tensors: tensors.pop("layers.3.weight"),
    "one more": lambda tensors: tensors.update(more=tensors["layers.3.weight"]),
    "another name": lambda tensors: tensors.update(more=tensors.pop("layers.3.weight")),
    "another dtype": lambda tensors: tensors["layers.3.weight"].update(dtype="I32"),
    "another shape": lambda tensors: tensors["layers.3.weight"].update(shape=[50, 100]),
}


def change_digests(out: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads((out / "sharding_digests.json").read_text())
    change(document["tensors"])
    (out / "sharding_digests.json").write_text(json.dumps(document))


@pytest.mark.parametrize("other", OTHER)
def test_digests_of_other_weights_are_refused(sharded: tuple[Path, Path], out: Path, other: str) -> None:
    change_digests(out, OTHER[other])
    for pair in ((out, out), (sharded[1], out), (out, sharded[1])):
        with pytest.raises(SourceError, match="does not describe the weights") as refusal:
            compared(*pair, quick=True)
        assert "Leave out --quick" in refusal.value.hint


def test_a_quick_look_names_every_tensor_whose_stored_digests_differ(sharded: tuple[Path, Path], out: Path) -> None:
    wrong = ["layers.7.weight", "norm.steps"]
    change_digests(out, lambda tensors: [tensors[name].update(blake3="0" * 64) for name in wrong])
    for pair in ((sharded[1], out), (out, sharded[1])):
        assert {*compared(*pair, quick=True).mismatches} == {Mismatch(name, "its bytes differ") for name in wrong}


def test_a_variant_is_that_of_the_original_alone(
    tmp_path: Path, run: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    weights = {"w": np.arange(8, dtype=np.float16)}
    files = {"model.safetensors": {"w": np.zeros(8, np.float32)}, "model.fp16.safetensors": weights}
    original = write_checkpoint(tmp_path / "original", files, index=False)
    copy = write_checkpoint(tmp_path / "copy", {"model.safetensors": weights}, index=False)
    for variant, identical in (("fp16", True), ("", False)):
        assert compared(original, copy, variant=variant).identical is identical
        chosen = ("--variant", variant) if variant else ()
        assert run("verify", original, copy, *chosen).returncode == (0 if identical else 1)
    with pytest.raises(SourceError, match="no variant"):
        compared(copy, original, variant="fp16")


def test_progress_is_that_of_both_and_goes_from_nothing_to_all(sharded: tuple[Path, Path]) -> None:
    told = [event for event in job.verify(*map(str, sharded)) if isinstance(event, Progress)]
    both = 2 * job.inspect(str(sharded[0])).total_bytes
    assert {progress.bytes_total for progress in told} == {both}
    assert [progress.bytes_done for progress in told] == sorted(progress.bytes_done for progress in told)
    assert told[-1].bytes_done == both
    assert told[-1].seconds_left in (0.0, None)


# --- A download that broke is never called identical --------------------------------------------------------


def spoiled(snapshot: Path) -> Path:
    """Turn one bit of a weight file around, which the Hub's client does not notice."""
    flip(next(iter(snapshot.glob("*.safetensors"))))
    return snapshot


@pytest.mark.parametrize("dtype", ["keep", "fp32"])
def test_a_file_of_the_hubs_cache_must_have_the_bytes_that_its_name_states(
    dtype: str, checkpoint: Path, tmp_path: Path
) -> None:
    snapshot = in_cache(checkpoint, tmp_path / "cache")
    options = job.Options("20kB", dtype=dtype)  # type: ignore[arg-type]
    assert finish(job.shard(str(snapshot), str(tmp_path / "whole"), options)).verification.identical
    report = finish(job.shard(str(spoiled(snapshot)), str(tmp_path / "out"), options))
    assert not report.verification.identical
    assert not list(tmp_path.glob("out/*.safetensors"))
    assert not compared(snapshot, tmp_path / "whole", dtype=dtype).identical


def test_an_adapter_in_the_cache_must_have_the_bytes_that_its_name_states(tmp_path: Path) -> None:
    base = save_base(Case(), tmp_path / "base")
    snapshot = in_cache(save_adapter(Case(), base, tmp_path / "adapter"), tmp_path / "cache")
    options = job.Options("1MB", adapter=str(snapshot))
    assert finish(job.shard(str(base), str(tmp_path / "whole"), options)).verification.identical
    spoiled(snapshot)
    report = finish(job.shard(str(base), str(tmp_path / "out"), options))
    assert not report.verification.identical and not list(tmp_path.glob("out/*.safetensors"))


@pytest.mark.parametrize("ending", [".aria2", ".ARIA2", ".crdownload", ".incomplete", ".!qB", ".part"])
def test_an_unfinished_download_is_refused_by_name(ending: str, checkpoint: Path, tmp_path: Path) -> None:
    file = next(iter(sorted(checkpoint.glob("*.safetensors"))))
    (checkpoint / (file.name + ending)).write_bytes(b"")
    with pytest.raises(SourceError, match=f"The download of {file.name} is not finished"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "20kB"))
