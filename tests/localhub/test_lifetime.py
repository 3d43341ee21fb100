"""The Hub lives on its folder: it may be killed at any time, and stops when told to."""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd

from tests.conftest import environment
from tests.localhub.conftest import Server, payload


@pytest.fixture
def own(served: Callable[..., Server]) -> Server:
    """A Hub for one test, which may kill it."""
    return served()


def test_everything_is_still_there_after_a_kill(own: Server) -> None:
    api = own.api()
    api.create_repo("alice/kept")
    operations = [CommitOperationAdd("w.bin", payload(300_000, 1)), CommitOperationAdd("a.txt", b"a")]
    sha = api.create_commit("alice/kept", operations, commit_message="all").oid
    api.create_tag("alice/kept", tag="v1")
    api.update_repo_settings("alice/kept", gated="auto")
    token = own.login("alice", "openid gated-repos")["access_token"]
    keys = own.ask("GET", "/oauth/jwks").json()
    assert own.stop(signal.SIGKILL) == -signal.SIGKILL

    own.start()
    assert own.api().model_info("alice/kept", revision="v1").sha == sha
    assert own.ask("GET", "/alice/kept/resolve/main/w.bin", token=token).body == payload(300_000, 1)
    assert own.ask("GET", "/alice/kept/resolve/main/a.txt", token="hf_bob").status == 403
    assert own.ask("GET", "/oauth/jwks").json() == keys
    own.put("alice/kept", "w2.bin", payload(300_000, 2))


def test_a_kill_in_the_middle_of_commits_leaves_whole_ones(own: Server) -> None:
    own.api().create_repo("alice/torn")

    def commit(number: int) -> int:
        files = [{"path": f"{number}/{n}", "content": f"{n}", "encoding": "utf-8"} for n in range(20)]
        try:
            return own.commit("alice/torn", [{"key": "file", "value": file} for file in files]).status
        except (OSError, HTTPException):
            return 0  # killed before its answer, or in the middle of it

    with ThreadPoolExecutor(4) as threads:
        results = threads.map(commit, range(120))
        for number, status in enumerate(results):
            assert status in (0, 200)
            if number == 40:
                own.stop(signal.SIGKILL)
    own.start()
    files = [path for path in own.api().list_repo_files("alice/torn") if "/" in path]
    folders = {path.split("/")[0] for path in files}
    assert len(folders) >= 41
    assert len(files) == 20 * len(folders)
    assert {own.ask("GET", f"/alice/torn/resolve/main/{path}").status for path in files[:200]} == {200}


def test_it_listens_on_this_machine_only_takes_no_port_of_another_and_stops(own: Server, tmp_path: Path) -> None:
    assert own.address.startswith("http://127.0.0.1:")
    command = [sys.executable, "-m", "sharding.localhub", "--folder", str(tmp_path / "other"), "--port"]
    command.append(own.address.rsplit(":", 1)[1])
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode != 0 and "in use" in done.stderr
    assert own.stop(signal.SIGTERM) == 0
    assert own.start().stop(signal.SIGINT) == 0


def test_help_imports_nothing_heavy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COVERAGE_PROCESS_START", raising=False)  # whoever watches tests imports sqlite3
    code = "import sys; sys.argv[1:] = ['--help']\nimport runpy\ntry: runpy.run_module('sharding.localhub', run_name='__main__')\nexcept SystemExit: print(sorted({'starlette', 'uvicorn', 'sqlite3', 'torch', 'hf_xet'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.splitlines()[-1] == "[]"
