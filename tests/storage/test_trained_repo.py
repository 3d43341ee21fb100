"""A training run is a repo whose top is its folder; beside its weights lies what its base has there."""

from pathlib import Path

import pytest

from sharding.core.errors import SourceError, UsageError
from sharding.core.origin import Place
from sharding.core.protocols import Inputs
from sharding.storage.hub.client import Hub
from sharding.storage.locate import open_inputs, trained
from tests.sources import HASHES, Counted

FOLDER = "checkpoint-7/"


def whole(source: Inputs, file: str) -> bytes:
    (size,) = [entry.bytes for entry in source.files if entry.path == file]
    return b"".join(source.read(file, 0, size))


def a_run() -> tuple[Counted, Counted, Inputs]:
    """A run in a folder, which has a tokenizer of its own, and a base with weights and files beside them."""
    run = Counted(
        "run", f"{FOLDER}.metadata", f"{FOLDER}__0_0.distcp", f"{FOLDER}tokenizer.json", "notes.txt", "LICENSE"
    )
    base = Counted(
        "base", "model.safetensors", "model.safetensors.index.json", "optimizer.bin", "onnx/model.onnx",
        "config.json", "tokenizer.json", "LICENSE", "sub/adapter_model.safetensors",
    )  # fmt: skip
    return run, base, trained({"model": run, "base": base}, FOLDER)


def test_the_folder_of_the_run_is_its_top_and_what_the_base_has_beside_lies_beside() -> None:
    _, _, source = a_run()
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
    assert {entry.path for entry in source.files if entry.source} == from_base
    assert [entry.path for entry in source.files] == sorted(entry.path for entry in source.files)
    assert source.path("tokenizer.json") == Path("/run/checkpoint-7/tokenizer.json")
    assert source.path("config.json") == Path("/base/config.json")
    assert source.ref == Place("hub", "run", "9" * 40)
    assert source.places == (source.ref, Place("hub", "base", "9" * 40, role="base"))
    assert source.unreached == ("run@9", "base@9")
    assert set(source.links_out) == {"run.json", "base.json"}


def test_only_what_is_called_as_in_its_own_repo_may_be_copied_on_the_server() -> None:
    _, _, source = a_run()
    in_store = {entry.path for entry in source.files if entry.xet_hash}
    assert in_store == {"notes.txt", "LICENSE", "config.json", "sub/adapter_model.safetensors"}
    for entry in source.files:  # what else is stated of the bytes goes on being true
        assert (entry.sha256, entry.git_sha1) == (HASHES["sha256"], HASHES["git_sha1"])
    at_top = trained({"model": Counted("run", ".metadata"), "base": Counted("base", "config.json")}, "")
    assert all(entry.xet_hash for entry in at_top.files)


@pytest.mark.parametrize("run", [True, False, None])
@pytest.mark.parametrize("base", [True, False, None])
def test_a_source_with_a_base_is_as_hidden_as_the_more_hidden_of_both(run: bool | None, base: bool | None) -> None:
    of_run, of_base = (Counted("x", "config.json", is_private=hidden) for hidden in (run, base))
    source = trained({"model": of_run, "base": of_base}, "")
    ranks = {False: 0, None: 1, True: 2}  # open, a folder that is shown nowhere, private or gated
    assert ranks[source.is_private] == max(ranks[run], ranks[base])


def test_whichever_of_both_is_closed_meanwhile_is_named() -> None:
    run, base, source = a_run()
    assert source.closed() == ""
    base.was_closed = "base"
    assert source.closed() == "base"
    run.was_closed = "run"
    assert source.closed() in ("run", "base")
    base.was_closed = ""
    assert source.closed() == "run"


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
    source = open_inputs({"model": run, "base": base}, hub)
    assert {entry.path for entry in source.files} == {".metadata", "__0_0.distcp", "config.json", "vocab.txt"}
    alone = open_inputs({"model": run}, hub)
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
        with pytest.raises(UsageError, match="configuration of its own, or is not the output of a training run"):
            open_inputs({"model": folder, "base": base}, hub)
        assert open_inputs({"model": folder}, hub).ref.repo_id == Path(folder).name
    with pytest.raises(SourceError):
        open_inputs({"model": run, "base": str(tmp_path / "nowhere")}, hub)
