"""What lies beside the weights is copied, or named with the reason why not."""

import os
from pathlib import Path

from sharding.job import inspect


def test_what_is_not_copied_is_named_with_its_reason(checkpoint: Path) -> None:
    for path in (
        "consolidated.00.pth",
        "original/model.bin",
        "model.gguf",
        "tf_model.h5",
        ".gitattributes",
        "checkpoint-500/model.safetensors",
        "checkpoint-500/config.json",
    ):
        (checkpoint / path).parent.mkdir(exist_ok=True)
        (checkpoint / path).write_bytes(b"x")
    for path in ("tokenizer.json", "LICENSE", "modeling_custom.py", "sub/config.json"):
        (checkpoint / path).parent.mkdir(exist_ok=True)
        (checkpoint / path).write_bytes(b"x")
    found = inspect(str(checkpoint))
    said = " ".join(finding.message for finding in found.findings if finding.code == "left-out")
    assert [file.path for file in found.side_files] == [
        "LICENSE",
        "config.json",
        "modeling_custom.py",
        "sub/config.json",
        "tokenizer.json",
    ]
    for path in (
        "consolidated.00.pth",
        "original/model.bin",
        "model.gguf",
        "tf_model.h5",
        ".gitattributes",
        "checkpoint-500/model.safetensors",
        "checkpoint-500/config.json",
    ):
        assert path in said


def test_a_pipe_is_no_side_file(checkpoint: Path) -> None:
    os.mkfifo(checkpoint / "pipe.json")
    assert "pipe.json" not in {file.path for file in inspect(str(checkpoint)).side_files}
