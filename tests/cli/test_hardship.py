"""A login that cannot be read, and a machine without memory: one sentence, no traceback, and never status 1."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gradio as gr
import pytest

from sharding.page.site import Site
from tests.conftest import environment
from tests.hubs import TOKEN, push
from tests.inhouse import hub_in_house
from tests.promises import promise

Arrange = Callable[[Path], object]
LOGINS: dict[str, Arrange] = {
    "a folder": lambda path: path.mkdir(),
    "a link in a circle": lambda path: path.symlink_to(path.name),
    "bytes": lambda path: path.write_bytes(bytes(range(128, 256))),
    "a gigabyte": lambda path: (path.touch(), os.truncate(path, 10**9)),
    "a pipe": lambda path: os.mkfifo(path),
    "below a file": lambda path: path.parent.rmdir() or path.parent.write_text(""),
}


DYING = """
import threading
from concurrent.futures import Future

usual = Future.set_result

def set_result(future, result):
    if threading.current_thread().name.startswith(THREADS):
        raise MemoryError
    usual(future, result)

Future.set_result = set_result
from sharding.cli.commands import main; main()
"""
"""The command, where threads that are called THREADS have no memory left to hand over what they found."""


def run(
    *arguments: str, memory_bytes: int = resource.RLIM_INFINITY, program: str = "", **variables: str
) -> "subprocess.CompletedProcess[str]":
    def hold() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))

    env = {name: text for name, text in environment().items() if not name.startswith(("HF_TOKEN", "PYTHONWARNINGS"))}
    command = [sys.executable, *(["-c", program] if program else ["-m", "sharding"]), *arguments]
    return subprocess.run(command, env=env | variables, capture_output=True, text=True, timeout=120, preexec_fn=hold)


def said(result: "subprocess.CompletedProcess[str]") -> str:
    """The sentence with which a command has ended, which is the same for people and for programs."""
    error = json.loads(result.stdout)["error"]
    assert result.returncode == 3
    assert result.stderr.split() == f"{error['message']} {error['hint']}".split()
    return str(error["message"])


@promise("docs/security.md#accidents")
@pytest.mark.parametrize("kind", LOGINS)
def test_a_login_that_cannot_be_read_is_a_sentence(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "login" / "token"
    path.parent.mkdir()
    LOGINS[kind](path)
    for command in (["inspect", str(checkpoint)], ["shard", str(checkpoint), str(tmp_path / "out")]):
        result = run(*command, "--json", HF_TOKEN_PATH=str(path))
        assert said(result).startswith(f"The saved login cannot be read from {path}: "), result.stderr


@pytest.mark.parametrize("kind", ["a gigabyte", "a pipe"])
def test_what_renews_a_login_and_cannot_be_read_is_a_sentence(checkpoint: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "token").write_text("hf_a")
    LOGINS[kind](tmp_path / "stored_tokens")
    result = run("inspect", str(checkpoint), "--json", HF_TOKEN_PATH=str(tmp_path / "token"))
    assert said(result).startswith(f"The saved login cannot be read from {tmp_path / 'stored_tokens'}: ")


def test_a_login_in_the_environment_that_is_blank_is_none(checkpoint: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "token")
    result = run("inspect", str(checkpoint), "--json", HF_TOKEN_PATH=str(tmp_path / "token"), HF_TOKEN=" ")
    assert said(result).startswith("The saved login cannot be read")


@pytest.mark.parametrize("is_link", [False, True])
def test_nothing_is_no_login(checkpoint: Path, tmp_path: Path, is_link: bool) -> None:
    (tmp_path / "token").symlink_to(os.devnull)
    path = str(tmp_path / "token") if is_link else os.devnull
    result = run("inspect", str(checkpoint), "--json", HF_TOKEN_PATH=path)
    assert result.returncode == 0, result.stderr


def test_a_login_with_a_line_break_is_read_as_one_line(checkpoint: Path, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("hf_a\nb\n")
    assert run("inspect", str(checkpoint), "--json", HF_TOKEN_PATH=str(path)).returncode == 0


def test_a_login_in_the_environment_needs_no_file(checkpoint: Path, tmp_path: Path) -> None:
    result = run("inspect", str(checkpoint), "--json", HF_TOKEN_PATH=str(tmp_path), HF_TOKEN="hf_a")
    assert result.returncode == 0


def test_the_page_says_that_the_login_of_its_machine_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path))
    with pytest.raises(gr.Error, match="The saved login cannot be read"):
        Site("http://127.0.0.1:9").token(gr.Request(headers={}))


@promise("docs/security.md#accidents")
def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    names = {
        f"layers.{number}.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(400_000)
    }
    header = json.dumps(names).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    for command in ("inspect", "plan"):
        result = run(command, str(tmp_path), "--json", memory_bytes=150_000_000)
        assert said(result) == "This machine does not have enough memory."


def dying(threads: str) -> str:
    return DYING.replace("THREADS", repr(threads))


def test_a_folder_is_read_without_threads(checkpoint: Path) -> None:
    assert run("inspect", str(checkpoint), "--json", program=dying("")).returncode == 0


@promise("docs/security.md#accidents")
@pytest.mark.parametrize("threads", ["reader", "fetch", "lane"])
def test_a_thread_that_dies_of_too_little_memory_keeps_nobody_waiting(
    threads: str, checkpoint: Path, tmp_path: Path
) -> None:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, checkpoint, "alice/source")
        command = ["shard", "alice/source", str(tmp_path / "out"), "-s", "60kB", "--json"]
        result = run(*command, program=dying(threads), HF_ENDPOINT=hub.address, HF_TOKEN=TOKEN)
    assert json.loads(result.stdout)["error"]["message"] == "This machine does not have enough memory."
    assert result.returncode == 3


FAILING = """
import runpy, sys

class Full:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            raise ERROR

sys.meta_path.insert(0, Full())
runpy.run_module("sharding", run_name="__main__", alter_sys=True)
"""
"""The command, where there is no memory left as it imports MODULE."""


@pytest.mark.parametrize(
    ("module", "error"),
    [
        pytest.param("typer", "MemoryError", id="command"),
        pytest.param("rich.console", "MemoryError", id="terminal"),
        pytest.param("sharding.job", "ImportError('numpy.so: failed to map segment from shared object')", id="library"),
        pytest.param("sharding.job", 'RuntimeError("can\'t start new thread")', id="thread"),
    ],
)
def test_too_little_memory_for_the_program_itself_is_a_sentence(module: str, error: str, checkpoint: Path) -> None:
    program = FAILING.replace("MODULE", repr(module)).replace("ERROR", error)
    result = run("inspect", str(checkpoint), "--json", program=program)
    assert said(result) == "This machine does not have enough memory."


def test_a_module_that_is_missing_is_no_lack_of_memory(checkpoint: Path) -> None:
    program = FAILING.replace("MODULE", "'typer'").replace("ERROR", "ImportError('no typer')")
    result = run("inspect", str(checkpoint), program=program)
    assert result.returncode == 1 and "ImportError: no typer" in result.stderr
