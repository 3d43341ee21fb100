"""Give the command line its words: in this process, or in one of its own where a test needs one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from sharding.cli.commands import app
from tests.conftest import LONGEST_SECONDS, environment


def invoke(*words: object) -> Result:
    """Run a command here: what it needs of torch and transformers is imported already."""
    return CliRunner().invoke(app, list(map(str, words)))


def run_uv(*words: object, **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run uv, which CI has beside Python, with a cache of its own if `more` says so in `env`."""
    command = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert command, "uv is missing: install tests/requirements.txt"
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "check": True}
    return subprocess.run([command, *map(str, words)], timeout=LONGEST_SECONDS, **(usual | more))


def run_process(*words: object, program: str = "", **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run `python -m sharding …`, or a `program` that ends in it, as a person would; `more` is for `subprocess.run`."""
    command = [sys.executable, *(["-c", program] if program else ["-m", "sharding"]), *map(str, words)]
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.run(command, timeout=LONGEST_SECONDS, **(usual | more))
