"""Commands, options, exit statuses, JSON keys and events are those that stand in the docs."""

import json
import re
import signal
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from safetensors.numpy import save_file

from sharding import job
from sharding.cli import commands
from sharding.cli.commands import app
from sharding.cli.parameters import in_groups
from sharding.core.errors import Cancelled, RemedyKind
from sharding.core.events import Phase
from sharding.core.options import OPTIONS
from sharding.formats.names import PICTURE_NAME
from sharding.planning.devices import PRESETS
from tests.commands import invoke
from tests.conftest import random_tensors, write_checkpoint
from tests.docs.pages import CLI, COMMANDS, cells, code, localhub_options, prose, section, subsection, table

JOBS = [name for name in CLI.commands if name != "localhub"]


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


def option_rows(command: str) -> list[list[str]]:
    """The rows of the options of a command."""
    return cells(subsection(COMMANDS, command), "option | default |")


def plain(cell: str) -> str:
    """What somebody reads in a cell of a table: no quotes around code, and of a link its words."""
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", cell).replace("`", "")


def rows_of(command: Any) -> list[tuple[str, str, str]]:
    """What the help of a command says of each of its options, --help left out: names, default and words."""
    groups = in_groups(command.params, command.make_context(command.name, [], resilient_parsing=True))
    rows = [row for heading, rows in groups.items() if heading != "Arguments" for row in rows]
    found = [
        (name, *re.fullmatch(r"(.*?)(?:  \[(?:default: )?([^;]*)(?:; .*)?\])?", text).groups()) for name, text in rows
    ]  # type: ignore[union-attr]
    return [(name.replace(" / ", ", "), default or "", words) for name, words, default in found]


@pytest.mark.parametrize("command", JOBS)
def test_the_options_of_each_command_stand_in_the_docs_with_the_words_of_its_help(command: str) -> None:
    rows = option_rows(command)
    expected = rows_of(CLI.commands[command])
    assert [(plain(names), plain(default)) for names, default, _ in rows] == [row[:2] for row in expected]
    for (names, _, meaning), (*_, words) in zip(rows, expected, strict=True):
        assert plain(meaning) == words or plain(meaning).startswith(f"{words}. "), names
    assert {name for names, *_ in expected for name in re.findall(r"-[\w-]+", names)} == set(
        options_of(CLI.commands[command])
    )


def test_options_before_the_command_stand_in_the_docs_and_none_besides() -> None:
    documented = [
        set(code(names)) for names, _ in cells(section(COMMANDS, "The commands").split("\n### ")[0], "option |")
    ]
    assert documented == [{name} for name in options_of(CLI)] + [set(app.info.context_settings["help_option_names"])]  # type: ignore[index]


def test_defaults_and_choices_of_options_are_those_in_the_docs() -> None:
    for command in JOBS:
        for names, default, meaning in option_rows(command):
            param = options_of(CLI.commands[command])[code(names)[0].split()[0]]
            if code(default):
                assert [str(param.default)] == code(default), names
            else:
                assert param.required if default else param.default in (False, None, "", []), names
            kind = get_type_hints(getattr(commands, command))[param.name]
            choices = {word for part in (kind, *get_args(kind)) for word in get_args(part) if isinstance(word, str)}
            assert choices <= {*code(meaning), *code(names)[0].split()[1:]}, names
    (budget,) = (meaning for names, *_, meaning in option_rows("devices") if "--budget" in names)
    assert set(PRESETS) <= set(code(budget))


def test_what_needs_an_extra_stands_in_the_docs_with_it() -> None:
    text = section(COMMANDS, "The commands")
    for option in OPTIONS.values():
        for choice, extra in option.needs.items():
            flag = f"{option.flags[0]} {choice}".strip()
            assert f"`{flag}" in text and f"[{extra}]" in text, flag


def test_every_option_of_localhub_stands_in_the_docs_and_none_besides() -> None:
    documented = re.findall(r"^\| `(--[a-z-]+)` \|", subsection(COMMANDS, "localhub"), flags=re.M)
    assert set(documented) == localhub_options()


def test_exit_statuses_are_those_in_the_docs(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    save_file(random_tensors(seed=1), tmp_path / "other/model.safetensors")
    ends = (("verify", checkpoint), ("verify", tmp_path / "other"), ("plan", "-s", "10 apples"))
    found = [invoke(command, checkpoint, *more).exit_code for command, *more in ends]
    found.append(invoke("plan", tmp_path / "nowhere").exit_code)
    monkeypatch.setattr(job, "inspect", lambda *_, **__: signal.raise_signal(signal.SIGINT))
    found.append(invoke("inspect", checkpoint).exit_code)
    assert [str(one) for one in found] == [row[0] for row in table(COMMANDS, "status | meaning")]
    assert found[-1] == Cancelled.exit_status


def printed(*words: object) -> Any:
    """The object that a command prints."""
    return json.loads(invoke(*words, "--json").stdout)


def documented_keys() -> dict[str, set[str]]:
    return {(code(of) or [of])[0]: set(code(named)) for of, named in table(COMMANDS, "command | keys")}


def test_the_keys_that_programs_read_are_those_in_the_docs(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ways = {"inspect": (), "plan": (), "shard": (out, "-s", "60kB"), "verify": (out,), "diff": (out,)}
    found = {command: set(printed(command, checkpoint, *more)) for command, more in ways.items()}
    found["discard"] = set(printed("discard", out))
    documented = documented_keys()
    assert documented.keys() - found.keys() == {"compare", "devices", "any that ends without a result"}
    assert found == {command: documented[command] for command in found}
    error = printed("plan", "./nowhere")
    assert {*error, *error["error"]} == documented["any that ends without a result"]

    other = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=1)}, index=False)
    report, text = json.loads((out / "sharding_report.json").read_text()), prose(COMMANDS)
    difference = printed("diff", checkpoint, other)
    inner = (report["resources"], report["shards"][0], report["plan"]["shards"][0], *difference["differences"])
    assert {key for one in inner for key in one} <= set(code(text))
    written = {path.name for path in out.iterdir() if not path.name.startswith("model")} - {"config.json"}
    assert {code(file)[0] for file, _ in table(COMMANDS, "file | what it is")} == written | {PICTURE_NAME}


def test_the_remedies_are_those_in_the_docs() -> None:
    rows = table(COMMANDS, "remedy | what helps")
    assert [code(kind)[0] for kind, *_ in rows] == list(get_args(RemedyKind))


def events(*arguments: object) -> list[dict[str, Any]]:
    return [json.loads(line) for line in invoke(*arguments, "--events").stdout.splitlines()]


def documented_events(command: str) -> set[str]:
    return {code(name)[0] for name, of, _ in table(COMMANDS, "event | of") if command in of.split(", ")}


def test_the_events_of_a_job_are_those_in_the_docs(checkpoint: Path, tmp_path: Path) -> None:
    found = events("shard", checkpoint, tmp_path / "out", "-s", "60kB")
    assert {event["event"] for event in found} == documented_events("shard") - {"probed", "compared"}
    for command in ("verify", "diff"):
        found = events(command, checkpoint, tmp_path / "out")
        assert {event["event"] for event in found} == documented_events(command)


def test_the_phases_of_progress_are_those_in_the_docs() -> None:
    (meaning,) = (meaning for event, _, meaning in table(COMMANDS, "event | of") if code(event) == ["progress"])
    assert set(code(meaning)) == set(get_args(Phase))


@pytest.mark.thorough
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.filterwarnings("ignore")
def test_the_keys_and_events_of_what_loads_a_model_are_those_in_the_docs(tmp_path: Path) -> None:
    from tests import models

    source, out = models.save("llama", tmp_path / "source", layers=2), tmp_path / "out"
    documented = documented_keys()
    assert set(printed("devices", source, "--budget", "cpu=1GB")) == documented["devices"]
    said = [*events("shard", source, out), *events("compare", source, out, "--rounds", "1")]
    assert {event["event"] for event in said} == documented_events("shard")
    assert documented_events("compare") == {"progress", "probed", "compared"}
    assert said[-1].keys() - {"event"} == documented["compare"]
