"""The shell completes commands, options and choices."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest
import shellingham

from sharding.cli.commands import Method
from sharding.core.options import OPTIONS
from tests.commands import invoke
from tests.conftest import environment
from tests.docs.pages import CLI


@pytest.fixture
def complete(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Ask for what may follow, as bash does when somebody presses Tab at the end of `line`."""

    def complete(line: str) -> list[str]:
        words = shlex.split(line) + [""] * line.endswith(" ")
        monkeypatch.setenv("_SHARD_MY_REPO_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        done = invoke()
        assert (done.exit_code, done.stderr) == (0, "")
        return done.stdout.split()

    return complete


def test_commands_and_their_options_are_completed(complete: Callable[[str], list[str]]) -> None:
    assert complete("shard-my-repo ") == list(CLI.commands)
    assert complete("shard-my-repo de") == ["devices"]
    assert complete("shard-my-repo plan --d") == ["--dtype", "--dequantize", "--drop"]
    assert complete("shard-my-repo shard owner/name --p") == ["--private", "--public", "--proof"]
    # The two names of the help come from a set, in any order.
    assert sorted(complete("shard-my-repo discard -")) == ["--help", "--json", "-h"]
    assert complete("shard-my-repo plan ") == [], "the shell completes a path itself"


def test_every_choice_is_completed(complete: Callable[[str], list[str]]) -> None:
    for option in OPTIONS.values():
        if option.choices:
            command, flag = option.commands[0], option.flags[0]
            assert complete(f"shard-my-repo {command} owner/name {flag} ") == list(option.choices)
    assert complete("shard-my-repo verify a/b c/d --dtype f") == ["fp32", "fp16"]
    assert complete("shard-my-repo compare --method ") == list(get_args(Method))


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_the_help_of_an_option_too(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_SHARD_MY_REPO_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "shard-my-repo shard --over")
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    done = invoke()
    assert (done.exit_code, done.stderr) == (0, "")
    assert "--overwrite" in done.stdout and "Replace another model" in done.stdout


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_takes_the_script_and_completes_with_it(tmp_path: Path) -> None:
    program = tmp_path / "shard-my-repo"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m sharding "$@"\n')
    program.chmod(0o755)
    script = f"""
        source <({program} --show-completion)
        COMP_WORDS=(shard-my-repo plan --order st) COMP_CWORD=3
        _shard_my_repo_completion {program}
        echo "${{COMPREPLY[@]}}"
        HOME={tmp_path} {program} --install-completion
    """
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "stored"
    assert "completion installed" in done.stdout
    assert "complete_bash" in (tmp_path / ".bash_completions/shard-my-repo.sh").read_text()
    assert "shard-my-repo.sh" in (tmp_path / ".bashrc").read_text()


def test_a_shell_that_is_not_known_is_wrong_usage_and_no_copy_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", fail)
    for option in ("--show-completion", "--install-completion"):
        done = invoke(option)
        assert done.exit_code == 2 and "Run it from bash, zsh, fish or PowerShell." in done.stderr


def test_what_cannot_be_installed_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file")
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    done = invoke("--install-completion")
    assert done.exit_code == 2 and "Run --show-completion, and add what it prints" in done.stderr
