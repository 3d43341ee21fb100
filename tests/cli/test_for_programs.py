"""What programs read: one object or one a line, whatever happens, and a status that means one thing."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

from sharding.storage.folder_source import FolderSource
from tests.commands import invoke
from tests.conftest import in_two_files, listing


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
REFUSED = {
    "inspect": (["inspect", "./nowhere"], 3, "SourceError"),
    "plan": (["plan", "./in", "-s", "many"], 2, "UsageError"),
    "shard": (["shard", "./nowhere", "./new"], 3, "SourceError"),
    "into itself": (["shard", "./in", "./in"], 3, "DestinationError"),
    "verify": (["verify", "./in", "./nowhere"], 3, "SourceError"),
    "quick": (["verify", "./in", "./copy", "--quick"], 3, "SourceError"),
    "discard": (["discard", "~nobody-of-this-name/x"], 3, "DestinationError"),
    "compare": (["compare", "./in", "./nowhere"], 3, "SourceError"),
    "devices": (["devices", "./in", "--budget", "much"], 2, "UsageError"),
}


@pytest.mark.parametrize("command", DONE)
def test_what_is_done_is_one_object_with_status_0_and_a_finding_stops_nothing(command: str, place: Path) -> None:
    for_people = invoke(*DONE[command])
    assert for_people.exit_code == 0, for_people.output
    done = invoke(*[word.replace("./new", "./more") for word in DONE[command]], "--json")
    assert (done.exit_code, done.stdout.count("\n")) == (0, 1), done.output
    said = json.loads(done.stdout)
    assert isinstance(said, dict) and "error" not in said and "event" not in said
    assert ("Identical" in done.stderr) == (command in ("shard", "verify", "quick")) and "{" not in done.stderr
    findings = [*said.get("findings", []), *said.get("plan", {}).get("findings", [])]
    assert len(findings) >= (command in ("inspect", "plan", "shard"))
    for finding in findings:
        assert finding.keys() == {"level", "code", "message", "hint"} and finding["level"] in ("info", "warning")


@pytest.mark.parametrize("how", ["--json", "--events"])
@pytest.mark.parametrize("command", REFUSED)
def test_what_ends_without_a_result_says_so_in_one_object_and_in_a_sentence(
    command: str, how: str, place: Path
) -> None:
    arguments, status, kind = REFUSED[command]
    if how == "--events" and arguments[0] not in ("shard", "verify", "compare"):
        arguments = [*arguments, "--json"]
    else:
        arguments = [*arguments, how]
    before = listing(place)
    done = invoke(*arguments)
    assert (done.exit_code, done.stdout.count("\n")) == (status, 1), done.output
    said = json.loads(done.stdout)
    assert said.keys() == {"error"} and said["error"].keys() == {"kind", "message", "hint", "remedy"}
    assert said["error"]["kind"] == kind and said["error"]["message"] and said["error"]["hint"]
    assert done.stderr == f"{said['error']['message']}\n{said['error']['hint']}\n"
    assert listing(place) == before


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


@pytest.fixture
def interrupting(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have somebody press Ctrl-C while a source is read for the so manieth time."""

    def at(number: int) -> None:
        usual, reads = FolderSource.read, iter(range(number))

        def read(self: FolderSource, file: str, start: int, end: int) -> Iterator[bytes]:
            if next(reads, None) is None:
                raise KeyboardInterrupt
            return usual(self, file, start, end)

        monkeypatch.setattr(FolderSource, "read", read)

    return at


@pytest.mark.parametrize("how", ["--json", "--events"])
@pytest.mark.parametrize(("command", "resumes"), [("shard", True), ("verify", False)])
def test_a_command_that_is_cancelled_ends_with_status_130(
    command: str, resumes: bool, how: str, place: Path, interrupting: Callable[[int], None]
) -> None:
    interrupting(0)
    done = invoke(*DONE[command], how)
    assert done.exit_code == 130
    error: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["error"]
    assert (error["kind"], error["message"]) == ("Cancelled", "Cancelled.")
    assert ("run the same command again" in error["hint"]) == resumes
    assert not (place / "new").exists() and "Traceback" not in done.stderr
