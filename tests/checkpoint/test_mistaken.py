"""A file that is not what its name says is named for what it is, with what to do."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sharding import job
from sharding.core.errors import HeaderError, ShardingError, SourceError
from tests.checkpoint.repos import repo
from tests.conftest import listing
from tests.folders import reshard
from tests.fuzz.seeds import saved
from tests.hubs import TOKEN
from tests.localhub.conftest import Server

POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
STARTS = {
    "a pointer": (POINTER, "pointer of Git LFS", "git lfs pull"),
    "GGUF": (b"GGUF\x03\0\0\0" + bytes(200), "GGUF file", ".gguf"),
    "torch.save": (saved({"a": torch.zeros(4)}), "file of torch.save", ".bin"),
    "a page": (b"<!DOCTYPE html>\n<html><body>Sign in</body></html>", "web page", "Download"),
    "an error": (b'{"error": "Repository not found"}' + bytes(20), "JSON file", "Download"),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("model.safetensors", kind) for kind in STARTS),
        *(("pytorch_model.bin", kind) for kind in STARTS if "." not in kind),
    ],
)
def test_weights_that_are_something_else_are_named(name: str, kind: str, tmp_path: Path) -> None:
    start, what, do = STARTS[kind]
    repo(tmp_path, {"config.json": {"model_type": "llama"}, name: start})
    with pytest.raises((SourceError, HeaderError), match=what) as refusal:
        job.inspect(str(tmp_path))
    assert name in refusal.value.message and do in refusal.value.hint
    assert "bytes" not in refusal.value.message


def test_a_file_beside_the_weights_that_is_a_pointer_is_refused_before_anything_moves(
    checkpoint: Path, tmp_path: Path
) -> None:
    (checkpoint / "tokenizer.json").write_bytes(POINTER)
    with pytest.raises(ShardingError, match=r"tokenizer.json is a pointer of Git LFS") as refusal:
        reshard(checkpoint, tmp_path / "out")
    assert "git lfs pull" in refusal.value.hint and not (tmp_path / "out").exists()
    (checkpoint / "tokenizer.json").write_text(json.dumps({"version": "https://git-lfs.github.com/spec/v1"}))
    reshard(checkpoint, tmp_path / "out")
    assert "tokenizer.json" in listing(tmp_path / "out")


def test_a_file_beside_the_weights_that_is_a_pointer_on_a_hub_is_refused_too(
    served: Callable[..., Server], checkpoint: Path, tmp_path: Path
) -> None:
    hub = served("--user", "alice")
    hub.api().create_repo("alice/model")
    # Else that Hub would keep the file in Git LFS.
    attributes = b"*.nothing filter=lfs\n"
    hub.api().upload_file(repo_id="alice/model", path_in_repo=".gitattributes", path_or_fileobj=attributes)
    (checkpoint / "tokenizer.model").write_bytes(POINTER)
    hub.api().upload_folder(repo_id="alice/model", folder_path=checkpoint)
    with pytest.raises(SourceError, match=r"tokenizer.model is a pointer of Git LFS"):
        job.plan("alice/model", endpoint=hub.address, token=TOKEN)
