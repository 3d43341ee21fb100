"""A login that cannot be read, and a machine without memory: one sentence, no traceback, and never status 1."""

import json
import os
import resource
import subprocess
from concurrent.futures import Future
from pathlib import Path

import gradio as gr
import pytest
from huggingface_hub import constants

from sharding.page.site import Site
from tests.commands import invoke, run_process
from tests.conftest import environment
from tests.hubs import TOKEN, push
from tests.inhouse import hub_in_house
from tests.promises import promise

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


def said(result: "subprocess.CompletedProcess[str]") -> str:
    """The sentence with which a command has ended, which is the same for people and for programs."""
    error = json.loads(result.stdout)["error"]
    assert result.returncode == 3
    assert result.stderr.split() == f"{error['message']} {error['hint']}".split()
    return str(error["message"])


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a login is saved, and nothing is yet."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "login").mkdir()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "login/token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "login/stored_tokens"))
    return tmp_path / "login"


@promise("docs/security.md#accidents")
@pytest.mark.parametrize("file", ["token", "stored_tokens"])
def test_a_login_that_cannot_be_read_is_a_sentence(
    file: str, login: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (login / "token").write_text("hf_a")
    (login / file).unlink(missing_ok=True)
    os.mkfifo(login / file)
    monkeypatch.setenv("HF_TOKEN", " ")
    for command in (["inspect", checkpoint], ["shard", checkpoint, tmp_path / "out"]):
        done = invoke(*command)
        assert done.exit_code == 3
        assert done.stderr.startswith(f"The saved login cannot be read from {login / file}: ")
    monkeypatch.setenv("HF_TOKEN", "hf_a")
    assert invoke("inspect", checkpoint).exit_code == 0


def test_a_login_of_two_lines_is_one_and_nothing_is_none(login: Path, checkpoint: Path) -> None:
    (login / "token").write_text("hf_a\nb\n")
    assert invoke("inspect", checkpoint).exit_code == 0
    (login / "token").unlink()
    (login / "token").symlink_to(os.devnull)
    assert invoke("inspect", checkpoint).exit_code == 0


def test_the_page_says_that_the_login_of_its_machine_cannot_be_read(login: Path) -> None:
    (login / "token").mkdir()
    with pytest.raises(gr.Error, match="The saved login cannot be read"):
        Site("http://127.0.0.1:9").token(gr.Request(headers={}))


@promise("docs/security.md#accidents")
def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    names = {
        f"layers.{number}.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(250_000)
    }
    header = json.dumps(names).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    few = (150_000_000, 150_000_000)
    result = run_process("plan", tmp_path, "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, few))
    assert said(result) == "This machine does not have enough memory."


def test_a_folder_is_read_without_threads(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Future, "set_result", lambda *_: pytest.fail("a thread has found something"))
    assert invoke("inspect", checkpoint).exit_code == 0


@promise("docs/security.md#accidents")
@pytest.mark.parametrize("threads", ["reader", "fetch", "lane"])
def test_a_thread_that_dies_of_too_little_memory_keeps_nobody_waiting(
    threads: str, checkpoint: Path, tmp_path: Path
) -> None:
    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, checkpoint, "alice/source")
        words = ("shard", "alice/source", tmp_path / "out", "-s", "60kB", "--json")
        env = environment() | {"HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
        result = run_process(*words, program=DYING.replace("THREADS", repr(threads)), env=env)
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
    ],
)
def test_too_little_memory_for_the_program_itself_is_a_sentence(module: str, error: str, checkpoint: Path) -> None:
    program = FAILING.replace("MODULE", repr(module)).replace("ERROR", error)
    result = run_process("inspect", checkpoint, "--json", program=program)
    assert said(result) == "This machine does not have enough memory."
