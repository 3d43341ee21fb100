"""What is left out, and why, is in what every command prints, for people and for programs."""

import json
from pathlib import Path

import pytest

from tests.commands import invoke
from tests.conftest import in_two_files, listing

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


def told(findings: list[dict[str, str]]) -> dict[str, list[str]]:
    """The paths that are left out, by reason."""
    found = {}
    for finding in findings:
        assert finding["code"] == "left-out"
        paths, _, reason = finding["message"].removeprefix("Left out: ").removesuffix(").").partition(" (")
        found[reason] = paths.split(", ")
    return found


def printed(*words: object) -> str:
    done = invoke(*words)
    assert done.exit_code == 0, done.output
    return done.stdout if words[-1] in ("--json", "--events") else " ".join(done.output.split())


def test_every_command_tells_programs_and_people_what_is_left_out_and_why(source: Path, tmp_path: Path) -> None:
    report = json.loads(printed("shard", source, tmp_path / "out", "-s", "60kB", "--json"))
    planned = json.loads(printed("shard", source, tmp_path / "again", "-s", "60kB", "--events").splitlines()[0])
    for findings in (
        json.loads(printed("inspect", source, "--json"))["findings"],
        json.loads(printed("plan", source, "-s", "60kB", "--json"))["findings"],
        report["plan"]["findings"],
        planned["source"]["findings"],
    ):
        found = told(findings)
        assert found.keys() == LEFT_OUT.keys()
        for reason, paths in found.items():
            shown = [path for path in paths if not path.endswith(" more")]
            assert {path.partition(" and ")[0] for path in shown} <= set(LEFT_OUT[reason])
    ours = {path for path in listing(tmp_path / "out") if path.startswith(("model-", "model.", "sharding", "README"))}
    assert listing(tmp_path / "out").keys() - ours == KEPT
    for words in (["inspect", source], ["shard", source, tmp_path / "people", "-s", "60kB"]):
        said = printed(*words)
        for reason, paths in LEFT_OUT.items():
            assert reason in said and any(path in said for path in paths)
