"""What a view says of the source below it: all that this says, of two together, and nothing that would not be so."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from sharding.storage.trained_source import TrainedSource

from sharding.core.errors import SourceError, UsageError
from sharding.core.lent import LentFile, LentSource
from sharding.core.values import FileEntry, RepoRef
from sharding.storage.hub.client import Hub
from sharding.storage.locate import open_source
from sharding.storage.source_view import SourceView
from sharding.transfer.noting_source import NotingSource
from tests.fuzz.targets import Memory

FOLDER = "checkpoint-7/"
HASHES = {"sha256": "a" * 64, "xet_hash": "b" * 64, "git_sha1": "c" * 40}


class Told(Memory):
    """A source of which everything is told, and which counts what is read."""

    def __init__(self, name: str, *files: str, is_private: bool | None = None) -> None:
        super().__init__(b"", {file: f"{name}: {file}".encode() for file in files})
        self.ref = RepoRef("hub", name, "9" * 40)
        self.folder = Path("/", name)
        self.is_private = is_private
        self.unreached = (f"{name}@9",)
        self.links_out = (f"{name}.json",)
        self.batch_bytes, self.join_gap_bytes, self.ranges_at_once = 77, 7, 17
        self.files = tuple(FileEntry(file, len(data), **HASHES) for file, data in self._files.items())
        self.was_closed = ""
        self.lent: list[str] = []

    def read(self, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        self.requests += 1
        self.bytes_read += end_byte - start_byte
        yield from super().read(file, start_byte, end_byte)

    def path(self, file: str) -> Path | None:
        return Path("/", self.ref.repo_id, file)

    def closed(self) -> str:
        return self.was_closed

    def lend(self, files: Iterable[str]) -> LentSource:
        self.lent = list(files)
        return LentSource(self.ref, tuple(LentFile(file, 1, place=f"at {file}") for file in self.lent), hub="a hub")


def whole(source: SourceView, file: str) -> bytes:
    (size,) = [entry.bytes for entry in source.files if entry.path == file]
    return b"".join(source.read(file, 0, size))


VIEWS: dict[str, Callable[[Told], SourceView]] = {
    "noting": NotingSource,
    "trained": lambda source: TrainedSource(source, FOLDER, None),
}
ABOUT = (
    *("ref", "folder", "is_private", "unreached", "links_out", "files"),
    *("batch_bytes", "join_gap_bytes", "ranges_at_once"),
)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("is_private", [True, False, None])
def test_a_view_says_of_its_source_what_the_source_says(view: str, is_private: bool | None) -> None:
    source = Told("one", "config.json", "w", is_private=is_private)
    seen = VIEWS[view](source)
    for what in ABOUT:
        assert getattr(seen, what) == getattr(source, what), what
    assert seen.closed() == ""
    source.was_closed = "one"
    assert seen.closed() == "one"
    assert seen.lend(["w"]) == source.lend(["w"])
    assert seen.path("w") == Path("/one/w")
    assert (seen.requests, seen.bytes_read) == (0, 0)
    assert whole(seen, "w") == b"one: w"
    assert (seen.requests, seen.bytes_read) == (1, len(b"one: w"))


# --- A training run and its base --------------------------------------------------------------------------------


def trained() -> tuple[Told, Told, TrainedSource]:
    """A run in a folder, which has a tokenizer of its own, and a base with weights and files beside them."""
    run = Told("run", f"{FOLDER}.metadata", f"{FOLDER}__0_0.distcp", f"{FOLDER}tokenizer.json", "notes.txt", "LICENSE")
    base = Told(
        "base", "model.safetensors", "model.safetensors.index.json", "optimizer.bin", "onnx/model.onnx",
        "config.json", "tokenizer.json", "LICENSE", "sub/adapter_model.safetensors",
    )  # fmt: skip
    return run, base, TrainedSource(run, FOLDER, base)


def test_the_folder_of_the_run_is_its_top_and_what_the_base_has_beside_lies_beside() -> None:
    _, _, source = trained()
    assert {entry.path: whole(source, entry.path) for entry in source.files} == {
        ".metadata": b"run: checkpoint-7/.metadata",
        "__0_0.distcp": b"run: checkpoint-7/__0_0.distcp",
        "tokenizer.json": b"run: checkpoint-7/tokenizer.json",
        "notes.txt": b"run: notes.txt",
        "LICENSE": b"run: LICENSE",
        "config.json": b"base: config.json",
        "sub/adapter_model.safetensors": b"base: sub/adapter_model.safetensors",
    }
    from_base = {"config.json", "sub/adapter_model.safetensors"}
    assert {entry.path for entry in source.files if source.is_from_base(entry.path)} == from_base
    assert not source.is_from_base("not there")
    assert [entry.path for entry in source.files] == sorted(entry.path for entry in source.files)
    assert source.path("tokenizer.json") == Path("/run/checkpoint-7/tokenizer.json")
    assert source.path("config.json") == Path("/base/config.json")
    assert source.ref == RepoRef("hub", "run", "9" * 40)
    assert source.unreached == ("run@9", "base@9")
    assert set(source.links_out) == {"run.json", "base.json"}


def test_only_what_is_called_as_in_its_own_repo_may_be_copied_on_the_server() -> None:
    _, _, source = trained()
    in_store = {entry.path for entry in source.files if entry.xet_hash}
    assert in_store == {"notes.txt", "LICENSE"}
    for entry in source.files:  # what else is stated of the bytes goes on being true
        assert (entry.sha256, entry.git_sha1) == (HASHES["sha256"], HASHES["git_sha1"])
    at_top = TrainedSource(Told("run", ".metadata", "__0_0.distcp"), "", Told("base", "config.json"))
    assert {entry.path for entry in at_top.files if entry.xet_hash} == {".metadata", "__0_0.distcp"}


def test_requests_and_bytes_of_both_are_counted() -> None:
    run, base, source = trained()
    for file in ("config.json", "tokenizer.json", "tokenizer.json"):
        whole(source, file)
    assert (run.requests, base.requests, source.requests) == (2, 1, 3)
    assert source.bytes_read == run.bytes_read + base.bytes_read == 2 * 32 + 17
    alone = TrainedSource(run, FOLDER, None)
    assert (alone.requests, alone.bytes_read) == (run.requests, run.bytes_read)


@pytest.mark.parametrize("run", [True, False, None])
@pytest.mark.parametrize("base", [True, False, None])
def test_a_source_with_a_base_is_as_hidden_as_the_more_hidden_of_both(run: bool | None, base: bool | None) -> None:
    source = TrainedSource(Told("run", ".metadata", is_private=run), "", Told("base", "config.json", is_private=base))
    ranks = {False: 0, None: 1, True: 2}  # open, a folder that is shown nowhere, private or gated
    assert ranks[source.is_private] == max(ranks[run], ranks[base])


def test_whichever_of_both_is_closed_meanwhile_is_named() -> None:
    run, base, source = trained()
    assert source.closed() == ""
    base.was_closed = "base"
    assert source.closed() == "base"
    run.was_closed = "run"
    assert source.closed() in ("run", "base")
    base.was_closed = ""
    assert source.closed() == "run"


def test_other_machines_are_lent_the_weights_of_the_run_under_the_names_of_the_result() -> None:
    run, base, source = trained()
    lent = source.lend(["__0_0.distcp", ".metadata"])
    assert run.lent == [f"{FOLDER}__0_0.distcp", f"{FOLDER}.metadata"] and base.lent == []
    assert [(one.file, one.place) for one in lent.files] == [
        ("__0_0.distcp", f"at {FOLDER}__0_0.distcp"),
        (".metadata", f"at {FOLDER}.metadata"),
    ]
    assert (lent.ref, lent.hub) == (run.ref, "a hub")


def write(folder: Path, *files: str) -> str:
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(file)
    return str(folder)


@pytest.mark.parametrize("place", ["", "sharded/", "pytorch_model_fsdp_0/"])
def test_a_base_is_for_what_a_training_run_has_saved_without_a_configuration(tmp_path: Path, place: str) -> None:
    hub = Hub("http://127.0.0.1:9", None)
    base = write(tmp_path / "base", "model.safetensors", "config.json", "vocab.txt")
    run = write(tmp_path / "run", f"{place}.metadata", f"{place}__0_0.distcp")
    source = open_source(run, hub, base)
    assert {entry.path for entry in source.files} == {".metadata", "__0_0.distcp", "config.json", "vocab.txt"}
    alone = open_source(run, hub)
    assert {entry.path for entry in alone.files} == {".metadata", "__0_0.distcp"}
    refused = [
        base,
        write(tmp_path / "weights", "model.safetensors"),
        write(tmp_path / "configured", f"{place}.metadata", "config.json"),
        write(tmp_path / "inside", f"{place}.metadata", f"{place}config.json"),
        write(tmp_path / "two", "a/.metadata", "b/.metadata"),
        write(tmp_path / "linked", f"{place}.metadata"),
    ]
    (tmp_path / "linked/config.json").symlink_to("/nowhere")
    for folder in refused:
        with pytest.raises(UsageError, match="configuration of its own, or is nothing that a training run has saved"):
            open_source(folder, hub, base)
        assert open_source(folder, hub).ref.repo_id == Path(folder).name
    with pytest.raises(SourceError):
        open_source(run, hub, str(tmp_path / "nowhere"))
