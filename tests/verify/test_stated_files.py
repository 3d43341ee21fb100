"""Which files of a source are put together again for a proof, and which results are read back meanwhile."""

import hashlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from sharding import job
from sharding.checkpoint.read import read_checkpoint, read_headers
from sharding.core.events import Progress, ShardFinished
from sharding.core.meter import Meter
from sharding.core.options import Options
from sharding.core.protocols import Destination, Repo
from sharding.core.values import Checkpoint, FileEntry, Mismatch, ShardRecord, Verification
from sharding.formats.safetensors_file import shard_header
from sharding.planning.plan import plan_checkpoint
from sharding.recipes.stored import place_of
from sharding.storage.folder_source import FolderSource, open_folder
from sharding.transfer.stream import Prepared
from sharding.verify.digests import Reader, ThisMachine
from sharding.verify.staged import reading_back, verify_staged
from sharding.verify.stated import stated_files
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


def renamed(checkpoint: Checkpoint, path: str, new: str) -> Checkpoint:
    files = (replace(file, path=new if file.path == path else file.path) for file in checkpoint.weight_files)
    places = ((tensor, place_of(tensor)) for tensor in checkpoint.tensors)
    tensors = (one._replace(recipe=place._replace(file=new) if place.file == path else place) for one, place in places)
    return replace(checkpoint, weight_files=tuple(files), tensors=tuple(tensors))


def test_all_files_are_put_together_again_where_each_is_stated(source: FolderSource, checkpoint: Checkpoint) -> None:
    files = stated(source.files)
    found = stated_files(files, checkpoint)
    assert [file.path for file in found] == [ONE, TWO] == [file.path for file in checkpoint.weight_files]
    assert found == [file for file in files if file.path in (ONE, TWO)], "with what is stated of them"
    empty = FileEntry("model-00003-of-00002.safetensors", 16, "0" * 64)  # a header, and no tensor
    more = replace(checkpoint, weight_files=(*checkpoint.weight_files, empty))
    assert stated_files((*files, empty), more) == [*found, empty]


@pytest.mark.parametrize("path", [ONE, TWO])
def test_none_is_put_together_again_where_one_has_no_hash_other_bytes_than_its_tensors_or_another_format(
    source: FolderSource, checkpoint: Checkpoint, path: str
) -> None:
    files = stated(source.files)

    def with_one(**change: Any) -> list[FileEntry]:
        return [replace(file, **change) if file.path == path else file for file in files]

    held = next(file for file in files if file.path == path)
    assert stated_files(source.files, checkpoint) == []
    assert stated_files((file for file in files if file != held), checkpoint) == []
    assert stated_files(with_one(sha256=None, git_sha1="0" * 40), checkpoint) == []
    for more in (1, -1):
        assert stated_files(with_one(bytes=held.bytes + more), checkpoint) == []
    middle = [tensor for tensor in checkpoint.tensors if tensor.file == path][2]
    holed = replace(checkpoint, tensors=tuple(tensor for tensor in checkpoint.tensors if tensor != middle))
    assert stated_files(files, holed) == []
    for name in ("pytorch_model.bin", "shard-00000-model-00001-of-00002.safetensors"):
        assert stated_files(with_one(path=name), renamed(checkpoint, path, name)) == []


# --- Reading back meanwhile --------------------------------------------------------------------------------


class Target:
    """As much of a destination as is asked for: it notes which shards somebody wants to read at once."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def open_finished(self, file: str) -> None:
        self.asked.append(file)


@pytest.mark.parametrize(
    ("is_stated", "choices", "is_here", "of_use"),
    [
        (False, {}, True, True),
        (True, {}, True, False),  # it is read in the order of the source
        (True, {"dtype": "bf16"}, True, True),  # a cast is read in its own order
        (False, {}, False, False),
        (True, {"dtype": "bf16"}, False, False),
    ],
    ids=["nobody states a hash", "order of the source", "a cast", "others read it", "others read the cast"],
)
def test_a_result_is_read_back_meanwhile_only_where_this_machine_reads_it_in_its_own_order(
    source: FolderSource, checkpoint: Checkpoint, is_stated: bool, choices: Any, is_here: bool, of_use: bool
) -> None:
    origin = open_folder(str(source.folder))
    if is_stated:
        origin.files = stated(origin.files)
    plan = plan_checkpoint(checkpoint, Options("60kB", **choices))
    prepared = Prepared((origin,), checkpoint, plan)
    number = len(plan.shards)
    sizes = {shard.file: shard.bytes + len(shard_header(plan, shard)) for shard in plan.shards}
    told = [ShardFinished(file, size, "", n, number) for n, (file, size) in enumerate(sizes.items(), 1)]
    records = {file: ShardRecord(file, size, "", {}) for file, size in sizes.items()}

    def moving() -> Generator[Progress | ShardFinished, None, dict[str, ShardRecord]]:
        yield from told
        return records

    target, reader = Target(), cast(Reader, ThisMachine() if is_here else None)  # others are not asked for anything
    read = result_of(reading_back(moving(), prepared, Repo([origin]), cast(Destination, target), reader))
    assert read == (records, {})
    assert target.asked == ([event.file for event in told] if of_use else [])


@dataclass
class Staged:
    """A place whose finished shards lie in a folder, of which it states the hashes, as a Hub does."""

    folder: Path
    reading: FolderSource | None = None

    def open_staged(self, files: Iterable[str]) -> FolderSource:
        source = FolderSource("staged", {file: self.folder / file for file in files})
        hashes = {file: hashlib.sha256((self.folder / file).read_bytes()).hexdigest() for file in files}
        source.files = tuple(replace(file, sha256=hashes[file.path]) for file in source.files)
        self.reading = source
        return source


@pytest.mark.parametrize("at", [0, 1, -1])
def test_what_was_read_back_holds_only_as_long_as_its_shard_is_the_one_that_was_finished(
    source: FolderSource, checkpoint: Checkpoint, tmp_path: Path, at: int
) -> None:
    *_, _ = job.shard(str(source.folder), str(tmp_path / "out"), "60kB")
    plan = plan_checkpoint(checkpoint, Options("60kB"))
    prepared = Prepared((source,), checkpoint, plan)
    records = result_of(ThisMachine().digest_shards(plan.shards, partial(shard_header, plan), [source]))
    place = Staged(tmp_path / "out")
    held = [FileEntry(record.file, record.bytes) for record in records.values()]
    tensors = [tensor for header in read_headers(place.open_staged(records), held) for tensor in header.tensors]
    digests = result_of(ThisMachine().digest_tensors(place.open_staged(records), tensors))
    read = {tensor: digests[tensor.name] for tensor in tensors}

    def proof() -> Verification:
        given = (prepared, Repo([source]), records, read, cast(Destination, place), Meter(), ThisMachine(), {})
        return result_of(verify_staged(*given))

    sound = proof()
    assert (sound.identical, sound.tensors, sound.bytes) == (True, len(tensors), checkpoint.total_bytes)
    assert place.reading
    headers = place.reading.bytes_read
    last = [tensor for tensor in tensors if tensor.file == plan.shards[at].file][-1]
    data = bytearray((place.folder / last.file).read_bytes())
    data[-1] ^= 1
    (place.folder / last.file).write_bytes(data)
    assert proof().mismatches == (Mismatch(last.name, "its bytes differ"),)
    assert place.reading.bytes_read == headers + plan.shards[at].bytes, "the others are not read again"
