"""The whole job on folders: identical tensors, nothing half-made, nothing stale, nothing left behind."""

import json
import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import ShardingError, UsageError
from sharding.core.events import Progress, Published, ShardFinished, Verified
from sharding.core.options import Options, Request
from sharding.job import Event
from sharding.report.schema import Report
from sharding.storage import folder_source
from sharding.storage.folder_writing import FolderShardWriter
from tests.conftest import in_two_files, listing, random_tensors, write_checkpoint
from tests.folders import arrays, compared, finish, flip, same, staged, until_shard
from tests.promises import promise


@promise("docs/formats.md#the-bits", "docs/formats.md#the-proof")
@pytest.mark.parametrize("order", ["natural", "stored"])
def test_every_tensor_is_bit_identical_and_has_the_digest_of_its_bytes(
    checkpoint: Path, tmp_path: Path, order: str
) -> None:
    out = tmp_path / "out"
    (checkpoint / "sub").mkdir()
    (checkpoint / "sub/tokenizer.json").write_bytes(b"\x00\xff" * 9)
    report = finish(job.shard(str(checkpoint), str(out), Options("60kB", order=order)))  # type: ignore[arg-type]
    assert same(arrays(out), random_tensors())
    assert report.verification.identical and report.verification.tensors == len(random_tensors())
    digests = json.loads((out / "sharding_digests.json").read_text())
    for name, array in random_tensors().items():
        assert digests["tensors"][name]["blake3"] == blake3(array.tobytes()).hexdigest()
    for path in out.glob("*.safetensors"):
        of_file = {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()}
        assert digests["shards"][path.name] == of_file
    for name in ("sub/tokenizer.json", "config.json"):
        assert (out / name).read_bytes() == (checkpoint / name).read_bytes()


shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
models = st.dictionaries(
    st.text("ab.01", min_size=1, max_size=6),
    st.builds(np.zeros, shapes, st.sampled_from(["float32", "float16", "int64", "uint8", "bool"])),
    min_size=1,
    max_size=12,
)


@settings(max_examples=15)
@given(tensors=models, limit=st.integers(1, 5000), data=st.data())
def test_any_checkpoint_comes_out_identical(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], limit: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    filled = {name: random.integers(0, 2, array.shape).astype(array.dtype) for name, array in tensors.items()}
    folder = write_checkpoint(tmp_path_factory.mktemp("any") / "in", {"model.safetensors": filled}, index=False)
    out = folder.parent / "out"
    report = finish(job.shard(str(folder), str(out), f"{limit}B"))
    assert same(arrays(out), filled)
    assert all(record.bytes == (out / record.file).stat().st_size for record in report.shards)


def test_tensors_larger_than_many_blocks_come_out_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", 700)
    monkeypatch.setattr("sharding.verify.digests.SPAN_BYTES", 4000)
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    finish(job.shard(str(folder), str(tmp_path / "out"), "50kB"))
    assert same(arrays(tmp_path / "out"), random_tensors())


def test_small_tensors_cost_few_requests(tmp_path: Path) -> None:
    tensors = {f"layers.{n}.bias": np.full(8, n, np.float32) for n in range(500)}
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False)
    report = finish(job.shard(str(folder), str(tmp_path / "out"), "4kB"))
    assert len(report.shards) == 4
    assert report.resources.read_requests < 15


def test_progress_ends_at_the_total_and_every_shard_is_announced(checkpoint: Path, tmp_path: Path) -> None:
    events = list(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    last = {event.phase: event for event in events if isinstance(event, Progress)}
    assert all(event.bytes_done == event.bytes_total for event in last.values())
    assert {"transfer", "verify"} <= last.keys()
    shards = [event for event in events if isinstance(event, ShardFinished)]
    assert [event.number for event in shards] == list(range(1, shards[0].shards + 1))
    assert [type(event) for event in events[-3:]] == [Verified, Published, Report]


def kept_in(events: Iterable[Event]) -> set[str]:
    """The shards of an earlier run that a job has kept."""
    return {event.file for event in events if isinstance(event, ShardFinished) and event.kept}


@promise("docs/formats.md#resumed-jobs")
@promise("README.md#what-to-type")
def test_an_interrupted_run_is_resumed_and_finished_shards_are_kept(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    until_shard(job.shard(str(checkpoint), str(out), "20kB"), 5, stop=True)
    parts = {path.name: path.stat() for path in staged(out).glob("*.safetensors.part")}
    assert len(parts) >= 5
    assert not list(out.glob("*.safetensors"))
    kept = kept_in(job.shard(str(checkpoint), str(out), "20kB"))
    assert kept == {name.removesuffix(".part") for name in parts}
    for name, stat in parts.items():
        now = (out / name.removesuffix(".part")).stat()
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert same(arrays(out), random_tensors())
    assert not staged(out).exists()


def test_a_kept_shard_that_was_damaged_meanwhile_is_written_again(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    until_shard(job.shard(str(checkpoint), str(out), "20kB"), 4, stop=True)
    victim = sorted(staged(out).glob("*.safetensors.part"))[1]
    flip(victim)
    kept = kept_in(job.shard(str(checkpoint), str(out), "20kB"))
    assert victim.name.removesuffix(".part") not in kept
    assert len(kept) >= 3
    assert same(arrays(out), random_tensors())


def test_a_changed_source_is_not_mixed_with_shards_of_its_earlier_state(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    until_shard(job.shard(str(checkpoint), str(out), "20kB"), 3, stop=True)
    path = checkpoint / "model-00001-of-00002.safetensors"
    changed = {name: -array for name, array in load_file(path).items()}
    save_file(changed, path, metadata={"format": "pt"})
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    assert same(arrays(out), {**random_tensors(), **changed})


@pytest.fixture
def as_on_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems that number their files anew: nothing tells two states of one size and one time from each other."""
    monkeypatch.setattr(folder_source, "is_steady", lambda folder: False)


def replace_alike(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Put other numbers into a file whose header, size and time stay the same."""
    before = file.stat()
    new = file.with_name("new")
    save_file(arrays, new, metadata={"format": "pt"})
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(file)
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)


@pytest.mark.usefixtures("as_on_a_network")
@pytest.mark.parametrize("dtype", ["keep", "bf16"])
def test_two_sources_of_one_name_size_and_time_are_not_mixed(checkpoint: Path, tmp_path: Path, dtype: str) -> None:
    out, options = tmp_path / "out", Options("20kB", dtype=dtype)
    before = job.inspect(str(checkpoint)).source
    until_shard(job.shard(str(checkpoint), str(out), options), 7, stop=True)
    path = checkpoint / "model-00002-of-00002.safetensors"
    replace_alike(path, {name: array[::-1].copy() for name, array in load_file(path).items()})
    assert job.inspect(str(checkpoint)).source == before
    events = list(job.shard(str(checkpoint), str(out), options))
    kept = kept_in(events)
    (verified,) = [event.verification for event in events if isinstance(event, Verified)]
    assert kept and verified.identical
    assert f"{len(kept)} shards of an earlier run compared with the source's tensors" in verified.method
    assert compared(checkpoint, out, dtype=options.dtype).identical


@promise("README.md#what-you-can-rely-on", "docs/formats.md#the-proof")
def test_what_differs_is_not_published(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = FolderShardWriter.write

    def flip_last_bit(self: FolderShardWriter, data: bytes) -> None:
        write(self, data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 30_000 else data)

    monkeypatch.setattr(FolderShardWriter, "write", flip_last_bit)
    report = finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    assert not report.verification.identical
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "ask",
    [
        lambda source, empty: job.inspect(empty),
        lambda source, empty: job.inspect(source, base=empty or " "),
        lambda source, empty: job.plan(empty),
        lambda source, empty: job.plan(source, empty),
        lambda source, empty: list(job.shard(source, empty, overwrite=True)),
        lambda source, empty: list(job.shard(empty, "out")),
        lambda source, empty: list(job.shard(source, "out", empty)),
        lambda source, empty: list(job.verify(source, empty)),
        lambda source, empty: job.check(Request(source, empty)),
        lambda source, empty: job.find_unfinished(empty),
        lambda source, empty: job.discard(empty),
        lambda source, empty: list(job.compare(source, empty)),
        lambda source, empty: job.devices(empty, "cpu=1GB"),
    ],
)
def test_an_empty_name_is_wrong_usage_and_not_the_folder_that_one_is_in(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ask: Callable[[str, str], object]
) -> None:
    monkeypatch.chdir(in_two_files(tmp_path / "here"))
    before = listing(tmp_path)
    for empty in ("", " ", "\t"):
        with pytest.raises(UsageError):
            ask(str(checkpoint), empty)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("address", ["s3://a/b", "file:/a/b", "http://localhost/a/b"])
def test_an_address_is_no_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    (tmp_path / "here" / address).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    before = listing(tmp_path)
    for ask in (
        lambda: job.inspect(address),
        lambda: list(job.shard(str(checkpoint), address)),
        lambda: list(job.shard(str(checkpoint), address, Options(strategy="pp:2", rank=0))),
        lambda: job.discard(address),
    ):
        with pytest.raises(ShardingError):
            ask()
    assert listing(tmp_path) == before


def test_a_folder_may_have_a_colon_in_it(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint.rename("s3:")
    assert len(job.inspect("s3:").tensors) == len(random_tensors())
