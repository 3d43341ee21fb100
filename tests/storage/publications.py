"""What tests of publishing into folders share: small sources, what stood there before, and what a stranger sees."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sharding import job
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import BytesRead, ShardRecord, StagedJob
from sharding.formats.names import STAGING_FOLDER, is_index
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.folder_names import TRIAL
from sharding.storage.folder_writing import FolderSink
from tests.conftest import listing, write_checkpoint
from tests.folders import finish

UNTIMED = ("sharding_report.json", "README.md")  # they say how long the job took, so that two are never equal
MINE = {"notes of mine.txt": b"mine", "sub/mine.json": b"mine"}
"""What somebody keeps beside results in the same folder."""


def write_source(folder: Path) -> Path:
    """A model of three tensors with files beside it, one of them in a folder."""
    tensors = {f"layers.{n}.weight": np.full(50, n, np.float32) for n in range(3)}
    write_checkpoint(folder, {"model.safetensors": tensors}, index=False)
    (folder / "sub").mkdir()
    (folder / "sub/tokenizer.json").write_text("{}")
    return folder


def write_pipeline(folder: Path) -> Path:
    """A pipeline of two components, of which one is cut and one is not."""
    components = {"text_encoder": ("model", 1), "unet": ("diffusion_pytorch_model", 3)}
    named = {name: ["transformers", "CLIPTextModel"] for name in components}
    for name, (base, tensors) in components.items():
        (folder / name).mkdir(parents=True)
        arrays = {f"w{n}": np.full(50, n, np.float32) for n in range(tensors)}
        save_file(arrays, folder / name / f"{base}.safetensors", metadata={"format": "pt"})
        (folder / name / "config.json").write_text("{}")
    (folder / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline", **named}))
    return folder


def job_of(plan: str = "plan") -> StagedJob:
    return StagedJob(plan, Place("folder", "in", ""), Options())


def written(sink: FolderSink, file: str, data: bytes = b"bytes", reads: tuple[BytesRead, ...] = ()) -> ShardRecord:
    """A shard whose bytes are on the disk, and which nobody is told of yet."""
    writer = sink.open_shard(file)
    writer.write(data)
    return ShardRecord(file, len(data), writer.finish(), {}, reads)


def begun(folder: Path, files: Mapping[str, bytes], plan: str = "plan", **choices: bool) -> FolderDestination:
    """A job in `folder` that has finished `files`."""
    target = FolderDestination(folder, **choices)
    target.prepare(job_of(plan), [], 0)
    for file, data in files.items():
        target.note(written(target, file, data))
    return target


class Scene:
    """A folder `out` to publish into again and again, each time with the same before, and all that is beside it."""

    every = 1
    """Of how many steps one is tried."""

    def __init__(self, folder: Path, source: Path, size: str, earlier: str = "") -> None:
        """`earlier` is the size of the shards of a result that stands there already, "" for none."""
        self.source, self.size = source, size
        self.out = folder / "beside" / "out"
        self._before = folder / "before"
        if earlier:
            (source / "old.json").write_text("{}")
            finish(job.shard(str(source), str(self._before), earlier))
            (source / "old.json").unlink()
            for name, data in MINE.items():
                (self._before / name).parent.mkdir(exist_ok=True)
                (self._before / name).write_bytes(data)
        finish(job.shard(str(source), str(folder / "whole"), size))
        self.old = listing(self._before)
        self.new = stable(folder / "whole")
        self.mine = MINE if earlier else {}
        self._made = folder / "beside"

    def again(self) -> None:
        """Put everything back as it was before."""
        shutil.rmtree(self._made, ignore_errors=True)
        self._made.mkdir()
        (self._made / "theirs.json").write_text("theirs")
        if self._before.exists():
            shutil.copytree(self._before, self.out)

    def publish(self) -> None:
        """Run the job to its end."""
        assert finish(job.shard(str(self.source), str(self.out), self.size)).verification.identical

    def discard(self) -> None:
        """Give up what a job has left there."""
        job.discard(str(self.out))

    def is_shown(self) -> bool:
        """Whether a stranger takes the folder for a checkpoint."""
        pipeline = "model_index.json"
        return any(path == pipeline if pipeline in self.new else is_entrance(path) for path in shown_in(self.out))

    def assert_whole_or_unfinished(self) -> None:
        """What a stranger sees is the old result, the new one, or nothing that loads; and what is mine stays."""
        now = {path: data for path, data in shown_in(self.out).items() if not path.endswith(".part")}
        if self.is_shown() and now != self.old:
            self.assert_new(now)
        for index in filter(is_index, now):
            named = {index.replace(index.rpartition("/")[2], file) for file in set(weight_map(now[index]).values())}
            assert any(
                all(now.get(path) == whole.get(path) for path in {index, *named}) for whole in (self.old, self.new)
            )
        self.assert_theirs_is_there()

    def assert_finished(self) -> None:
        """The folder holds the new result, and nothing of an earlier run."""
        self.assert_new(listing(self.out))
        self.assert_theirs_is_there()

    def assert_discarded(self) -> None:
        """Nothing of the job is left: an earlier result is whole, or was given up before, and nothing is half-made."""
        now = listing(self.out)
        if now.keys() != self.old.keys():
            assert not self.is_shown() or stable(self.out) == self.new | self.mine
            assert self.is_shown() or not {path: data for path, data in now.items() if path not in self.old}
            assert all(self.old[path] == data for path, data in now.items() if not self.is_shown())
        old = {self.out / path for path in self.old}
        empty = {path for path in self.out.rglob("*") if path.is_dir() and not any(path.iterdir())}
        assert empty <= {parent for path in old for parent in path.parents}
        self.assert_theirs_is_there()

    def assert_new(self, found: dict[str, bytes]) -> None:
        """These files are those of the new result, and what is mine."""
        assert {path: data for path, data in found.items() if path not in UNTIMED} == self.new | self.mine
        assert found.keys() >= set(UNTIMED)

    def assert_theirs_is_there(self) -> None:
        """Nobody has touched what lies elsewhere, or is mine."""
        assert (self._made / "theirs.json").read_text() == "theirs"
        assert {path.name for path in self._made.iterdir()} <= {"theirs.json", "out"}
        assert all((self.out / path).read_bytes() == data for path, data in self.mine.items())


def shown(out: Path) -> dict[str, bytes]:
    """All files that are not in the folder of what is not published."""
    return {path: data for path, data in listing(out).items() if not path.startswith(STAGING_FOLDER)}


def shown_in(folder: Path) -> dict[str, bytes]:
    """What is in a folder, apart from empty files by which names are tried."""
    return {path: data for path, data in listing(folder).items() if TRIAL not in Path(path).parts}


def is_entrance(path: str) -> bool:
    """Whether a file of this path lets somebody load what is around it."""
    return is_index(path) or path == "model.safetensors"


def weight_map(index: bytes) -> dict[str, str]:
    """Which file an index says each tensor is in."""
    files: dict[str, str] = json.loads(index)["weight_map"]
    return files


def stable(folder: Path) -> dict[str, bytes]:
    """The files of a result that are the same every time."""
    return {path: data for path, data in listing(folder).items() if path not in UNTIMED}


BEFORE: dict[str, Callable[[Path], Scene]] = {
    "nothing": lambda folder: Scene(folder, write_source(folder / "in"), "300B"),
    "shards": lambda folder: Scene(folder, write_source(folder / "in"), "500B", earlier="200B"),
    "one file": lambda folder: Scene(folder, write_source(folder / "in"), "1GB", earlier="1GB"),
    "a pipeline": lambda folder: Scene(folder, write_pipeline(folder / "in"), "500B", earlier="200B"),
}
"""Folders to publish into, by what is there before."""
