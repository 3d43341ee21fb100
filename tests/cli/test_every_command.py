"""What holds for each command: empty words, errors for programs, the login, who may see a new repo."""

import json
import signal
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sharding import __version__, job
from sharding.cli import commands, start
from sharding.core.errors import DestinationError, Refused, Remedy, ShardingError, UsageError
from sharding.storage.folder_writing import FolderShardWriter
from tests.commands import invoke
from tests.conftest import write_checkpoint
from tests.docs.pages import CLI
from tests.hubs import TOKEN

NAMES = {
    "inspect": ["a/b"],
    "plan": ["a/b"],
    "shard": ["a/b", "c/d"],
    "verify": ["a/b", "c/d"],
    "diff": ["a/b", "c/d"],
    "discard": ["c/d"],
    "compare": ["a/b", "c/d"],
    "devices": ["a/b", "--budget", "cpu=1GB"],
}
"""Every command of a job, with what it must be given."""
DONE_BY = {"shard": "run", "diff": "verify"}
"""What of `job` does a command, where it is called otherwise."""
STREAMED = {"shard", "verify", "diff", "compare"}


def ways(command: str) -> list[list[str]]:
    """As a person gives it, and as programs do."""
    return [[], ["--json"], *([["--events"]] if command in STREAMED else [])]


@pytest.mark.parametrize(("command", "empty"), list(zip(NAMES, cycle(["", " \t\n"]), strict=False)))
def test_what_is_empty_is_refused_by_its_name(
    command: str, empty: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(job, DONE_BY.get(command, command), lambda *_, **__: pytest.fail("it has begun"))
    places = iter(range(len(NAMES[command])))
    for param in (param for param in CLI.commands[command].params if not getattr(param, "is_flag", False)):
        words, name = list(NAMES[command]), param.opts[0]
        if param.param_type_name == "argument":
            name, words[next(places)] = param.metavar, empty
        elif name in words:
            words[words.index(name) + 1] = empty
        else:
            words += [name, empty]
        if param.metavar == "N":
            done = invoke(command, *words)
            assert done.exit_code == 2 and name in done.stderr, (words, done.output)
            continue
        for way in ways(command):
            done = invoke(command, *words, *way)
            assert done.exit_code == 2 and f"{name} is empty." in done.stderr, (words, done.output)
            errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
            assert [error["message"] for error in errors] == [f"{name} is empty."] * bool(way), (words, way)
    if command == "inspect":
        for name in ("--folder", "--user"):
            assert invoke("localhub", "--folder", "hub", name, empty).exit_code == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", NAMES)
@pytest.mark.parametrize("kind", [UsageError, DestinationError, Refused, KeyboardInterrupt, ZeroDivisionError])
def test_an_error_is_said_to_a_person_and_printed_for_a_program(
    command: str, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        remedy = [Remedy("sign_in")] if issubclass(kind, ShardingError) else []
        raise kind(f"It is {TOKEN}.", f"Look at {TOKEN}.", *remedy)

    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(job, DONE_BY.get(command, command), fail)
    status = {UsageError: 2, KeyboardInterrupt: 130}.get(kind, 3)
    named = {KeyboardInterrupt: "Cancelled", ZeroDivisionError: "Fault"}.get(kind, kind.__name__)
    for way in ways(command):
        done = invoke(command, *NAMES[command], *way)
        assert done.exit_code == status and TOKEN not in done.stdout + done.stderr
        errors = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(errors) == bool(way)
        for error in (document["error"] for document in errors):
            assert list(error) == ["kind", "message", "hint", "remedy"] and error["kind"] == named
            assert error["remedy"] == ({"kind": "sign_in", "value": ""} if issubclass(kind, ShardingError) else None)
            assert error["message"] in done.stderr and error["hint"] in done.stderr
        assert "[token]" in done.stderr or kind is KeyboardInterrupt
        if kind in (UsageError, DestinationError, Refused):
            assert "It is [token].\nLook at [token].\n" in done.stderr.replace("\n\n", "\n")
        if kind is KeyboardInterrupt:
            assert ("To go on, run the same command again." in done.stderr) == (command == "shard")


@pytest.mark.parametrize("way", [[], ["--json"], ["--events"]])
@pytest.mark.parametrize("error", [MemoryError(), ImportError("x.so: failed to map segment")], ids=repr)
def test_where_there_is_no_memory_to_begin_a_sentence_says_so(
    way: list[str], error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(commands, "main", fail)
    monkeypatch.setattr("sys.argv", ["shard-my-repo", "shard", "a", "b", *way])
    with pytest.raises(SystemExit) as end:
        start.main()
    said = capsys.readouterr()
    assert end.value.code == 3 and said.err.startswith("This machine does not have enough memory.\n")
    errors = [json.loads(line)["error"] for line in said.out.splitlines()]
    assert len(errors) == bool(way)
    for told in errors:
        assert told["kind"] == "Refused" and said.err == f"{told['message']}\n{told['hint']}\n"
    error = ImportError("no typer")
    with pytest.raises(ImportError, match="no typer"):
        start.main()


SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def whole_program(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the program changes of its process is as it was in the end."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    monkeypatch.setattr("gc.set_threshold", lambda *_: None)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("whole_program")
def test_within_another_program_its_outputs_stay(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sys.stdout, sys.stderr
    monkeypatch.setattr("sys.argv", ["shard-my-repo", "--version"])
    with pytest.raises(SystemExit):
        start.main()
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == f"shard-my-repo {__version__}\n"


@pytest.mark.usefixtures("whole_program")
@pytest.mark.parametrize("sent", [[signal.SIGTERM], [signal.SIGHUP, signal.SIGHUP]])
def test_a_signal_is_an_interrupt_and_a_closed_terminal_one_however_often_it_is_told(
    sent: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_away: list[bool] = []

    def discard(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(sent[0])
        finally:
            for number in sent[1:]:
                signal.raise_signal(number)
            put_away.append(True)

    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    monkeypatch.setattr("sys.argv", ["shard-my-repo", "discard", "a/b"])
    monkeypatch.setattr(job, "discard", discard)
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    with pytest.raises(SystemExit):
        commands.main()
    assert ended == [130] and put_away == [True]


@pytest.mark.parametrize("command", ["inspect", "plan", "shard"])
def test_what_is_found_of_the_source_and_of_the_plan_is_shown(command: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": {"w": np.zeros(3000)}}, index=False)
    (folder / "model.safetensors.index.json").write_text("{")
    of_source = {finding.message for finding in job.inspect(str(folder)).findings}
    found = of_source | {finding.message for finding in job.plan(str(folder), "1kB")[1].findings}
    assert len(found) > len(of_source) > 0
    found = of_source if command == "inspect" else found
    words = {"inspect": (), "plan": ("-s", "1kB"), "shard": (tmp_path / "out", "-s", "1kB", "--overwrite")}[command]
    document = json.loads(invoke(command, folder, *words, "--json").stdout)
    assert sorted(one["message"] for one in document.get("plan", document)["findings"]) == sorted(found)
    done = invoke(command, folder, *words)
    for message in found:
        assert done.stderr.count(message) == 1 and message not in done.stdout


@pytest.mark.parametrize("way", [[], ["--json"], ["--events"]])
def test_a_copy_that_differs_is_a_no(
    way: list[str], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FolderShardWriter.write
    monkeypatch.setattr(FolderShardWriter, "write", lambda to, data: write(to, bytes(len(data))))
    done = invoke("shard", checkpoint, tmp_path / "out", "-s", "1GB", *way)
    assert done.exit_code == 1 and not (tmp_path / "out").exists()


def test_every_command_of_a_job_is_tried_here() -> None:
    assert {*NAMES, "localhub"} == CLI.commands.keys()


def test_localhub_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: set[str] = set()
    served: list[list[str]] = []
    monkeypatch.setattr("sharding.core.extras.is_installed", lambda module: module not in missing)

    def main(words: list[str], **_: object) -> None:
        served.append(words)

    monkeypatch.setitem(sys.modules, "sharding.localhub.__main__", SimpleNamespace(main=main))
    for module, words, extra in (
        ("uvicorn", [], "localhub"),
        ("joserfc", [], "localhub"),
        ("torch", ["--samples"], "load"),
    ):
        missing.add(module)
        done = invoke("localhub", "--port", "1", *words)
        assert done.exit_code == 3 and f"pip install '.[{extra}]'" in done.stderr and not served
        missing.clear()
    missing.add("torch")
    assert invoke("localhub", "--port", "1").exit_code == 0 and served == [["--port", "1"]]
