"""A folder is read as it was when the job began."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding.core.errors import SourceError
from sharding.fleet.worker import open_lent
from sharding.formats.names import STAGING_FOLDER
from sharding.job import inspect
from sharding.storage.folder_source import FolderSource, is_steady, open_folder
from tests.promises import promise

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_what_is_no_folder_with_weights_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        open_folder(str(tmp_path / "nowhere"))
    with pytest.raises(SourceError, match="is a file"):
        open_folder(str(checkpoint / ONE))
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="no weights"):
        inspect(str(tmp_path / "empty"))
    for text in ("", " ", "x" * 5000, "~nobody-of-this-name/x", "a\0b", "a\ud800"):
        with pytest.raises(SourceError):
            open_folder(text)


# --- The state that it is pinned to -----------------------------------------------------------------------------

WEIGHTS = [ONE, TWO, "sub/model.bin", "__0_0.distcp", ".metadata"]


@pytest.fixture
def weights(checkpoint: Path) -> Path:
    """A folder with weight files of every kind; the one of safetensors is longer than the ends that are looked at."""
    (checkpoint / "sub").mkdir()
    for name in WEIGHTS[2:]:
        (checkpoint / name).write_bytes(bytes(300_000))
    return checkpoint


def alter(path: Path, at_byte: int, *, keep_time: bool = True) -> None:
    """Turn a byte of a file, in place, at the time that it had."""
    before = path.stat()
    with open(path, "r+b") as file:
        file.seek(at_byte)
        byte = file.read(1)
        file.seek(at_byte)
        file.write(bytes([byte[0] ^ 1]))
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def let_the_clock_go_on(path: Path) -> None:
    """Return once what is changed now has another time of change than `path`: file systems count in milliseconds."""
    probe = path.parent.with_name("probe")
    probe.touch()
    while probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.touch()


def put_anew(path: Path) -> None:
    """Put another file with the same bytes, size and time into the place of one."""
    before, new = path.stat(), path.with_name("new")
    new.write_bytes(path.read_bytes())
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)


def longer(path: Path) -> None:
    before = path.stat()
    path.write_bytes(path.read_bytes() + b" ")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def another_time(path: Path) -> None:
    before = path.stat()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("steady", [True, False])
def test_another_state_of_any_weight_file_is_another_revision(
    weights: Path, name: str, steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.is_steady", lambda folder: steady)
    path, middle = weights / name, (weights / name).stat().st_size // 2
    seen = [open_folder(str(weights)).ref.revision]
    assert open_folder(str(weights)).ref.revision == seen[0]
    changes = [longer, another_time, lambda path: alter(path, 2)]
    if not name.endswith(".safetensors"):
        changes.append(lambda path: alter(path, path.stat().st_size - 2))
    if steady:
        changes += [put_anew, lambda path: alter(path, middle)]  # the time when it was changed no program sets
    for change in changes:
        let_the_clock_go_on(path)
        if change is changes[2] and name.endswith(".safetensors"):
            alter(path, 12)  # a byte of the header
        else:
            change(path)
        revision = open_folder(str(weights)).ref.revision
        assert revision not in seen
        seen.append(revision)
    if not steady:  # a file system that numbers its files anew does not make another source of them
        put_anew(path)
        assert open_folder(str(weights)).ref.revision == seen[-1]
    (weights / "more.safetensors").write_bytes((weights / ONE).read_bytes())
    assert open_folder(str(weights)).ref.revision not in seen


def test_a_revision_reads_headers_and_no_weights(weights: Path) -> None:
    tensors = {"large": np.zeros(20_000_000, np.uint8)}
    save_file(tensors, weights / ONE)

    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read_bytes()
    assert open_folder(str(weights)).ref.revision
    assert read_bytes() - before < 2_000_000


@promise("docs/formats.md#a-source-that-changes")
@pytest.mark.parametrize("change", [longer, another_time, put_anew])
@pytest.mark.parametrize("name", [TWO, "config.json"])
@pytest.mark.parametrize("steady", [True, False])
def test_a_file_that_is_another_by_now_is_not_read(
    weights: Path, name: str, change: Callable[[Path], None], steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.is_steady", lambda folder: steady)
    source = open_folder(str(weights))
    before = (weights / name).read_bytes()
    os.link(weights / name, weights / "backup")  # as a backup does, which changes nothing of the file
    assert b"".join(source.read(name, 0, 8)) == before[:8]
    change(weights / name)
    if change is put_anew and not steady:
        assert b"".join(source.read(name, 0, 8)) == before[:8]
    else:
        with pytest.raises(SourceError, match=f"{name} changed while"):
            list(source.read(name, 0, 8))
    assert list(source.read(ONE, 0, 8)), "the others are what they were"


@pytest.mark.parametrize("change", [longer, another_time])
@pytest.mark.parametrize("name", [ONE, TWO, "config.json"])
def test_a_lent_file_is_read_where_the_same_is(checkpoint: Path, name: str, change: Callable[[Path], None]) -> None:
    lent = open_folder(str(checkpoint)).lend([ONE, TWO, "config.json"])
    for one in lent.files:
        stat = (checkpoint / one.file).stat()
        assert (one.place, one.bytes, one.modified_ns) == (str(checkpoint / one.file), stat.st_size, stat.st_mtime_ns)
    assert b"".join(open_lent(lent).read(name, 3, 9)) == (checkpoint / name).read_bytes()[3:9]
    change(checkpoint / name)
    with pytest.raises(SourceError, match=f"{name} changed while"):
        open_lent(lent)


def test_any_range_is_read_exactly_and_in_bounded_chunks(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sharding.storage.folder_source.BATCH_BYTES", 1000)
    source = open_folder(str(checkpoint))
    data = (checkpoint / TWO).read_bytes()
    requests, size = 0, 0
    length = len(data)
    for start, end in ((0, length), (0, 1000), (1, 1001), (5, 1006), (2500, 4501), (7, 7), (length - 1, length)):
        chunks = list(source.read(TWO, start, end))
        assert b"".join(chunks) == data[start:end] and all(0 < len(chunk) <= 1000 for chunk in chunks)
        assert len(chunks) == -(-(end - start) // 1000)
        requests, size = requests + 1, size + end - start
        assert (source.requests, source.bytes_read) == (requests, size)


def test_what_is_no_regular_file_is_passed_over_and_what_cannot_be_looked_at_is_an_error(checkpoint: Path) -> None:
    files = {file.path for file in open_folder(str(checkpoint)).files}
    os.mkfifo(checkpoint / "pipe.safetensors")
    assert {file.path for file in open_folder(str(checkpoint)).files} == files
    with pytest.raises(SourceError, match="cannot be read"):
        FolderSource("in", {"config.json": checkpoint / "config.json", "gone.json": checkpoint / "gone.json"})


@pytest.mark.parametrize("depth", ["", "sub/", "a/b/c/"])
@pytest.mark.parametrize("tool", [".git", ".cache", "__pycache__", STAGING_FOLDER])
def test_what_tools_keep_is_no_part_of_a_folder_at_any_depth(checkpoint: Path, depth: str, tool: str) -> None:
    (checkpoint / depth).mkdir(parents=True, exist_ok=True)
    (checkpoint / depth / "real.json").write_text("{}")
    files = {file.path for file in open_folder(str(checkpoint)).files}
    for place in (tool, f"{tool}/deep", f"{tool}/annex", f"{tool}/objects"):
        (checkpoint / depth / place).mkdir(parents=True)
        (checkpoint / depth / place / "kept.json").write_text("{}")
        link = checkpoint / depth / f"to-{place.replace('/', '-')}.json"
        link.symlink_to(checkpoint / depth / place / "kept.json")
    (checkpoint / depth / f"not{tool}").mkdir()  # which is called otherwise
    (checkpoint / depth / f"not{tool}/kept.json").write_text("{}")
    source = open_folder(str(checkpoint))
    assert {file.path for file in source.files} == files | {f"{depth}not{tool}/kept.json"}
    assert len(source.links_out) == 4 and all(link.startswith(f"{depth}to-") for link in source.links_out)


@pytest.mark.parametrize(
    ("mounts", "steady"),
    [
        ({"/": "ext4"}, True),
        ({"/": "ext4", "{}": "nfs4"}, False),
        ({"/": "nfs4", "{}": "xfs"}, True),
        ({"/": "ext4", "{}/of another name": "fuse.sshfs"}, True),
        ({"/": "fuse.sshfs"}, False),
        ({}, False),
    ],
    ids=str,
)
def test_the_file_system_that_a_folder_is_on_says_whether_inodes_last(
    tmp_path: Path, mounts: dict[str, str], steady: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [SimpleNamespace(mountpoint=place.format(tmp_path), fstype=kind) for place, kind in mounts.items()]
    monkeypatch.setattr("psutil.disk_partitions", lambda all: found)
    assert is_steady(tmp_path / "a/b") == is_steady(tmp_path) == steady


@pytest.mark.parametrize("place", ["elsewhere", "inside"])
@pytest.mark.parametrize("link", ["parts", "parts/2_Dense"])
def test_a_link_to_a_folder_above_a_module_is_refused(checkpoint: Path, tmp_path: Path, link: str, place: str) -> None:
    module = checkpoint / "parts/2_Dense"
    module.mkdir(parents=True)
    save_file({"w": np.ones(3, np.float32)}, module / "model.safetensors")
    kinds = {"": "Transformer", "parts/2_Dense": "Dense"}
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds.items()]
    (checkpoint / "modules.json").write_text(json.dumps(modules))
    there = tmp_path / "there" if place == "elsewhere" else checkpoint / "there"
    (tmp_path / "other").mkdir()
    for beside in ("parts/3_Other", "partsmore", "other"):
        (checkpoint / beside).symlink_to(tmp_path / "other")
    assert len(inspect(str(checkpoint)).components) == 2
    (checkpoint / link).rename(there)
    (checkpoint / link).symlink_to(there)
    with pytest.raises(SourceError, match=f"{link}/ is a link to a folder. Such links are not followed") as refusal:
        inspect(str(checkpoint))
    assert refusal.value.hint
