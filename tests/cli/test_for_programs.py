"""What programs read: one object or one a line, whatever happens, and a status that means one thing."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.commands import invoke
from tests.conftest import in_two_files, write_checkpoint
from tests.promises import promise


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint `in`, a sound copy of it and one that differs in one number."""
    folder = tmp_path_factory.mktemp("made")
    (in_two_files(folder / "in") / "model.gguf").write_bytes(b"x")
    assert invoke("shard", str(folder / "in"), str(folder / "copy"), "-s", "1GB").exit_code == 0
    shutil.copytree(folder / "copy", folder / "other")
    tensors = load_file(folder / "other/model.safetensors")
    tensors["layers.3.weight"][17] += 1
    save_file(tensors, folder / "other/model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in the current folder."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


DONE = {
    "inspect": ["inspect", "./in"],
    "plan": ["plan", "./in", "-s", "60kB"],
    "shard": ["shard", "./in", "./new", "-s", "60kB"],
    "verify": ["verify", "./in", "./copy"],
    "quick": ["verify", "./copy", "./copy", "--quick"],
    "discard": ["discard", "./copy"],
}


@pytest.mark.parametrize("command", DONE)
def test_what_is_done_is_one_object_with_status_0_and_a_finding_stops_nothing(command: str, place: Path) -> None:
    for_people = invoke(*DONE[command])
    assert for_people.exit_code == 0, for_people.output
    stage = {"shard": "writing shards", "verify": "verifying"}.get(command, "")
    assert stage in for_people.stderr and not (stage and stage in for_people.stdout)
    done = invoke(*[word.replace("./new", "./more") for word in DONE[command]], "--json")
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1), done.output
    said = json.loads(done.stdout)
    assert isinstance(said, dict) and "error" not in said and "event" not in said
    assert ("Identical" in done.stderr) == (command in ("shard", "verify", "quick")) and "{" not in done.stderr
    if command == "shard":
        assert said == json.loads((place / "more/sharding_report.json").read_text())
    findings = [*said.get("findings", []), *said.get("plan", {}).get("findings", [])]
    assert len(findings) >= (command in ("inspect", "plan", "shard"))
    for finding in findings:
        assert finding.keys() == {"level", "code", "message", "hint"} and finding["level"] in ("info", "warning")


@pytest.mark.parametrize("how", ["", "--json", "--events"])
def test_status_1_means_that_a_copy_differs_and_nothing_else_does(how: str, place: Path) -> None:
    done = invoke("verify", "./in", "./other", *[how] * bool(how))
    assert done.exit_code == 1
    if how:
        said = [json.loads(line) for line in done.stdout.splitlines()]
        assert said[-1]["mismatches"] == [{"tensor": "layers.3.weight", "problem": "its bytes differ"}]
        named = [line["event"] for line in said if how == "--events" and line["event"] != "progress"]
        assert named == ["verified"] * (how == "--events")
    assert invoke("verify", "./in", "./copy", *[how] * bool(how)).exit_code == 0


def test_with_events_every_line_is_one_thing_that_happened_and_the_report_is_the_last(place: Path) -> None:
    done = invoke("shard", "./in", "./new", "-s", "60kB", "--events")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(list(line)[0] == "event" for line in lines)
    order = [line["event"] for line in lines if line["event"] != "progress"]
    assert order == ["planned", *["shard-finished"] * 5, "verified", "published", "report"]
    written = json.loads((place / "new/sharding_report.json").read_text())
    assert lines[-1] == {"event": "report", **written}
    assert "{" not in done.stderr


HOSTILE = "w\x1b[31m\x7f\x9b\u200b\u202e\u2066\U000e0041é"


@promise("docs/security.md#send-commands-to-your-terminal-in")
def test_what_is_printed_for_programs_holds_no_character_that_a_terminal_obeys(tmp_path: Path) -> None:
    source, other, out = tmp_path / "in", tmp_path / "other", tmp_path / "out"
    for folder, name in ((source, HOSTILE), (other, "x")):
        write_checkpoint(folder, {"model.safetensors": {name: np.ones(9, np.float32)}}, index=False)
    for words, status in (
        (["inspect", source, "--json"], 0),
        (["plan", source, "--json"], 0),
        (["shard", source, out, "--events"], 0),
        (["verify", source, other, "--json"], 1),
        (["inspect", f"{tmp_path}/no{HOSTILE}", "--json"], 3),
    ):
        done = invoke(*words)
        assert done.exit_code == status, done.stderr
        assert all(line.isprintable() and line.isascii() for line in done.stdout.splitlines())
        if words[0] == "plan":
            assert [*json.loads(done.stdout)["weight_map"]] == [HOSTILE]


@promise("docs/security.md#make-every-byte-read-sound-like")
def test_verify_says_what_it_has_not_checked(made: Path) -> None:
    done = invoke("verify", made / "in", made / "copy")
    files = "other files (they may hold weights too)"
    assert f"Not checked: code, configuration, tokenizer, {files} and the figures of a report" in done.stdout
    unchecked = json.loads(invoke("verify", made / "in", made / "copy", "--json").stdout)["unchecked"]
    assert unchecked[:3] == ["code", "configuration", "tokenizer"]
