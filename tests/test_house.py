"""The house: which room may know which, and a README that is true."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sharding.cli.commands import app
from tests.conftest import ROOT, environment

ROWS = [
    {"costs", "errors", "events", "limits", "protocols", "values", "view", "sharding"},
    {
        "blocks",
        "card",
        "dtypes",
        "evidence",
        "files",
        "layout",
        "layouts",
        "loading",
        "order",
        "pace",
        "pickled",
        "picture",
        "plan",
        "predict",
        "refusals",
        "report",
        "report_reader",
        "schedule",
        "staging",
        "strategy",
        "stand_ins",
        "verdict",
        "weight_sets",
        "zipped",
    },
    {
        "architecture",
        "archive",
        "bin_file",
        "cast",
        "checkout",
        "classic",
        "destination",
        "devices",
        "folder_writer",
        "gather",
        "headers",
        "hub_destination",
        "hub_repo",
        "hub_source",
        "measure",
        "meter",
        "source",
        "threads",
        "transfer",
        "verify",
    },
    {"comparison", "places"},
    {"beside", "engines", "proof", "provenance", "weighing"},
    {"job", "lookup"},
    {"results"},
    {"cli", "desk", "terminal", "__main__"},
    {"page"},
]
PARTS = {
    "checkout": {"headers", "hub"},
    "classic": {"measure", "meter"},
    "comparison": {"hub"},
    "beside": {"hub"},
    "engines": {"hub"},
    "proof": {"engines", "hub", "provenance"},
    "provenance": {"engines"},
    "weighing": {"hub"},
    "devices": {"architecture"},
    "destination": {"folder_writer", "journal"},
    "archive": {"bin_file", "threads"},
    "bin_file": {"threads"},
    "headers": {"archive", "threads"},
    "hub": {"retry"},
    "hub_destination": {"hub", "hub_repo", "hub_staging", "hub_writers"},
    "hub_repo": {"hub"},
    "hub_source": {"hub", "retry"},
    "hub_staging": {"hub_repo", "threads"},
    "places": {"hub"},
    "job": {"hub"},
    "lookup": {"hub"},
    "results": {"hub"},
}
"""Rooms that belong to others: what they may import is the first two rows."""

PURE = ROWS[1] | {"costs", "devices", "values", "errors", "events", "protocols"}
APART = {"demo", "localhub", "metamodel", "offline", "probe", "tutorial"}
TOUCHES_THE_WORLD = {"os", "shutil", "socket", "subprocess", "time", "tempfile", "threading"}

# Beside the rows below: the outermost two know job, the first row and the report, and each other.
OUTERMOST = {"cli", "terminal", "__main__"}


def room(path: Path) -> str:
    return path.relative_to(ROOT / "sharding").parts[0].removesuffix(".py").replace("__init__", "sharding")


def imports(path: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def rooms_imported(path: Path) -> set[str]:
    rooms = {path.stem for path in (ROOT / "sharding").iterdir()}
    parts = [name.split(".") for name in imports(path) if name.split(".")[0] == "sharding"]
    return {part[1] if len(part) > 1 and part[1] in rooms else "sharding" for part in parts}


FILES = sorted((ROOT / "sharding").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=room)
def test_imports_of_our_own_rooms_point_down(path: Path) -> None:
    mine = room(path)
    if mine in APART:
        beside = {"metamodel": "probe", "probe": "probe", "tutorial": "probe", "offline": "demo"}
        assert rooms_imported(path) <= {"localhub", beside.get(mine, "localhub")}
        return
    row = next((number for number, rooms in enumerate(ROWS) if mine in rooms), 2)
    allowed = set().union(*ROWS[:row], PARTS.get(mine, set()))
    if row < 2:
        allowed |= ROWS[row]  # the pure rooms may build on one another
    if mine == "desk":
        allowed = ROWS[0] | {"job", "lookup", "report", "devices", "desk"}
    if mine == "page":
        allowed = ROWS[0] | ROWS[1] | {"lookup", "results", "devices", "desk", "page"}
    if mine in OUTERMOST:
        allowed = ROWS[0] | {"job", "report", "devices", "localhub"} | OUTERMOST
    assert rooms_imported(path) <= allowed


@pytest.mark.parametrize("path", [path for path in FILES if room(path) in PURE], ids=room)
def test_what_decides_touches_no_file_clock_or_network(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & TOUCHES_THE_WORLD
    calls = {
        node.func.id
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not calls & {"open", "print"}


def test_every_room_has_its_place() -> None:
    assert {room(path) for path in FILES} <= APART.union(*ROWS, *PARTS.values())


@pytest.mark.parametrize("path", FILES, ids=room)
def test_nothing_below_the_terminal_prints_or_reads_the_environment(path: Path) -> None:
    text = path.read_text()
    assert room(path) in APART or not re.search(r"(?<!_)\bprint\(", re.sub(r"\.print\(|>>> .*|\.\.\. .*", "", text))
    assert room(path) in APART | {"limits"} or not re.search(r"\benviron\b|getenv", text)


def test_the_package_itself_imports_nothing_heavy() -> None:
    script = "import sys, sharding, sharding.job; print(sorted({'torch', 'transformers', 'gradio', 'accelerate'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment(), check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_and_option_stands_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    command = typer.main.get_command(app)
    names = set(command.commands)  # type: ignore[attr-defined]
    options = {
        option
        for sub in [command, *command.commands.values()]
        for param in sub.params
        for option in [*param.opts, *param.secondary_opts]
        if option.startswith("-")
    }  # type: ignore[attr-defined]
    assert names == {
        match[1] for match in re.finditer(r"^\| `(\w+) (?:SOURCE|ORIGINAL|DESTINATION|--port)", readme, re.M)
    }
    assert options | {"--help", "-h"} == {match[0] for match in re.finditer(r"(?<=`)--?[a-z][a-z-]*(?=`)", readme)} - {
        "--samples"
    }


def test_the_python_example_of_the_readme_runs(tmp_path: Path, checkpoint: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    code = readme.split("From Python:")[1].split("\n## ")[0].replace("\n    ", "\n")
    checkpoint.rename(tmp_path / "my-model")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path, check=True
    )
    assert done.stdout.splitlines()[-1].startswith("Report(")
    assert (tmp_path / "my-model-sharded/model.safetensors").exists()
