"""What the classic engine says of its proof and of what it took; the model is copied and not loaded."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.loading.costs import ClassicCost
from sharding.report.schema import Report
from sharding.storage.hub.source import HubSource
from tests.conftest import in_two_files, random_tensors
from tests.folders import finish
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise

PEAK = 10**13
"""More than any process of a test has."""


@pytest.fixture(autouse=True)
def copying(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the process that loads the model and saves it: the same shards, and a peak that nobody has."""

    def run(folder: Path, out: Path, max_shard_bytes: int, dtype: str | None) -> ClassicCost:
        out.mkdir()
        for path in folder.glob("model*"):
            shutil.copyfile(path, out / path.name)
        for path in out.glob("*.safetensors") if dtype else ():
            halved = {name: array.astype(np.float16) for name, array in load_file(path).items()}
            save_file(halved, path, metadata={"format": "pt"})
        return ClassicCost(1.0, PEAK, sum(path.stat().st_size for path in out.iterdir()))

    monkeypatch.setattr("sharding.loading.classic.run_classic", run)


def classic(source: str, out: Path, dtype: Any = "keep", **at: str) -> Report:
    return finish(job.shard(source, str(out), Options("1GB", dtype=dtype), engine="classic", **at))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, in_two_files(tmp_path_factory.mktemp("in") / "two"), "alice/two")
        yield hub


ONE, OTHER = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@promise("docs/formats.md#what-identical-means")
@pytest.mark.parametrize(
    ("unhashed", "dtype"), [([], "keep"), ([], "fp16"), ([ONE], "keep"), ([OTHER], "fp16"), ([ONE, OTHER], "keep")]
)
def test_one_weight_file_without_a_hash_is_enough_that_the_result_only_matches_what_was_read(
    unhashed: list[str], dtype: str, hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = HubSource._list

    def without(source: HubSource) -> list[object]:
        return [replace(file, sha256=None, git_sha1=None) if file.path in unhashed else file for file in listed(source)]

    monkeypatch.setattr(HubSource, "_list", without)
    proof = classic("alice/two", tmp_path / "out", dtype, endpoint=hub.address, token=TOKEN).verification
    assert (proof.identical, bool(proof.unstated)) == (True, bool(unhashed))


def test_the_peak_is_that_of_the_process_that_loaded_the_model_and_its_copies_are_counted(
    hub: InHouse, tmp_path: Path
) -> None:
    source = in_two_files(tmp_path / "in")
    weights = sum(path.stat().st_size for path in source.glob("model*"))
    here = classic(str(source), tmp_path / "here").resources
    there = classic("alice/two", tmp_path / "there", endpoint=hub.address, token=TOKEN).resources
    assert here.peak_anon_bytes == there.peak_anon_bytes == PEAK
    written = sum(path.stat().st_size for path in (tmp_path / "here").iterdir())
    assert weights + weights < here.disk_bytes_written <= weights + written
    assert there.disk_bytes_written - here.disk_bytes_written >= weights  # what was downloaded


def test_a_copy_that_is_not_the_original_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(folder: Path, out: Path, *_: object) -> ClassicCost:
        out.mkdir()
        tensors = random_tensors()
        tensors["layers.3.weight"][7] += 1
        save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
        return ClassicCost(1.0, 1, 1)

    monkeypatch.setattr("sharding.loading.classic.run_classic", other)
    report = classic(str(in_two_files(tmp_path / "in")), tmp_path / "out")
    assert [mismatch.tensor for mismatch in report.verification.mismatches] == ["layers.3.weight"]
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_loaded_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(folder: Path, out: Path, *_: object) -> ClassicCost:
        out.mkdir()
        (out / "model.safetensors").write_bytes(np.ones(3).tobytes())
        raise SourceError("It does not load.", "Leave --engine out.")

    monkeypatch.setattr("sharding.loading.classic.run_classic", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with pytest.raises(SourceError, match="It does not load"):
        classic(str(in_two_files(tmp_path / "in")), tmp_path / "out")
    assert not (tmp_path / "out").exists() and not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize(
    ("lacks", "figures"), [("memory", r"about 27\d\.\d MB of memory .* 85\.0 MB can be used"), ("disk", "B are free")]
)
def test_a_model_that_fits_neither_into_memory_nor_onto_the_disk_is_refused_with_the_figures(
    lacks: str, figures: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacks == "memory":
        monkeypatch.setattr("sharding.loading.classic.free_memory_bytes", lambda: 100_000_000)
    else:
        usage = shutil.disk_usage(tmp_path)
        monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(SourceError, match=f"The classic engine needs .*{figures}") as no:
        classic(str(in_two_files(tmp_path / "in")), tmp_path / "out")
    assert "Leave --engine out" in no.value.hint and not (tmp_path / "out").exists()
