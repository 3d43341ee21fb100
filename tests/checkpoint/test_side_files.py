"""What lies beside the weights is copied, or named with the reason why not."""

import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.checkpoint import side_files
from sharding.checkpoint.side_files import sort_files
from sharding.core.errors import SourceError
from sharding.core.values import FileEntry
from sharding.job import inspect
from tests.conftest import listing
from tests.folders import finish, reshard, said
from tests.promises import promise


def test_what_is_not_copied_is_named_with_its_reason(checkpoint: Path) -> None:
    left_out = [
        *("consolidated.00.pth", "consolidated.safetensors", "original/model.safetensors"),
        *("model.gguf", "tf_model.h5", ".gitattributes", "params.part"),
        *("checkpoint-500/model.safetensors", "checkpoint-500/config.json"),
    ]
    copied = ["LICENSE", "modeling_custom.py", "sub/config.json", "tokenizer.json"]
    for path in (*left_out, *copied):
        (checkpoint / path).parent.mkdir(exist_ok=True)
        (checkpoint / path).write_bytes(b"x")
    os.mkfifo(checkpoint / "pipe.json")
    found = inspect(str(checkpoint))
    said = " ".join(finding.message for finding in found.findings if finding.code == "left-out")
    assert [file.path for file in found.side_files] == sorted([*copied, "config.json"])
    assert [path for path in left_out if path not in said] == []


@promise("docs/formats.md#limits")
def test_a_file_and_all_of_them_may_have_what_the_bounds_say_and_not_a_byte_more(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = (checkpoint / "config.json").stat().st_size
    monkeypatch.setattr(side_files, "MAX_SIDE_FILE_BYTES", 10_000)
    monkeypatch.setattr(side_files, "MAX_SIDE_FILES_BYTES", taken + 20_000)
    (checkpoint / "lora").mkdir()
    save_file({"w": np.ones(9000, np.float32)}, checkpoint / "lora/adapter_model.safetensors")  # which does not count
    for name, size in (("a.txt", 10_000), ("b.txt", 10_000), ("large.txt", 10_001)):
        (checkpoint / name).write_bytes(b"x" * size)
    reshard(checkpoint, tmp_path / "out")
    assert "Left out: large.txt (larger than 10.0 kB" in said(checkpoint)["left-out"]
    beside = {"a.txt", "b.txt", "config.json", "lora/adapter_model.safetensors"}
    ours = ("model-", "model.", "sharding_", "README.md")
    assert {path for path in listing(tmp_path / "out") if not path.startswith(ours)} == beside
    (checkpoint / "c.txt").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"The files beside the weights \(20\.\d kB\).*The largest is") as refusal:
        finish(job.shard(str(checkpoint), str(tmp_path / "more"), "50kB"))
    assert refusal.value.hint and not (tmp_path / "more").exists()


@pytest.mark.parametrize(
    ("file", "level"),
    [
        *((name, "warning") for name in ("vit.safetensors", "non_lora_trainables.bin", "mm_projector.bin")),
        *((name, "warning") for name in ("new_embeddings.safetensors", "medusa_lm_head.pt", "extra.safetensors")),
        *((name, "info") for name in ("pytorch_model.bin", "model.fp16.safetensors", "tf_model.h5", "model.gguf")),
        *((name, "info") for name in ("optimizer.pt", "onnx/extra.bin", "checkpoint-5/mm_projector.bin")),
        ("pytorch_model.bin.index.json", "info"),
    ],
)
def test_weights_that_a_copy_lacks_are_named_in_a_warning(file: str, level: str) -> None:
    side, findings = sort_files([FileEntry(file, 10), FileEntry("model.safetensors", 10)], {"model.safetensors"})
    assert side == () and [finding.level for finding in findings] == [level]
    assert file in findings[0].message
