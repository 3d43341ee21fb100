"""The command on any terminal: 80 columns, an encoding that holds few characters, a repo of thousands of files."""

import json
import re
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from sharding.core.option import Group
from sharding.core.options import of_command
from tests.commands import invoke, run_process
from tests.conftest import environment, in_two_files
from tests.docs.pages import CLI

TERMINALS = {
    "latin-1": {"PYTHONIOENCODING": "latin-1"},
    "ascii": {"PYTHONIOENCODING": "ascii:strict"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
NAMES = "Модель … 模型 ü"


SEVERAL = """
import json, os, sys
from sharding.cli.start import main

for words in json.loads(sys.argv[1]):
    sys.argv[1:] = [os.fsdecode(word.encode()) for word in words]
    try:
        main()
    except SystemExit as end:
        print(f"\\n== {end.code or 0} ==\\n", flush=True)
"""
"""Several commands, one after another, each with its status."""


def run_at(terminal: str, folder: Path, commands: list[list[str]]) -> list[tuple[str, int]]:
    """Run `commands` in a process whose output has an encoding that holds few characters; return what each says."""
    known = {name: text for name, text in environment().items() if name not in ("PYTHONIOENCODING", "PYTHONUTF8")}
    more = {"env": known | TERMINALS[terminal], "cwd": folder, "stderr": subprocess.STDOUT, "text": False}
    done = run_process(json.dumps(commands), program=SEVERAL, **more)
    said = re.split(r"\n== (\d+) ==\n", done.stdout.decode("latin-1"))
    assert done.returncode == 0 and len(said) == 2 * len(commands) + 1, said
    return list(zip(said[::2], map(int, said[1::2]), strict=False))


def help_of(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The help of a command, which fits 80 columns, cuts nothing and is ASCII."""
    monkeypatch.setenv("COLUMNS", "80")
    done = invoke(*command.split(), "--help")
    assert done.exit_code == 0 and done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "..." not in done.stdout.replace("COMMAND [ARGS]...", "")
    return str(done.stdout)


def test_help_needs_no_heavy_library() -> None:
    script = SEVERAL + (
        "print(sorted({'huggingface_hub', 'numpy', 'torch', 'transformers', 'rich'} & set(sys.modules)))"
    )
    commands = [[*command.split(), "--help"] for command in ("", "inspect", "plan", "shard", "verify")]
    done = run_process(json.dumps(commands), program=script)
    assert done.stdout.splitlines()[-1] == "[]" and done.stdout.count("Usage: shard-my-repo") == len(commands)


def sections(text: str) -> dict[str, set[str]]:
    """The names that a help lists under each of its headings."""
    blocks = re.split(r"^(\w[\w ]*):$", text, flags=re.M)[1:]
    names = r"^  (?:-\w, )?(--[\w-]+|[A-Z]+)(?: / (--[\w-]+))?(?= |$)"
    found = {
        heading: re.findall(names, rows, flags=re.M) for heading, rows in zip(blocks[::2], blocks[1::2], strict=True)
    }
    return {heading: {name for pair in rows for name in pair if name} for heading, rows in found.items()}


@pytest.mark.parametrize("command", [name for name in CLI.commands if name != "localhub"])
def test_help_lists_every_option_once_and_shows_a_command(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = help_of(command, monkeypatch)
    listed = sections(text)
    order = ["Arguments", *get_args(Group), "Other"]
    assert list(listed) == [heading for heading in order if heading in listed]
    options = [param for param in CLI.commands[command].params if param.param_type_name == "option"]
    for param in options:
        for name in {*param.opts, *param.secondary_opts} - {"-s"}:
            assert [heading for heading in listed if name in listed[heading]] == [param.rich_help_panel], name
    assert listed["Other"] == {"--help"} and listed["Arguments"] == set(
        text.splitlines()[0].split("[OPTIONS] ")[1].split()
    )
    if command in ("plan", "shard"):
        for option in of_command(command):
            assert option.flags[0].split("/")[0] in listed[option.group]
    program, name, *words = text.splitlines()[-1].removeprefix("  Example: ").split()
    assert (program, name) == ("shard-my-repo", command)
    CLI.commands[name].make_context(name, words)


def test_the_first_help_lists_the_commands_with_a_sentence_each_and_an_example(monkeypatch: pytest.MonkeyPatch) -> None:
    assert help_of("localhub", monkeypatch)
    text = help_of("", monkeypatch)
    commands = text.partition("\nCommands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line.split()[0] for line in commands] == list(CLI.commands)
    assert all(line.endswith(".") for line in commands)
    assert sections(text)["Options"] == {"--version", "--install-completion", "--show-completion", "--help"}
    assert text.splitlines()[-1].startswith("  Example: shard-my-repo shard ")


@pytest.mark.parametrize(
    "terminal", ["ascii", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("latin-1", "C"))]
)
def test_what_the_encoding_cannot_hold_is_written_as_escapes(terminal: str, tmp_path: Path) -> None:
    # Where names of files are ASCII too, others have no name that is UTF-8, and are refused by it.
    name = "plain" if terminal == "C" else NAMES
    source = in_two_files(tmp_path / name)
    (source / "config.json").write_text(json.dumps({"architectures": [NAMES]}))
    for suffix in ("txt", "gguf"):
        (source / f"{name}.{suffix}").write_bytes(b"x")
    statuses = {
        ("--help",): 0,
        ("localhub", "--help"): 0,
        ("inspect", f"./{name}"): 0,
        ("plan", f"./{name}"): 0,
        ("shard", f"./{name}", f"./{name} 2", "-s", "60kB"): 0,
        ("verify", f"./{name}", f"./{name} 2"): 0,
        ("inspect", f"./no {NAMES}"): 3,
        ("plan", f"./{name}", "--strategy", NAMES): 2,
        ("plan", f"./{name}", f"--{NAMES}"): 2,
    }
    done = run_at(terminal, tmp_path, [list(words) for words in statuses])
    for (words, wanted), (said, status) in zip(statuses.items(), done, strict=True):
        assert status == wanted and "Traceback" not in said and "bug in" not in said, said
        assert r"\u" in said or words[0] in ("shard", "plan", "verify") or "--" in said, said
    assert (tmp_path / f"{name} 2" / f"{name}.txt").read_bytes() == b"x"
    assert name in (tmp_path / f"{name} 2" / "README.md").read_text("utf-8")
