"""The whole job on folders: identical tensors, nothing half-made, nothing stale, nothing left behind."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.events import Progress, Published, ShardFinished, Verified
from sharding.core.options import Options
from sharding.job import Event
from sharding.report.schema import Report
from sharding.storage import folder_destination as destination_room
from tests.conftest import listing, random_tensors, write_checkpoint

INDEX = "model.safetensors.index.json"


def finish(events: Iterator[Event]) -> Report:
    *_, report = events
    assert isinstance(report, Report)
    return report


def load(folder: Path) -> dict[str, np.ndarray]:
    return {name: array for path in sorted(folder.glob("*.safetensors")) for name, array in load_file(path).items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].tobytes() == other[name].tobytes()
        and one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        for name in one
    )


@pytest.mark.parametrize("size", ["1B", "10kB", "50kB", "100kB", "1GB"])
@pytest.mark.parametrize("order", ["natural", "stored"])
def test_every_tensor_of_the_result_is_bit_identical(checkpoint: Path, tmp_path: Path, size: str, order: str) -> None:
    report = finish(job.shard(str(checkpoint), str(tmp_path / "out"), Options(size, order=order)))  # type: ignore[arg-type]
    assert same(load(tmp_path / "out"), random_tensors())
    assert report.verification.identical
    assert report.verification.tensors == len(random_tensors())


def test_digests_are_those_of_the_bytes(checkpoint: Path, tmp_path: Path) -> None:
    from hashlib import sha256

    finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    digests = json.loads((tmp_path / "out/sharding_digests.json").read_text())
    for name, array in random_tensors().items():
        assert digests["tensors"][name]["sha256"] == sha256(array.tobytes()).hexdigest()
    for path in (tmp_path / "out").glob("*.safetensors"):
        assert digests["shards"][path.name] == {
            "bytes": path.stat().st_size,
            "sha256": sha256(path.read_bytes()).hexdigest(),
        }


shapes = st.lists(st.integers(0, 40), max_size=3).map(tuple)
models = st.dictionaries(
    st.text("ab.01", min_size=1, max_size=6),
    st.builds(np.zeros, shapes, st.sampled_from(["float32", "float16", "int64", "uint8", "bool"])),
    min_size=1,
    max_size=12,
)


@given(tensors=models, limit=st.integers(1, 5000), data=st.data())
def test_any_checkpoint_comes_out_identical(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray], limit: int, data: st.DataObject
) -> None:
    random = np.random.default_rng(data.draw(st.integers(0, 9)))
    filled = {name: random.integers(0, 2, array.shape).astype(array.dtype) for name, array in tensors.items()}
    folder = write_checkpoint(tmp_path_factory.mktemp("any") / "in", {"model.safetensors": filled}, index=False)
    out = folder.parent / "out"
    report = finish(job.shard(str(folder), str(out), str(limit)))
    assert same(load(out), filled)
    assert all(record.bytes == (out / record.file).stat().st_size for record in report.shards)


def test_tensors_larger_than_many_blocks_come_out_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", 700)
    monkeypatch.setattr("sharding.verify.digests.SPAN_BYTES", 4000)
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    finish(job.shard(str(folder), str(tmp_path / "out"), "50kB"))
    assert same(load(tmp_path / "out"), random_tensors())


def test_small_tensors_cost_few_requests(tmp_path: Path) -> None:
    tensors = {f"layers.{n}.bias": np.full(8, n, np.float32) for n in range(2000)}
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False)
    report = finish(job.shard(str(folder), str(tmp_path / "out"), "16kB"))
    assert len(report.shards) == 4
    assert report.resources.read_requests < 15


def test_side_files_are_copied_as_they_are(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "sub").mkdir()
    (checkpoint / "sub/tokenizer.json").write_bytes(b"\x00\xff" * 9)
    finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    out = listing(tmp_path / "out")
    assert out["sub/tokenizer.json"] == b"\x00\xff" * 9
    assert out["config.json"] == (checkpoint / "config.json").read_bytes()


def test_progress_ends_at_the_total_and_every_shard_is_announced(checkpoint: Path, tmp_path: Path) -> None:
    events = list(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    last = {event.stage: event for event in events if isinstance(event, Progress)}
    assert all(event.bytes_done == event.bytes_total for event in last.values())
    assert {"transfer", "verify"} <= last.keys()
    shards = [event for event in events if isinstance(event, ShardFinished)]
    assert [event.number for event in shards] == list(range(1, shards[0].shards + 1))
    assert [type(event) for event in events[-3:]] == [Verified, Published, Report]


def test_nothing_stale_of_an_earlier_result_stays_beside_the_new_files(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "old_tokenizer.json").write_text("x")
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    (checkpoint / "old_tokenizer.json").unlink()
    (out / "notes of mine.txt").write_text("keep")
    finish(job.shard(str(checkpoint), str(out), "1GB"))
    names = {"config.json", "model.safetensors", "notes of mine.txt", "README.md"}
    names |= {"sharding_digests.json", "sharding_report.json"}
    assert set(listing(out)) == names


def test_a_folder_that_this_tool_did_not_write_is_refused_and_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("x")
    with pytest.raises(DestinationError, match="not empty") as refusal:
        finish(job.shard(str(checkpoint), str(out), "60kB"))
    assert "--overwrite" in refusal.value.hint
    assert listing(out) == {"thesis.txt": b"x"}


def test_overwrite_replaces_foreign_weights_and_keeps_the_rest(checkpoint: Path, tmp_path: Path) -> None:
    out = write_checkpoint(tmp_path / "out", {"model-00001-of-00001.safetensors": random_tensors(3)})
    (out / "pytorch_model.bin").write_bytes(b"x")
    (out / "thesis.txt").write_text("x")
    finish(job.shard(str(checkpoint), str(out), "1GB", overwrite=True))
    assert same(load(out), random_tensors())
    assert not (out / INDEX).exists()
    assert not (out / "pytorch_model.bin").exists()
    assert (out / "thesis.txt").exists()


def test_an_earlier_result_stays_whole_until_the_new_one_is_verified(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    before = listing(out)
    events = job.shard(str(checkpoint), str(out), "20kB")
    for event in events:
        if isinstance(event, Verified):
            break
    assert {name: data for name, data in listing(out).items() if not name.endswith(".part")} == before
    events.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", ["inside", "same", "around"])
def test_a_destination_inside_the_source_or_around_it_is_refused(checkpoint: Path, place: str) -> None:
    out = {"inside": checkpoint / "out", "same": checkpoint, "around": checkpoint.parent}[place]
    before = listing(checkpoint)
    with pytest.raises(DestinationError, match="inside each other"):
        finish(job.shard(str(checkpoint), str(out), "60kB"))
    assert listing(checkpoint) == before


def test_a_file_in_place_of_the_destination_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(DestinationError, match="is a file"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))


def test_a_destination_without_room_is_refused_with_the_figures(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = destination_room.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(DestinationError, match=r"needs 2\d\d\.\d kB and the disk of .* has 1\.0 kB free"):
        finish(job.shard(str(checkpoint), str(tmp_path / "a/b/out"), "60kB"))
    assert not (tmp_path / "a").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A file system of its own, where the machine lets us mount one."""
    mounted = []

    def mount(options: str) -> Path:
        place = tmp_path / f"disk{len(mounted)}"
        place.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True).returncode:
            pytest.skip("no right to mount a file system here")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", place], check=True)


def test_a_read_only_disk_is_refused(checkpoint: Path, small_disk: Callable[[str], Path]) -> None:
    place = small_disk("size=200m")
    subprocess.run(["mount", "-o", "remount,ro", place], check=True)
    with pytest.raises(DestinationError, match="(?i)cannot be written: read-only"):
        finish(job.shard(str(checkpoint), str(place / "out"), "60kB"))
    assert list(place.iterdir()) == []


def test_a_disk_that_is_too_small_is_refused(checkpoint: Path, small_disk: Callable[[str], Path]) -> None:
    place = small_disk("size=100k")
    with pytest.raises(DestinationError, match="has 102.4 kB free"):
        finish(job.shard(str(checkpoint), str(place / "out"), "60kB"))
    assert list(place.iterdir()) == []


def test_a_disk_that_fills_up_meanwhile_keeps_finished_shards_and_says_so(
    checkpoint: Path, small_disk: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = small_disk("size=100k")
    usage = destination_room.shutil.disk_usage("/")
    monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "out"), "25kB"))
    assert "sharding_journal.part" in listing(place / "out")
    assert not (place / "out" / INDEX).exists()
    with pytest.raises(DestinationError, match="is full"):
        finish(job.shard(str(checkpoint), str(place / "all"), "1GB"))
    assert not (place / "all").exists()


def test_a_source_that_breaks_before_the_first_shard_is_done_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    events = job.shard(str(checkpoint), str(tmp_path / "new/out"), "1GB")
    next(events)
    os.utime(checkpoint / "model-00001-of-00002.safetensors", (1, 1))
    with pytest.raises(SourceError, match="changed"):
        finish(events)
    assert not (tmp_path / "new").exists()


def stop_after(events: Iterator[Event], shards: int) -> None:
    """Take events until so many shards are finished, then go away, as Ctrl-C does."""
    for event in events:
        if isinstance(event, ShardFinished):
            shards -= 1
            if shards == 0:
                events.close()  # type: ignore[attr-defined]


def test_an_interrupted_run_is_resumed_and_finished_shards_are_not_written_again(
    checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    stop_after(job.shard(str(checkpoint), str(out), "20kB"), 5)
    parts = {path.name: path.stat() for path in out.glob("*.safetensors.part")}
    assert len(parts) >= 5
    assert not list(out.glob("*.safetensors"))
    events = list(job.shard(str(checkpoint), str(out), "20kB"))
    kept = {event.file for event in events if isinstance(event, ShardFinished) and event.kept}
    assert kept == {name.removesuffix(".part") for name in parts}
    for name, stat in parts.items():
        now = (out / name.removesuffix(".part")).stat()
        assert (now.st_ino, now.st_mtime_ns) == (stat.st_ino, stat.st_mtime_ns)
    assert same(load(out), random_tensors())
    assert not list(out.glob("*.part"))


def test_a_kept_shard_that_was_damaged_meanwhile_is_written_again(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop_after(job.shard(str(checkpoint), str(out), "20kB"), 4)
    victim = sorted(out.glob("*.safetensors.part"))[1]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    events = list(job.shard(str(checkpoint), str(out), "20kB"))
    kept = {event.file for event in events if isinstance(event, ShardFinished) and event.kept}
    assert victim.name.removesuffix(".part") not in kept
    assert len(kept) >= 3
    assert same(load(out), random_tensors())


def test_another_plan_or_restart_forgets_what_an_interrupted_run_left(checkpoint: Path, tmp_path: Path) -> None:
    for size, restart in (("30kB", False), ("20kB", True)):
        out = tmp_path / f"out{size}"
        stop_after(job.shard(str(checkpoint), str(out), "20kB"), 3)
        events = list(job.shard(str(checkpoint), str(out), size, restart=restart))
        assert not [event for event in events if isinstance(event, ShardFinished) and event.kept]
        assert same(load(out), random_tensors())
        assert not list(out.glob("*.part"))


def test_a_changed_source_is_not_mixed_with_shards_of_its_earlier_state(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop_after(job.shard(str(checkpoint), str(out), "20kB"), 3)
    path = checkpoint / "model-00001-of-00002.safetensors"
    changed = {name: -array for name, array in load_file(path).items()}
    save_file(changed, path, metadata={"format": "pt"})
    finish(job.shard(str(checkpoint), str(out), "20kB"))
    assert same(load(out), {**random_tensors(), **changed})


def test_two_jobs_do_not_write_to_one_folder(checkpoint: Path, tmp_path: Path) -> None:
    first = job.shard(str(checkpoint), str(tmp_path / "out"), "20kB")
    next(event for event in first if isinstance(event, ShardFinished))
    with pytest.raises(DestinationError, match="Another job"):
        finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    finish(first)
    assert same(load(tmp_path / "out"), random_tensors())


def test_a_result_that_differs_is_not_published(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = destination_room.FolderShardWriter.write

    def flip_last_bit(self: destination_room.FolderShardWriter, data: bytes) -> None:
        write(self, data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 30_000 else data)

    monkeypatch.setattr(destination_room.FolderShardWriter, "write", flip_last_bit)
    report = finish(job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"))
    assert not report.verification.identical
    assert not (tmp_path / "out").exists()


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


def test_quick_verification_compares_stored_digests_and_says_so(checkpoint: Path, tmp_path: Path) -> None:
    for name, size in (("one", "60kB"), ("two", "20kB")):
        finish(job.shard(str(checkpoint), str(tmp_path / name), size))
    (verified,) = job.verify(str(tmp_path / "one"), str(tmp_path / "two"), quick=True)
    assert isinstance(verified, Verified)
    assert verified.verification.identical
    assert "no weights read" in verified.verification.method
    with pytest.raises(SourceError, match="has no sharding_digests.json"):
        list(job.verify(str(checkpoint), str(tmp_path / "one"), quick=True))


@pytest.mark.parametrize(
    "change", [b"", b"{}", b'{"schema": 2, "tensors": {}}', b'{"schema": 1, "tensors": {"a": 1}}', b"[" * 100_000]
)
def test_digests_that_are_none_are_refused(checkpoint: Path, tmp_path: Path, change: bytes) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    (out / "sharding_digests.json").write_bytes(change)
    with pytest.raises(SourceError, match=r"sharding_digests\.json is not valid"):
        list(job.verify(str(out), str(out), quick=True))


def test_digests_of_other_weights_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    finish(job.shard(str(checkpoint), str(out), "60kB"))
    document = json.loads((out / "sharding_digests.json").read_text())
    document["tensors"].pop("layers.3.weight")
    (out / "sharding_digests.json").write_text(json.dumps(document))
    with pytest.raises(SourceError, match="does not describe the weights"):
        list(job.verify(str(out), str(out), quick=True))
