"""What takes the place of what: whose copy may go, what goes with it, and when there is room for it."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import DestinationError, ReplaceRefused
from sharding.core.events import ShardFinished
from sharding.core.limits import DISK_FLOOR_BYTES
from sharding.core.options import Request
from sharding.core.origin import Place
from sharding.formats.names import REPORT_NAME, STAGING_FOLDER
from sharding.storage import folder_destination as destination_room
from sharding.storage.folder_destination import FolderDestination
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.folders import finish, staged
from tests.storage.publications import begun, job_of, stable, write_pipeline, write_source
from tests.storage.recorder import Step, recorded

INDEX = "model.safetensors.index.json"
MODELS = [
    Place("hub", "alice/one", ""),
    Place("hub", "bob/one", ""),
    Place("hub", "alice/other", ""),
    Place("folder", "one", ""),
    Place("folder", "alice/one", ""),
]


# --- Whose copy -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", MODELS, ids=str)
def test_a_copy_is_replaced_by_one_of_the_very_same_model_only(source: Path, out: Path, there: Place) -> None:
    finish(job.shard(str(source), str(out), "1GB"))
    report = json.loads((out / REPORT_NAME).read_text())
    report["source"] |= {"store": there.store, "repo_id": there.repo_id}
    (out / REPORT_NAME).write_text(json.dumps(report))
    before = listing(out)
    for model in MODELS:
        target = FolderDestination(out)
        with nullcontext() if model == there else pytest.raises(ReplaceRefused, match=there.repo_id):
            target.check(model)
        target.close()
        willing = FolderDestination(out, overwrite=True)
        willing.check(model)
        willing.close()
    assert listing(out) == before


@pytest.mark.parametrize("report", [None, b"", b"[]", b'{"files": []}', b'{"schema": 1}'])
def test_what_no_report_of_ours_is_beside_is_not_replaced(source: Path, out: Path, report: bytes | None) -> None:
    write_checkpoint(out, {"model.safetensors": random_tensors(2)}, index=False)
    if report is not None:
        (out / REPORT_NAME).write_bytes(report)
    before = listing(out)
    for ask in (
        lambda: job.check(Request(str(source), str(out))),
        lambda: finish(job.shard(str(source), str(out), "200B")),
    ):
        with pytest.raises(DestinationError, match="did not write"):
            ask()
    assert listing(out) == before


def test_asking_of_a_folder_what_is_done_there_writes_nothing(source: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.rglob("*"))
    for place in (tmp_path / "new/out", tmp_path / "empty"):
        for choices in ({}, {"overwrite": True}, {"restart": True}, {"is_shared": True}):
            target = FolderDestination(place, **choices)
            target.check(Place("folder", "in", ""))
            assert target.done("plan") == {} and target.unfinished() is None and not target.has_finished_shards
            target.close()
        job.check(Request(str(source), str(place)))
        assert job.find_unfinished(str(place)) is None and not job.discard(str(place)).found
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("place", ["out", "out/below"])
def test_a_destination_that_is_a_file_or_below_one_is_refused(source: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "out").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(DestinationError):
            finish(job.shard(str(source), str(tmp_path / place), "200B", overwrite=overwrite))
        if place == "out":
            with pytest.raises(DestinationError, match="is a file"):
                job.check(Request(str(source), str(tmp_path / place), overwrite=overwrite))
    assert (tmp_path / "out").read_text() == "mine"


# --- What goes with it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pipeline", [False, True])
def test_a_copy_that_overwrites_leaves_nothing_that_would_be_loaded_instead(tmp_path: Path, pipeline: bool) -> None:
    source = write_pipeline(tmp_path / "in") if pipeline else write_source(tmp_path / "in")
    finish(job.shard(str(source), str(tmp_path / "plain"), "500B"))
    out = write_checkpoint(tmp_path / "out", {f"model-0000{n}-of-00002.safetensors": random_tensors(n) for n in (1, 2)})
    goes = ["pytorch_model.bin", "pytorch_model.bin.index.json", "model.fp16.safetensors", "tf_model.h5"]
    goes += ["modules.json", "model_index.json"]
    indexes = ("safetensors.index.json", "safetensors.index.fp16.json")
    in_components = [f"unet/diffusion_pytorch_model.{index}" for index in indexes]
    in_components += ["unet/old.safetensors", "unet/old.bin", "text_encoder/model.safetensors.index.json"]
    goes += in_components if pipeline else []
    stays = {"thesis.txt": b"x", "deep/down/model.safetensors": b"y", "unet/notes.txt": b"z"}
    stays |= {} if pipeline else {"unet/old.safetensors": b"w"}
    for path, data in [*((path, b"old") for path in goes), *stays.items()]:
        (out / path).parent.mkdir(parents=True, exist_ok=True)
        (out / path).write_bytes(data)
    finish(job.shard(str(source), str(out), "500B", overwrite=True))
    left = {"config.json": (out / "config.json").read_bytes()} if pipeline else {}  # it makes nothing of the folder
    assert stable(out) == stable(tmp_path / "plain") | stays | left


def shard_names(steps: list[Step]) -> list[int]:
    """Where shards, and what shows them, get the names that they are to have."""
    named = [(n, step.to) for n, step in enumerate(steps) if step.kind == "rename" and step.to]
    return [n for n, to in named if "safetensors" in to.name and to.parent.name != STAGING_FOLDER]


@pytest.mark.parametrize("earlier", ["", "ours", "theirs"])
def test_a_job_that_overwrites_and_is_killed_among_its_shards_keeps_those_that_have_their_names(
    source: Path, tmp_path: Path, earlier: str
) -> None:
    before, out = tmp_path / "before", tmp_path / "out"
    if earlier == "ours":
        finish(job.shard(str(source), str(before), "400B"))
    else:
        before.mkdir()
    if earlier == "theirs":
        (before / "model.safetensors").write_bytes(b"theirs")

    def publish(overwrite: bool = True) -> list[bool]:
        *events, report = job.shard(str(source), str(out), "200B", overwrite=overwrite)
        assert report.verification.identical  # type: ignore[union-attr]
        return [event.kept for event in events if isinstance(event, ShardFinished)]

    shutil.copytree(before, out)
    with recorded() as recorder:
        assert publish() == [False] * 3
    new = stable(out)
    for number, overwrite in zip(shard_names(recorder.steps)[1:], cycle((True, False)), strict=False):
        shutil.rmtree(out)
        shutil.copytree(before, out)
        with recorded(dies_at=number):
            publish()
        assert publish(overwrite) == [True] * 3
        assert stable(out) == new and not staged(out).exists()


def write_adapter_beside(folder: Path) -> Path:
    """A model in one file, with weights in a folder that are copied as they are."""
    save_file({"a": np.ones(9, np.float32)}, write_source(folder) / "sub/adapter_model.safetensors")
    (folder / "sub/adapter_config.json").write_text("{}")
    return folder


def write_two_entrances(folder: Path) -> Path:
    """A pipeline that is a sentence transformer too."""
    (write_pipeline(folder) / "modules.json").write_text("[]")
    return folder


@pytest.mark.parametrize("write", [write_adapter_beside, write_two_entrances])
def test_a_discard_removes_a_result_that_is_not_shown_yet(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source, out = write(tmp_path / "in"), tmp_path / "out"
    with recorded() as recorder:
        finish(job.shard(str(source), str(out), "1GB"))
    assert listing(out)
    named = [number for number, step in enumerate(recorder.steps) if step.kind == "rename"]
    for number in named[1:]:
        shutil.rmtree(out)
        with recorded(dies_at=number):
            finish(job.shard(str(source), str(out), "1GB"))
        assert job.discard(str(out)).found
        assert not out.exists() or not list(out.rglob("*")), recorder.steps[number]


@pytest.mark.parametrize("write", [write_source, write_adapter_beside, write_two_entrances])
def test_a_discard_leaves_a_result_if_all_that_shows_it_is_there(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    source, out = write(tmp_path / "in"), tmp_path / "out"
    with recorded() as recorder:
        finish(job.shard(str(source), str(out), "1GB"))
    whole = stable(out)
    last = max(number for number, step in enumerate(recorder.steps) if step.kind == "rename")
    shutil.rmtree(out)
    with recorded(dies_at=last + 1):
        finish(job.shard(str(source), str(out), "1GB"))
    assert job.discard(str(out)).found
    assert stable(out) == whole and not staged(out).exists()
    assert not job.discard(str(out)).found
    assert stable(out) == whole


# --- Room -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["plan", "another"])
def test_only_what_goes_counts_as_room_and_a_byte_decides(
    out: Path, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"a.safetensors": 3000, "b.safetensors": 500}
    begun(out, {file: b"x" * size for file, size in sizes.items()}).close()
    (staged(out) / "sharding_file0.part").write_bytes(b"y" * 40)  # a file beside them, which is written anew
    before = listing(out)
    usage = shutil.disk_usage(out)
    records = sum(path.stat().st_size for path in staged(out).glob("*.record.part"))
    goes = 40 + (sum(sizes.values()) + records if plan == "another" else 0)
    for free, is_enough in ((DISK_FLOOR_BYTES + 10_000 - goes - 1, False), (DISK_FLOOR_BYTES + 10_000 - goes, True)):
        monkeypatch.setattr(destination_room.shutil, "disk_usage", lambda _, free=free: usage._replace(free=free))
        again = FolderDestination(out)
        kept = again.done(plan)
        assert len(kept) == (2 if plan == "plan" else 0)
        with nullcontext() if is_enough else pytest.raises(DestinationError, match="The result needs 10.0 kB"):
            again.prepare(job_of(plan), kept.values(), 10_000)
        again.close()
        if not is_enough:
            assert listing(out) == before
    assert {path.name for path in staged(out).glob("*.safetensors.part")} == {f"{file}.part" for file in kept}
