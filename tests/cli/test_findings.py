"""What is left out is told with its reason."""

from pathlib import Path

import pytest

from tests.commands import invoke
from tests.conftest import in_two_files, listing
from tests.folders import reshard

LEFT_OUT = {
    "other weights": ("extra.safetensors",),
    "weights or data in another format": ("model.gguf", "tf_model.h5", "pytorch_model.bin"),
    "the same weights in another layout": ("consolidated.00.pth", "original/model.bin", "onnx/model.onnx"),
    "saved at an earlier step of training": ("checkpoint-5/config.json", "checkpoint-5/model.safetensors"),
    "not part of the checkpoint": ("model-00003-of-00009.safetensors",),
    "describes the files of the source, not of the result": (
        *(".gitattributes", "pytorch_model.bin.index.json", "sharding_report.json", "sharding_digests.json"),
        *("sharding_map.svg", "sharding_comparison.svg"),
    ),
    "an unfinished download": ("model.safetensors.part",),
    "differs only in case from a file that this tool writes": ("CONFIG.json",),
    "in a folder reserved for this tool": ("sharding_records/x.json",),
}
KEPT = {"config.json", "LICENSE", "tokenizer.json", "code_of_mine.py", "sub/notes.txt"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = in_two_files(tmp_path / "in")
    for path in (*(path for paths in LEFT_OUT.values() for path in paths), *KEPT - {"config.json"}):
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(b"x")
    return folder


def test_what_is_left_out_is_told_with_its_reason_and_all_else_is_copied(source: Path, tmp_path: Path) -> None:
    report = reshard(source, tmp_path / "out", "60kB")
    told = {}
    for finding in report.plan.findings:
        assert finding.code == "left-out"
        paths, _, reason = finding.message.removeprefix("Left out: ").removesuffix(").").partition(" (")
        told[reason] = [path.partition(" and ")[0] for path in paths.split(", ") if not path.endswith(" more")]
    assert told.keys() == LEFT_OUT.keys()
    assert all(paths and {*paths} <= {*LEFT_OUT[reason]} for reason, paths in told.items())
    ours = {path for path in listing(tmp_path / "out") if path.startswith(("model-", "model.", "sharding", "README"))}
    assert listing(tmp_path / "out").keys() - ours == KEPT
    said = " ".join(invoke("inspect", source).output.split())
    for reason, paths in LEFT_OUT.items():
        assert reason in said and any(path in said for path in paths)
