"""Which files of a source are put together again for a proof, and which results are read back meanwhile."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, cast

import pytest

from sharding.checkpoint.read import read_checkpoint
from sharding.core.events import Progress, ShardFinished
from sharding.core.options import Options
from sharding.core.protocols import Destination
from sharding.core.values import Checkpoint, FileEntry, ShardRecord
from sharding.planning.plan import plan_checkpoint, shard_header
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.transfer.prepare import prepared_stream
from sharding.verify.digests import Reader, ThisMachine
from sharding.verify.source_hashes import stated_files
from sharding.verify.staged import reading_back
from tests.conftest import in_two_files
from tests.folders import result_of

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FolderSource:
    return open_folder(str(in_two_files(tmp_path_factory.mktemp("stated") / "in")))


@pytest.fixture(scope="module")
def checkpoint(source: FolderSource) -> Checkpoint:
    return read_checkpoint(source)


def stated(files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
    return tuple(replace(file, sha256=f"{number:064x}") for number, file in enumerate(files))


def renamed(checkpoint: Checkpoint, names: dict[str, str]) -> Checkpoint:
    files = tuple(replace(file, path=names.get(file.path, file.path)) for file in checkpoint.weight_files)
    tensors = tuple(tensor._replace(file=names.get(tensor.file, tensor.file)) for tensor in checkpoint.tensors)
    return replace(checkpoint, weight_files=files, tensors=tensors)


def test_all_files_are_put_together_again_where_each_is_stated(source: FolderSource, checkpoint: Checkpoint) -> None:
    files = stated(source.files)
    found = stated_files(files, checkpoint)
    assert [file.path for file in found] == [ONE, TWO] == [file.path for file in checkpoint.weight_files]
    assert found == [file for file in files if file.path in (ONE, TWO)], "with what is stated of them"
    empty = FileEntry("model-00003-of-00002.safetensors", 16, "0" * 64)  # a header, and no tensor
    more = replace(checkpoint, weight_files=(*checkpoint.weight_files, empty))
    assert stated_files((*files, empty), more) == [*found, empty]


@pytest.mark.parametrize("path", [ONE, TWO])
def test_none_is_put_together_again_where_one_has_no_hash(
    source: FolderSource, checkpoint: Checkpoint, path: str
) -> None:
    files = stated(source.files)
    in_git = (replace(file, sha256=None, git_sha1="0" * 40) if file.path == path else file for file in files)
    assert stated_files(in_git, checkpoint) == []
    assert stated_files((file for file in files if file.path != path), checkpoint) == []
    assert stated_files(source.files, checkpoint) == []


@pytest.mark.parametrize("path", [ONE, TWO])
@pytest.mark.parametrize("more", [1, -1])
def test_none_is_put_together_again_where_one_holds_more_or_less_than_its_tensors(
    source: FolderSource, checkpoint: Checkpoint, path: str, more: int
) -> None:
    files = (replace(file, bytes=file.bytes + (more if file.path == path else 0)) for file in stated(source.files))
    assert stated_files(files, checkpoint) == []


@pytest.mark.parametrize("path", [ONE, TWO])
def test_none_is_put_together_again_where_one_has_a_hole_or_is_of_another_format(
    source: FolderSource, checkpoint: Checkpoint, path: str
) -> None:
    files = stated(source.files)
    middle = [tensor for tensor in checkpoint.tensors if tensor.file == path][2]
    holed = replace(checkpoint, tensors=tuple(tensor for tensor in checkpoint.tensors if tensor != middle))
    assert stated_files(files, holed) == []
    for name in ("pytorch_model.bin", "shard-00000-model-00001-of-00002.safetensors"):
        other = tuple(replace(file, path=name if file.path == path else file.path) for file in files)
        assert stated_files(other, renamed(checkpoint, {path: name})) == []


# --- Reading back meanwhile --------------------------------------------------------------------------------


class Target:
    """As much of a destination as is asked for: it notes which shards somebody wants to read at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open_finished(self, file: str) -> None:
        self.asked.append(file)


class Others:
    """Many machines that read for a proof; they are not asked for anything here."""


@pytest.mark.parametrize(
    ("is_stated", "choices", "is_here", "of_use"),
    [
        pytest.param(False, {}, True, True, id="nobody states a hash"),
        pytest.param(True, {}, True, False, id="it is read in the order of the source"),
        pytest.param(True, {"dtype": "bf16"}, True, True, id="a cast is read in its own order"),
        pytest.param(False, {}, False, False, id="others read it"),
        pytest.param(True, {"dtype": "bf16"}, False, False, id="others read the cast"),
    ],
)
def test_a_result_is_read_back_meanwhile_only_where_this_machine_reads_it_in_its_own_order(
    source: FolderSource, checkpoint: Checkpoint, is_stated: bool, choices: Any, is_here: bool, of_use: bool
) -> None:
    origin = open_folder(str(source.folder))
    if is_stated:
        origin.files = stated(origin.files)
    plan = plan_checkpoint(checkpoint, Options("60kB", **choices))
    prepared = prepared_stream(origin, checkpoint, plan, {})
    number = len(plan.shards)
    sizes = {shard.file: shard.bytes + len(shard_header(plan, shard)) for shard in plan.shards}
    told = [ShardFinished(file, size, "", n, number) for n, (file, size) in enumerate(sizes.items(), 1)]
    records = {file: ShardRecord(file, size, "", {}) for file, size in sizes.items()}

    def moving() -> Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]:
        yield from told
        return records

    target, reader = Target(), cast(Reader, ThisMachine() if is_here else Others())
    assert result_of(reading_back(moving(), prepared, origin, cast(Destination, target), reader)) == (records, {})
    assert target.asked == ([event.file for event in told] if of_use else [])
