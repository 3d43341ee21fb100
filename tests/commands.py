"""Give the command line its words: in this process, or in one of its own where a test needs one."""

import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from sharding.cli.commands import app
from tests.conftest import LONGEST_SECONDS, environment


def invoke(*words: object) -> Result:
    """Run a command here: what it needs of torch and transformers is imported already."""
    return CliRunner().invoke(app, list(map(str, words)))


def run_process(*words: object, program: str = "", **more: Any) -> "subprocess.CompletedProcess[str]":
    """Run `python -m sharding …`, or a `program` that ends in it, as a person would; `more` is for `subprocess.run`."""
    command = [sys.executable, *(["-c", program] if program else ["-m", "sharding"]), *map(str, words)]
    usual: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment()}
    return subprocess.run(command, timeout=LONGEST_SECONDS, **(usual | more))
