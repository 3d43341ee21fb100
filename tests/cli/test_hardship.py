"""A login that cannot be read, and a machine without memory: one sentence, no traceback, and never status 1."""

import json
import os
import resource
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import gradio as gr
import pytest
from huggingface_hub import constants

from sharding.page.site import Site
from tests.commands import invoke, run_process
from tests.hubs import TOKEN, push
from tests.inhouse import hub_in_house
from tests.promises import promise

LACK = "This machine does not have enough memory."


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a login is saved, and nothing is yet."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    (tmp_path / "login").mkdir()
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "login/token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(tmp_path / "login/stored_tokens"))
    return tmp_path / "login"


@promise("docs/security.md#accidents")
def test_a_login_that_cannot_be_read_is_a_sentence_and_one_of_two_lines_or_of_none_is_read(
    login: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(login / "token")
    for command in (["inspect", checkpoint], ["shard", checkpoint, tmp_path / "out"]):
        done = invoke(*command)
        assert done.exit_code == 3
        assert done.stderr.startswith(f"The saved login cannot be read from {login / 'token'}: ")
    (login / "token").unlink()
    for make in (
        lambda path: path.write_text("hf_a\nb\n"),
        lambda path: path.unlink(),
        lambda path: path.symlink_to(os.devnull),
    ):
        make(login / "token")
        assert invoke("inspect", checkpoint).exit_code == 0


def test_the_page_says_that_the_login_of_its_machine_cannot_be_read(login: Path) -> None:
    (login / "token").mkdir()
    with pytest.raises(gr.Error, match="The saved login cannot be read"):
        Site("http://127.0.0.1:9").token(gr.Request(headers={}))


@promise("docs/security.md#accidents")
def test_too_little_memory_is_a_sentence(tmp_path: Path) -> None:
    names = {
        f"layers.{number}.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for number in range(160_000)
    }
    header = json.dumps(names).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    few = (150_000_000, 150_000_000)
    result = run_process("plan", tmp_path, "--json", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, few))
    assert result.returncode == 3 and result.stderr.startswith(LACK)
    assert json.loads(result.stdout)["error"]["message"] == LACK


def test_a_folder_is_read_without_threads(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Future, "set_result", lambda *_: pytest.fail("a thread has found something"))
    assert invoke("inspect", checkpoint).exit_code == 0


@promise("docs/security.md#accidents")
@pytest.mark.parametrize("threads", ["reader", "fetch", "lane"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_of_too_little_memory_keeps_nobody_waiting(
    threads: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = Future.set_result

    def set_result(future: "Future[Any]", result: Any) -> None:
        if threading.current_thread().name.startswith(threads):
            raise MemoryError
        usual(future, result)

    with hub_in_house(tmp_path / "hub") as hub:
        push(hub, checkpoint, "alice/source")
        monkeypatch.setenv("HF_ENDPOINT", hub.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(Future, "set_result", set_result)
        result = invoke("shard", "alice/source", tmp_path / "out", "-s", "60kB", "--json")
    assert result.exit_code == 3 and json.loads(result.stdout)["error"]["message"] == LACK


FAILING = """
import os, runpy, sys

class Full:
    def __init__(self, module, error):
        self.module, self.error = module, error

    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            raise self.error

for module, error in (
    ("typer", MemoryError()),
    ("rich.console", MemoryError()),
    ("sharding.job", ImportError("numpy.so: failed to map segment from shared object")),
):
    if not os.fork():
        sys.meta_path.insert(0, Full(module, error))
        runpy.run_module("sharding", run_name="__main__", alter_sys=True)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""
"""The command three times, where there is no memory left as it imports a module."""


def test_too_little_memory_for_the_program_itself_is_a_sentence(checkpoint: Path) -> None:
    result = run_process("inspect", checkpoint, "--json", program=FAILING)
    errors, statuses = result.stdout.splitlines()[::2], result.stdout.splitlines()[1::2]
    assert statuses == ["3"] * 3
    assert [json.loads(line)["error"]["message"] for line in errors] == [LACK] * 3
    assert result.stderr.splitlines()[::2] == [LACK] * 3
