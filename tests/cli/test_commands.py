"""The command line: what it prints where, and the status it exits with."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from sharding.cli.commands import app
from tests.conftest import environment, in_two_files, listing, random_tensors, write_checkpoint
from tests.folders import recorded_in, staged
from tests.promises import promise

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_plan_json_is_one_object_with_the_keys_others_depend_on(run: Run, checkpoint: Path) -> None:
    done = run("plan", checkpoint, "--max-shard-size", "60kB", "--json")
    assert done.returncode == 0
    plan = json.loads(done.stdout)
    assert {"shards", "weight_map", "total_bytes", "total_parameters", "findings"} <= plan.keys()
    assert [set(shard) for shard in plan["shards"]] == [{"file", "bytes", "tensors"}] * len(plan["shards"])
    assert sorted(name for shard in plan["shards"] for name in shard["tensors"]) == sorted(random_tensors())
    assert plan["total_bytes"] == sum(array.nbytes for array in random_tensors().values())


def test_shard_json_is_the_report(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = run("shard", checkpoint, tmp_path / "out", "--max-shard-size", "60kB", "--json")
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "out/sharding_report.json").read_text())
    assert printed["source"]["repo_id"] == "checkpoint"
    assert printed["verification"]["identical"] is True
    assert {"peak_anon_bytes", "seconds", "bytes_read", "bytes_uploaded", "disk_bytes_written"} <= printed[
        "resources"
    ].keys()
    assert printed["resources"]["disk_bytes_written"] >= printed["plan"]["total_bytes"]
    assert (
        printed["plan"]["weight_map"]
        == json.loads((tmp_path / "out/model.safetensors.index.json").read_text())["weight_map"]
    )


def test_events_are_one_object_a_line_with_the_report_last(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = run("shard", checkpoint, tmp_path / "out", "--max-shard-size", "60kB", "--events")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events if event["event"] != "progress"] == [
        "planned",
        *["shard-finished"] * len(events[-1]["shards"]),
        "verified",
        "published",
        "report",
    ]
    progress = next(event for event in events if event["event"] == "progress")
    assert {"stage", "bytes_done", "bytes_total", "bytes_per_second", "seconds_left"} <= progress.keys()


def test_a_person_sees_tables_and_the_outcome(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert "14 tensors, 60,034 parameters, 240.1 kB in F16, F32, I64" in run("inspect", checkpoint).stdout
    assert "model-00002-of-00005.safetensors" in run("plan", checkpoint, "-s", "60kB").stdout
    done = run("shard", checkpoint, tmp_path / "out", "-s", "60kB")
    assert "Identical: all 14 tensors" in done.stdout
    assert "writing shards" in done.stderr
    assert "Identical" in run("verify", checkpoint, tmp_path / "out").stdout


def test_verify_says_no_with_status_1_and_names_the_tensor(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    run("shard", checkpoint, tmp_path / "out", "--max-shard-size", "1GB")
    tensors = load_file(tmp_path / "out/model.safetensors")
    tensors["layers.3.weight"][17] += 1
    save_file(tensors, tmp_path / "out/model.safetensors", metadata={"format": "pt"})
    done = run("verify", checkpoint, tmp_path / "out", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["mismatches"] == [{"tensor": "layers.3.weight", "problem": "its bytes differ"}]


def test_a_single_file_has_no_index_and_takes_no_size(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    done = run("shard", checkpoint, tmp_path / "out", "--single-file")
    assert done.returncode == 0 and "1 shard, order natural" in done.stdout
    assert sorted(path.name for path in (tmp_path / "out").glob("model*")) == ["model.safetensors"]
    written = load_file(tmp_path / "out/model.safetensors")
    assert {name: array.tobytes() for name, array in written.items()} == {
        name: array.tobytes() for name, array in random_tensors().items()
    }
    assert "in one file." in (tmp_path / "out/README.md").read_text()
    for more in (["-s", "1GB"], ["--strategy", "blocks"]):
        refused = run("shard", checkpoint, tmp_path / "refused", "--single-file", *more)
        assert refused.returncode == 2 and not (tmp_path / "refused").exists()


@promise("README.md#what-to-type")
def test_a_plan_is_drawn_where_it_is_asked_for(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    assert run("plan", checkpoint, "-s", "60kB", "--picture", tmp_path / "map.svg").returncode == 0
    assert "checkpoint: 2 files → 5" in (tmp_path / "map.svg").read_text()
    refused = run("plan", checkpoint, "--picture", tmp_path / "no/such/folder.svg", "--json")
    assert refused.returncode == 3
    assert "cannot be written" in json.loads(refused.stdout)["error"]["message"]


@pytest.mark.parametrize("size", ["0", "-1GB", "10 apples", "nan", "200M"])
def test_a_wrong_size_is_wrong_usage(run: Run, checkpoint: Path, tmp_path: Path, size: str) -> None:
    done = run("shard", checkpoint, tmp_path / "out", f"--max-shard-size={size}")
    assert done.returncode == 2
    assert repr(size) in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("empty", ["", " "])
@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "%"],
        ["inspect", "SOURCE", "--base", "%"],
        ["inspect", "SOURCE", "--variant=%"],
        ["plan", "%"],
        ["plan", "SOURCE", "-s", "%"],
        ["plan", "SOURCE", "--picture", "%"],
        ["shard", "SOURCE", "%", "--overwrite"],
        ["shard", "SOURCE", "%", "--restart", "--json"],
        ["shard", "%", "out"],
        ["shard", "SOURCE", "out", "--max-shard-size", "%", "--json"],
        ["shard", "SOURCE", "out", "--strategy", "%"],
        ["shard", "SOURCE", "out", "--dtype", "%"],
        ["shard", "SOURCE", "out", "--workers", "%"],
        ["verify", "SOURCE", "%"],
        ["verify", "%", "SOURCE"],
        ["discard", "%"],
        ["compare", "SOURCE", "%"],
        ["compare", "SOURCE", "SOURCE", "--memory-limit", "%"],
        ["devices", "SOURCE", "--budget", "%"],
        ["localhub", "--folder", "%"],
        ["localhub", "--folder", "hub", "--user", "%"],
    ],
    ids=" ".join,
)
def test_what_is_given_empty_is_wrong_usage_and_touches_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], empty: str
) -> None:
    here = in_two_files(tmp_path / "here")
    (here / "sharding_journal.part").write_text("begun by somebody\n")
    monkeypatch.chdir(here)
    before = listing(tmp_path)
    said = CliRunner().invoke(app, [part.replace("SOURCE", "../checkpoint").replace("%", empty) for part in arguments])
    assert said.exit_code == 2, said.output
    assert listing(tmp_path) == before
    if "--json" in arguments:
        assert json.loads(said.stdout)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    "arguments", [["shard"], ["shard", "a", "b", "c"], ["frobnicate"], ["plan", "a", "--order", "random"], ["--nope"]]
)
def test_wrong_usage_exits_with_2(run: Run, arguments: list[str]) -> None:
    assert run(*arguments).returncode == 2


def test_what_is_refused_exits_with_3_in_one_sentence_and_a_hint(run: Run, tmp_path: Path) -> None:
    done = run("shard", tmp_path / "nowhere", tmp_path / "out", "--json")
    assert done.returncode == 3
    assert len(done.stderr.strip().splitlines()) == 2
    error = json.loads(done.stdout)["error"]
    assert error["kind"] == "SourceError"
    assert error["message"] in done.stderr
    assert error["hint"] in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["inspect", "plan", "shard", "verify"])
def test_a_hostile_file_is_refused_by_every_command_and_nothing_is_left(run: Run, tmp_path: Path, command: str) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / "model.safetensors").write_bytes(b"\xff" * 7 + b"\x00" + b"{" * 100)
    arguments = [source, tmp_path / "out"] if command in ("shard", "verify") else [source]
    done = run(command, *arguments)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert set(listing(tmp_path)) == {"in/model.safetensors"}


def test_names_of_strangers_cannot_steer_the_terminal(run: Run, tmp_path: Path) -> None:
    name = "\x1b]0;owned\x07\x1b[31m[bold red]x"
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": {name: np.zeros(3000)}}, index=False)
    done = run("plan", folder, "-s", "1kB")
    assert done.returncode == 0
    assert "\x1b]" not in done.stdout + done.stderr
    assert r"\x1b]0;owned\x07\x1b[31m[bold red]x" in done.stderr


def test_the_version_is_printed(run: Run) -> None:
    from sharding import __version__

    assert run("--version").stdout.strip() == f"shard-my-repo {__version__}"


@pytest.mark.parametrize("command", [[], ["inspect"], ["plan"], ["shard"], ["verify"]])
def test_help_needs_no_heavy_library(command: list[str]) -> None:
    script = (
        "import sys; from sharding.cli.commands import main; sys.argv[1:] = "
        f"{[*command, '--help']!r}\ntry: main()\nexcept SystemExit as end: assert not end.code\n"
        "print(sorted({'huggingface_hub', 'numpy', 'torch', 'transformers', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Usage: shard-my-repo" in done.stdout


def hear_hangups() -> None:
    """Undo what nohup does, in which tests may have been started."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def start_slow_job(checkpoint: Path, out: Path, **more: Any) -> "subprocess.Popen[str]":
    """A job that is certainly still at work after its first shard: writing the next one takes it a minute."""
    script = (
        "import time; from sharding.storage.folder_destination import FolderDestination; open_shard = FolderDestination.open_shard\n"
        "opened = []\n"
        "def slow(*arguments):\n"
        "    opened.append(1)\n"
        # In short sleeps: a signal that comes just before a sleep begins does not end it.
        "    for _ in range(1200 * (len(opened) > 1)): time.sleep(0.05)\n"
        "    return open_shard(*arguments)\n"
        "FolderDestination.open_shard = slow\n"
        "from sharding.cli.start import main; main()"
    )
    command = [sys.executable, "-c", script, "shard", str(checkpoint), str(out), "-s", "20kB", "--events"]
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "preexec_fn": hear_hangups}
    job = subprocess.Popen(command, text=True, env=environment(), **(usual | more))
    assert job.stdout
    while '"shard-finished"' not in job.stdout.readline():
        pass
    return job


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_ends_cleanly_with_130_and_says_how_to_resume(
    run: Run, checkpoint: Path, tmp_path: Path, sent: signal.Signals
) -> None:
    job = start_slow_job(checkpoint, tmp_path / "out")
    job.send_signal(sent)
    stdout, stderr = job.communicate(timeout=60)
    assert job.returncode == 130
    assert "run the same command again" in stderr
    assert "Traceback" not in stderr
    assert json.loads(stdout.splitlines()[-1])["error"]["kind"] == "Cancelled"
    parts = {path.name for path in staged(tmp_path / "out").glob("*.safetensors*.part")}
    assert {f"{file}.part" for file in recorded_in(tmp_path / "out")} == {
        part for part in parts if "record" not in part
    }
    again = run("shard", checkpoint, tmp_path / "out", "-s", "20kB")
    assert again.returncode == 0
    assert "was finished by an earlier run and is kept" in again.stderr


def test_a_second_job_is_told_which_process_is_at_work_and_touches_nothing(
    run: Run, checkpoint: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job = start_slow_job(checkpoint, out)
    try:
        before = listing(out)
        for words in (["shard", checkpoint, out, "-s", "20kB"], ["shard", checkpoint, out], ["discard", out]):
            refused = run(*words)
            assert refused.returncode == 3
            who = f"process {job.pid} on {socket.gethostname()}"
            assert f"Another job is writing to {out} right now: {who}.\nWait until it ends, " in refused.stderr
            assert "could not be removed" not in refused.stderr and listing(out) == before
    finally:
        job.terminate()
        job.communicate(timeout=60)
    assert run("discard", out).returncode == 0 and listing(out) == {}


HOSTILE = "w\x1b[31m\x7f\x9b\u200b\u202e\u2066\U000e0041é"


@promise("docs/security.md#send-commands-to-your-terminal-in")
def test_what_is_printed_for_programs_holds_no_character_that_a_terminal_obeys(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "gpt2"
    write_checkpoint(source, {"model.safetensors": {HOSTILE: np.ones(9, np.float32)}}, index=False)
    out, other = tmp_path / "out", tmp_path / "other"
    write_checkpoint(other, {"model.safetensors": {"x": np.ones(9, np.float32)}}, index=False)
    for words, status in (
        (["inspect", source], 0),
        (["plan", source], 0),
        (["shard", source, out], 0),
        (["verify", source, out], 0),
        (["verify", source, other], 1),
        (["inspect", f"{tmp_path}/no{HOSTILE}"], 3),
        (["discard", out], 0),
    ):
        done = run(*words, "--json")
        assert done.returncode == status, done.stderr
        assert done.stdout.rstrip("\n").isprintable() and done.stdout.isascii()
        document = json.loads(done.stdout)
        if words[0] == "plan":
            assert [*document["weight_map"]] == [HOSTILE]
    done = run("shard", source, out, "--overwrite", "-s", "1kB", "--events")
    assert all(line.isprintable() and line.isascii() for line in done.stdout.splitlines())


@promise("docs/security.md#make-every-byte-read-sound-like")
def test_verify_says_what_it_has_not_checked(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    run("shard", checkpoint, tmp_path / "out")
    done = run("verify", checkpoint, tmp_path / "out")
    files = "other files (they may hold weights too)"
    assert f"Not checked: code, configuration, tokenizer, {files} and the figures of a report" in done.stdout
    unchecked = json.loads(run("verify", checkpoint, tmp_path / "out", "--json").stdout)["unchecked"]
    assert unchecked[:3] == ["code", "configuration", "tokenizer"]


def test_a_folder_with_the_name_of_a_repo_is_called_a_folder(run: Run, checkpoint: Path) -> None:
    folder = checkpoint.rename(checkpoint.parent / "gpt2")
    done = run("inspect", folder)
    assert done.stdout.startswith("the folder gpt2: ")
    assert json.loads(run("inspect", folder, "--json").stdout)["kind"] == "folder"
