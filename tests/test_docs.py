"""README and docs are true: commands, options, links, examples, keys, variables and figures are those that there are."""

import ast
import importlib.util
import json
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer
from safetensors.numpy import save_file
from typer.testing import CliRunner

from sharding import job
from sharding.cli import commands
from sharding.cli.commands import app
from sharding.core import limits
from sharding.core.errors import Cancelled
from sharding.core.text import format_bytes
from sharding.formats.names import PICTURE_NAME
from sharding.loading.devices import PRESETS
from tests.conftest import ROOT, environment, random_tensors

README, RESULTS = ROOT / "README.md", ROOT / "bench/RESULTS.md"
COMMANDS, API, GAINS, DEVELOPMENT, FORMATS = (
    ROOT / "docs" / f"{name}.md" for name in ("commands", "page-and-api", "gains", "development", "formats")
)
PAGES = (README, *sorted((ROOT / "docs").glob("*.md")))
MOST_LINES = 170
CLI: Any = typer.main.get_command(app)
Run = Callable[..., subprocess.CompletedProcess[str]]


# --- Reading a page -------------------------------------------------------------------------------------


def prose(page: Path) -> str:
    """The text of a page without its front matter and code blocks."""
    text = page.read_text()
    text = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def section(page: Path, heading: str) -> str:
    """What stands below a heading of a page, up to the next of its rank."""
    return page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def table(page: Path, head: str) -> list[list[str]]:
    """The cells of the one table of a page whose first row begins with `head`, row by row."""
    (below,) = page.read_text().split(f"\n| {head}")[1:]
    rows = below.split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip()[1:-1].split("|")] for row in rows]


def code(text: str) -> list[str]:
    """What stands between single backquotes."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.M | re.S)


def slugs(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the Hub make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# --- README ---------------------------------------------------------------------------------------------


def test_the_readme_is_a_front_page() -> None:
    assert len(README.read_text().splitlines()) <= MOST_LINES
    assert README.read_text().startswith("---\ntitle: ")


def test_every_page_begins_with_what_it_is_for() -> None:
    for page in PAGES[1:]:
        lines = page.read_text().splitlines()
        assert lines[0].startswith("# ") and not lines[1] and lines[2].startswith("Look up "), page.name
        assert f"docs/{page.name}" in README.read_text()


def test_what_the_readme_shows_of_a_job_is_what_a_job_prints(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    (shown,) = (block for block in blocks(README, "console") if block.startswith("$ .venv/bin/python"))
    printed = run("shard", checkpoint, tmp_path / "mine", "-s", "70kB").stdout
    count = printed.count("\nmodel-")

    def form(text: str) -> list[str]:
        """The lines with sizes, other numbers and places taken out; the rows of all shards as one."""
        text = re.sub(r"[\d.]+ k?M?B\b|\d[\d,.]*%|\d+[\d.,]*", "N", re.sub(r"\S*/mine", "PLACE", text))
        lines = [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("(")]
        return list(dict.fromkeys(lines))

    assert count > 1
    assert form(printed) == form(shown.partition("\n")[2])


# --- Commands -------------------------------------------------------------------------------------------


def options_of(command: Any) -> dict[str, Any]:
    """The options of a command, long and short, with their parameters."""
    return {name: param for param in command.params for name in (*param.opts, *param.secondary_opts) if name[0] == "-"}


def test_every_command_stands_in_the_docs_with_its_arguments_and_none_besides() -> None:
    arguments = {
        name: [param.metavar for param in command.params if not param.opts[0].startswith("-")]
        for name, command in CLI.commands.items()
    }
    rows = [code(first)[0].split() for first, _ in table(COMMANDS, "command | what it does")]
    assert {name: rest for name, *rest in rows} == arguments


def test_every_option_stands_in_the_docs_with_its_commands_and_none_besides() -> None:
    help_names = app.info.context_settings["help_option_names"]  # type: ignore[index]
    actual = {name: {*options_of(one), *help_names} for name, one in CLI.commands.items() if name != "localhub"}
    documented: dict[str, set[str]] = {name: set() for name in actual}
    for names, of, *_ in table(COMMANDS, "option | of"):
        for command in documented if of == "every command" else filter(None, of.split(", ")):
            documented[command] |= set(code(names))
    assert documented == actual
    assert {"--version"} == set(options_of(CLI))
    assert [names for names, of, *_ in table(COMMANDS, "option | of") if not of] == ["`--version`"]


def test_defaults_and_choices_of_options_are_those_in_the_docs() -> None:
    for names, of, default, meaning in table(COMMANDS, "option | of"):
        for command in of.split(", ") if of in CLI.commands or ", " in of else ():
            param = options_of(CLI.commands[command])[code(names)[0]]
            if code(default):
                assert [str(param.default)] == code(default), names
            if default == "no":
                assert param.default is False, names
            if default == "must be given":
                assert param.required, names
            choices = get_args(get_type_hints(getattr(commands, command))[param.name])
            assert {choice for choice in choices if isinstance(choice, str)} <= set(code(meaning)), names
    (budget,) = (meaning for names, *_, meaning in table(COMMANDS, "option | of") if names == "`--budget`")
    assert set(PRESETS) <= set(code(budget))


@cache
def localhub_options() -> frozenset[str]:
    command = [sys.executable, "-m", "sharding", "localhub", "--help"]
    said = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout
    return frozenset(re.findall(r"^  (--[a-z-]+)", said, flags=re.M))


def test_every_option_of_localhub_stands_in_the_docs_and_none_besides() -> None:
    documented = re.findall(r"^\| `(--[a-z-]+)` \|", section(COMMANDS, "Options of localhub"), flags=re.M)
    assert set(documented) == localhub_options()


def test_the_exit_statuses_are_those_in_the_docs(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    save_file(random_tensors(seed=1), tmp_path / "other/model.safetensors")

    def status(*arguments: object) -> int:
        return int(CliRunner().invoke(app, [*map(str, arguments)]).exit_code)

    found = [
        status("verify", checkpoint, checkpoint),
        status("verify", checkpoint, tmp_path / "other"),
        status("plan", checkpoint, "-s", "10 apples"),
        status("plan", tmp_path / "nowhere"),
    ]
    monkeypatch.setattr(job, "inspect", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    found.append(status("inspect", checkpoint))
    assert [str(one) for one in found] == [row[0] for row in table(COMMANDS, "status | meaning")]
    assert found[-1] == Cancelled.exit_status


def keys(*arguments: object) -> set[str]:
    """The keys of the object that a command prints."""
    return set(json.loads(CliRunner().invoke(app, [*map(str, arguments), "--json"]).stdout))


def documented_keys() -> dict[str, set[str]]:
    return {(code(of) or [of])[0]: set(code(named)) for of, named in table(COMMANDS, "command | keys")}


def test_the_keys_that_programs_read_are_those_in_the_docs(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    found = {
        "inspect": keys("inspect", checkpoint),
        "plan": keys("plan", checkpoint),
        "shard": keys("shard", checkpoint, out, "-s", "60kB"),
        "verify": keys("verify", checkpoint, out),
        "discard": keys("discard", out),
    }
    documented = documented_keys()
    assert documented.keys() - found.keys() == {"compare", "devices", "any, where it ends without a result"}
    assert found == {command: documented[command] for command in found}
    error = json.loads(CliRunner().invoke(app, ["plan", "./nowhere", "--json"]).stdout)
    assert {*error, *error["error"]} == documented["any, where it ends without a result"]

    report, text = json.loads((out / "sharding_report.json").read_text()), prose(COMMANDS)
    inner = (report["resources"], report["shards"][0], report["plan"]["shards"][0])
    assert {key for one in inner for key in one} <= set(code(text))
    written = {path.name for path in out.iterdir() if not path.name.startswith("model")} - {"config.json"}
    assert {code(file)[0] for file, _ in table(COMMANDS, "file | what it is")} == written | {PICTURE_NAME}


def events(*arguments: object) -> list[dict[str, Any]]:
    said = CliRunner().invoke(app, [*map(str, arguments), "--events"]).stdout
    return [json.loads(line) for line in said.splitlines()]


def documented_events(command: str) -> set[str]:
    return {code(name)[0] for name, of, _ in table(COMMANDS, "event | of") if command in of.split(", ")}


def test_the_events_of_a_job_are_those_in_the_docs(checkpoint: Path, tmp_path: Path) -> None:
    found = events("shard", checkpoint, tmp_path / "out", "-s", "60kB")
    assert {event["event"] for event in found} == documented_events("shard") - {"probed", "compared"}
    found = events("verify", checkpoint, tmp_path / "out")
    assert {event["event"] for event in found} == documented_events("verify")


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
def test_the_keys_and_events_of_what_loads_a_model_are_those_in_the_docs(tmp_path: Path) -> None:
    from tests import models

    source, out = models.save("llama", tmp_path / "source", layers=2), tmp_path / "out"
    documented = documented_keys()
    assert keys("devices", source, "--budget", "cpu=1GB") == documented["devices"]
    said = [*events("shard", source, out), *events("compare", source, out, "--rounds", "1")]
    assert {event["event"] for event in said} == documented_events("shard")
    assert {event["event"] for event in said if event["event"] in ("probed", "compared")} == documented_events(
        "compare"
    )
    assert said[-1].keys() - {"event"} == documented["compare"]


# --- Examples -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """A command that a page tells somebody to give."""

    page: Path
    words: tuple[str, ...]


def commands_shown() -> Iterator[Example]:
    """Every line of a block of commands, and every command that stands in a line of text."""
    for page in (*PAGES, RESULTS):
        lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line]
        lines += [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
        spans = [span for span in code(prose(page)) if " " in span and "…" not in span]
        if page == RESULTS:
            gone = {span for line in page.read_text().splitlines() if "which is gone" in line for span in code(line)}
            spans = [span for span in spans if span not in gone]
        begins = ("shard-my-repo ", "python ", ".venv/bin/python ", "make ", "pip install ")
        for line in [*lines, *(span for span in spans if span.startswith(begins))]:
            words = shlex.split(line, comments=True)
            yield Example(page, tuple(word for word in words if not re.match(r"[A-Z_]+=http|HF_TOKEN=", word)))


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.M))


def check(words: tuple[str, ...]) -> None:
    """Fail where there is no such command, or it has no such options."""
    match words:
        case ("shard-my-repo", name, *rest) | ("python" | ".venv/bin/python", "-m", "sharding", name, *rest):
            CLI.commands[name].make_context(name, list(rest))  # raises for what it cannot read
            if name == "localhub":
                assert {word for word in rest if word.startswith("--")} <= localhub_options()
        case ("make", target, *_):
            assert target in targets()
        case ("pip", "install", what):
            asked = set(re.findall(r"(?<=\[)[a-z]+(?=\])", what))
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert asked <= set(extras) and re.fullmatch(r"(\.|shard-my-repo)(\[[a-z]+\])?", what)
        case ("python" | ".venv/bin/python", "-m", module, *_):
            assert importlib.util.find_spec(module)
        case ("python" | ".venv/bin/python", script, *rest):
            text = (ROOT / script).read_text() + (ROOT / "bench/harness/scratch.py").read_text()
            assert {word for word in rest if word.startswith("--")} <= set(re.findall(r'"(--[a-z-]+)"', text))
        case _:
            pytest.fail(f"There is no way to tell whether {words} is a command.")


def test_every_command_shown_can_be_given() -> None:
    for example in (shown := list(commands_shown())):
        try:
            check(example.words)
        except (Exception, pytest.fail.Exception, SystemExit) as problem:
            raise AssertionError(f"{example.page.name}: {shlex.join(example.words)}: {problem!r}") from problem
    assert {words[1] for words in (one.words for one in shown) if words[0] == "shard-my-repo"} >= set(CLI.commands)


def test_the_readme_shows_every_command() -> None:
    (block,) = blocks(README, "sh")
    assert {line.split()[1] for line in block.splitlines()} == set(CLI.commands)


PYTHON = [(page, number) for page in PAGES if page != API for number in range(len(blocks(page, "python")))]


@pytest.mark.parametrize(("page", "number"), PYTHON, ids=[f"{page.name} {number}" for page, number in PYTHON])
def test_every_example_in_python_runs(page: Path, number: int, tmp_path: Path, checkpoint: Path) -> None:
    checkpoint.rename(tmp_path / "my-model")
    script = [sys.executable, "-c", blocks(page, "python")[number]]
    done = subprocess.run(script, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Report(")
    assert (tmp_path / "my-model-sharded/model.safetensors").exists()


def test_the_readme_has_an_example_in_python() -> None:
    assert [page for page, _ in PYTHON] == [README, COMMANDS]


# --- Links ----------------------------------------------------------------------------------------------


def test_every_link_leads_somewhere() -> None:
    for page in (*PAGES, RESULTS):
        links = re.findall(r"\]\(([^)\s]+)\)", prose(page))
        for link in links:
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            assert "://" not in link and target.exists() and target.is_relative_to(ROOT), f"{page.name}: {link}"
            assert not anchor or anchor in slugs(target), f"{page.name}: {link}"


def test_every_page_lists_what_stands_on_it() -> None:
    for page in PAGES[1:]:
        listed = re.findall(r"^- \[([^\]]+)\]\(#", page.read_text(), flags=re.M)
        assert listed in ([], re.findall(r"^## (.+)$", prose(page), flags=re.M)), page.name


def test_files_that_a_page_names_are_there() -> None:
    named = {(page, span) for page in (*PAGES, RESULTS) for span in code(prose(page))}
    for page, span in named:
        if re.match(r"(sharding|tests|bench|docs)/\S+$", span) and span != "bench/memory.py":
            assert (ROOT / span).exists(), f"{page.name}: {span}"


# --- What is looked up ----------------------------------------------------------------------------------


def test_every_variable_that_is_read_stands_in_the_docs_and_none_besides() -> None:
    tree = ast.parse((ROOT / "sharding/core/environment.py").read_text())
    strings = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    read = {text for text in strings if re.fullmatch(r"[A-Z][A-Z_]+", text)} | {"HF_TOKEN"}  # that, by get_token()
    text = section(COMMANDS, "Environment") + section(API, "For many visitors")
    assert {span for span in code(text) if re.fullmatch(r"[A-Z][A-Z_]+", span)} == read


def test_the_endpoints_and_their_arguments_are_those_in_the_docs() -> None:
    tree = ast.parse((ROOT / "sharding/page/api.py").read_text())  # to import it takes seconds
    (endpoints,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Endpoints")
    arguments = {
        f"/{method.name}": [one.arg for one in method.args.args if one.arg not in ("self", "request")]
        for method in endpoints.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") and method.name != "add"
    }
    rows = table(API, "endpoint | arguments")
    assert {code(endpoint)[0]: code(named) for endpoint, named, _ in rows} == arguments


def test_bounds_are_those_in_the_docs() -> None:
    bounds = dict(table(API, "bound |"))
    assert bounds["jobs queued or running"] == str(limits.MAX_ACTIVE_JOBS)
    assert bounds["a job may run"].startswith(f"{limits.JOB_SECONDS // 3600} hours")
    assert bounds["a job may say nothing"] == f"{limits.SILENT_SECONDS // 60} minutes"
    assert bounds["headers of a model are read again"] == f"after {limits.CACHED_SECONDS // 60} minutes"
    text = section(FORMATS, "Bounds")
    for size in (limits.MAX_HEADER_BYTES, limits.MAX_SIDE_FILE_BYTES, limits.MAX_CARD_BYTES):
        assert format_bytes(size).replace(".0", "") in text
    assert (limits.MAX_TENSORS, limits.MAX_FILES) == (1_000_000, 100_000) and "a million\ntensors" in text
    assert format_bytes(limits.SHARED_JOB_BYTES).replace(".0", "") in section(API, "For many visitors")


def test_the_wings_and_benchmarks_are_those_in_the_docs() -> None:
    wings = {f"{path.name}/" for path in (ROOT / "sharding").iterdir() if path.is_dir() and path.name[0] != "_"}
    assert {code(wing)[0] for wing, _ in table(DEVELOPMENT, "wing | what")} == wings
    assert {code(file)[0] for file, _ in table(DEVELOPMENT, "benchmark | what")} == {
        f"bench/{path.name}" for path in (ROOT / "bench").glob("*.py")
    }


def test_every_target_of_make_that_help_lists_stands_on_a_page() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    shown = {words[1] for words in (example.words for example in commands_shown()) if words[0] == "make"}
    assert {line.split()[0] for line in listed} == shown


# --- Figures --------------------------------------------------------------------------------------------


def measured(command: str) -> list[float]:
    """Every number that stands in the section of the results that `command` gave."""
    sections = [text for text in RESULTS.read_text().split("\n## ") if f"Command: `{command}`" in text]
    return [float(number.replace(",", "")) for text in sections for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


@pytest.mark.parametrize("page", [README, GAINS], ids=["README", "gains"])
def test_every_figure_is_one_that_was_measured(page: Path) -> None:
    for what, figure, command in table(page, "what | figure"):
        found = measured(code(command)[0])
        numbers = re.findall(r"\d+(?:\.\d+)?", figure)
        assert numbers, what
        for number in numbers:
            places = len(number.partition(".")[2])
            assert any(abs(one - float(number)) <= 0.5001 * 10**-places for one in found), f"{what}: {number}"


def test_what_loading_costs_is_what_was_measured() -> None:
    found = measured("python bench/loading.py --pairs 3")
    for what, *cells in table(GAINS, "load | original"):
        assert all(float(cell.removesuffix(" MB")) in found for cell in cells), what
