"""What the pages tell somebody to give can be given, and prints what they show."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sharding import job
from sharding.demo import whole_job
from sharding.demo.samples import BUILDERS
from tests.commands import invoke
from tests.conftest import ROOT, environment, write_checkpoint
from tests.docs.pages import (
    AGENTS,
    API,
    CLI,
    COMMANDS,
    GAINS,
    PAGES,
    README,
    RESULTS,
    blocks,
    code,
    localhub_options,
    prose,
    subsection,
    table,
)
from tests.folders import until_shard


def test_what_the_readme_shows_of_a_job_is_what_a_job_prints(checkpoint: Path, tmp_path: Path) -> None:
    (shown,) = (block for block in blocks(README, "console") if block.startswith("$ .venv/bin/python"))
    printed = invoke("shard", checkpoint, tmp_path / "mine", "-s", "70kB").stdout
    count = printed.count("\nmodel-")

    def form(text: str) -> list[str]:
        """The lines with sizes, other numbers and places taken out; the rows of all shards as one."""
        text = re.sub(r"[\d.]+ [kMG]?B\b|\d[\d,.]*%|\d+[\d.,]*", "N", re.sub(r"\S*/mine", "PLACE", text))
        lines = [" ".join(line.split()) for line in text.splitlines() if line and not line.startswith("(")]
        return list(dict.fromkeys(lines))

    assert count > 1
    assert form(printed) == form(shown.partition("\n")[2])


OF_SAMPLES = {
    page: [block for block in blocks(page, "console") if block.startswith("$ shard-my-repo ") and "./samples/" in block]
    for page in PAGES
}
"""The blocks of each page that show what a command prints of the sample models."""
ASKS_TORCH = ("pp:", "--workers", "shard-my-repo compare")
SAMPLED = [
    pytest.param(page, id=page.name, marks=[pytest.mark.thorough] * any(word in str(shown) for word in ASKS_TORCH))
    for page, shown in OF_SAMPLES.items()
    if shown
]
LEFT_OUT = "[…]"


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the sample models in `samples`: each is built once a page shows it."""
    return tmp_path_factory.mktemp("place")


def pattern(shown: list[str]) -> str:
    """What matches the lines shown, and any others for each that is left out."""
    lines = ["(?:.*\\n)*" if line == LEFT_OUT else re.escape(measured_apart(line)) + "\\n" for line in shown]
    return "".join(lines).replace(re.escape(LEFT_OUT), ".*")


def measured_apart(line: str) -> str:
    """A line without its spaces at the end, and without numbers if it says what was measured."""
    if re.search(r"\d s\b|anonymous|^ray ", line):
        line = re.sub(r"\b[a-f]*\d[\da-f.]*(?: [MG]B of anonymous)?", "N", line)
    return re.sub(r" +", " ", line).rstrip()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", SAMPLED)
def test_what_a_page_shows_of_the_samples_is_printed(
    page: Path, samples: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page != GAINS:  # which tells of the memory that a process of its own has
        request.getfixturevalue("warm_processes")
    monkeypatch.chdir(samples)
    for name in sorted(set(re.findall(r"\./samples/([\w-]+)", "".join(OF_SAMPLES[page])))):
        if not Path("samples", name).exists():
            BUILDERS[name](Path("samples", name))
    for example in "".join(OF_SAMPLES[page]).split("$ shard-my-repo ")[1:]:
        command, *shown = example.splitlines()
        lines = invoke(*shlex.split(command)).stdout.splitlines()
        printed = "".join(f"{measured_apart(line)}\n" for line in lines)
        assert re.fullmatch(pattern(shown), printed), f"{page.name}: {command} prints:\n{printed}"


def test_what_make_prints_is_what_the_pages_show() -> None:
    (run,) = (block for block in blocks(API, "console") if block.startswith("$ make run\n"))
    program = (ROOT / "sharding/demo/offline.py").read_text()
    begins = [line.partition("http")[0] for line in run.splitlines()[1:] if line[0] not in "[*"]
    assert begins and all(begin in program for begin in begins)
    development = blocks(ROOT / "docs/development.md", "console")
    (checked,) = (block for block in development if block.startswith("$ make check\n"))
    command = ["make", "--no-print-directory", "--dry-run", "--old-file=.venv/tested", "check"]
    steps = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line for line in checked.splitlines() if line.startswith(".venv/")] == steps


def write_my_model(folder: Path) -> None:
    """Write the model of the examples: a Llama of four layers, all zeros."""
    shapes = {"model.embed_tokens.weight": (8000, 256), "model.norm.weight": (256,), "lm_head.weight": (8000, 256)}
    for layer in (f"model.layers.{number}." for number in range(4)):
        shapes |= {f"{layer}self_attn.{part}_proj.weight": (256, 256) for part in "qkvo"}
        shapes |= {f"{layer}mlp.{part}_proj.weight": (512, 256) for part in ("gate", "up")}
        shapes |= {f"{layer}mlp.down_proj.weight": (256, 512)}
        shapes |= {f"{layer}{part}_layernorm.weight": (256,) for part in ("input", "post_attention")}
    tensors = {name: np.zeros(shape, np.float16) for name, shape in shapes.items()}
    write_checkpoint(folder, {"model.safetensors": tensors}, index=False)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 8000, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "tie_word_embeddings": False}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16"} | sizes | heads
    (folder / "config.json").write_text(json.dumps(config))


def write_tuned(folder: Path) -> None:
    """Write ./my-model and ./my-model-tuned of the example of `diff`: numbers that rise, and some that were trained."""
    write_my_model(folder / "my-model")
    tensors = {
        name: np.linspace(-0.5, 0.5, zeros.size, dtype=np.float32).astype(np.float16).reshape(zeros.shape)
        for name, zeros in load_file(folder / "my-model/model.safetensors").items()
    }
    tuned = dict(tensors)
    tuned["lm_head.weight"] = tensors["lm_head.weight"] * np.float16(1.01)
    tuned["model.layers.3.self_attn.q_proj.weight"] = tensors["model.layers.3.self_attn.q_proj.weight"].copy()
    tuned["model.layers.3.self_attn.q_proj.weight"][:64] += np.float16(0.02)
    tuned["model.norm.weight"] = tensors["model.norm.weight"].astype(np.float32)
    tuned["lm_head.bias"] = np.zeros(8000, np.float16)
    for name, weights in (("my-model", tensors), ("my-model-tuned", tuned)):
        write_checkpoint(folder / name, {"model.safetensors": weights}, index=False)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in which the examples of the commands are given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    write_my_model(tmp_path / "my-model")
    until_shard(job.shard("./my-model", "./unfinished", "5MB"), stop=True)
    return tmp_path


def examples(command: str) -> Iterator[tuple[list[str], str]]:
    """The words of each example of a command, and what it is said to print."""
    for shown in subsection(COMMANDS, command).partition("```console\n$ ")[2].partition("```")[0].split("\n$ "):
        words, _, printed = shown.partition("\n")
        yield shlex.split(words), printed


def without_costs(text: str, place: Path) -> str:
    """What is printed, but for seconds, memory, requests and the place."""
    text = re.sub(r"\d+\.\d s\b", "N s", text.replace(str(place), "…"))
    text = re.sub(r"at most \S+ [MG]B of anonymous memory; \S+ MB read in \d+ requests", "MEMORY AND REQUESTS", text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize("command", ["inspect", "plan", "shard", "verify", "diff", "discard"])
def test_what_the_docs_show_of_a_command_is_what_it_prints(command: str, place: Path) -> None:
    if command == "verify":
        invoke("shard", "./my-model", "./my-model-sharded", "-s", "5MB")
    if command == "diff":
        write_tuned(place)
    for (program, name, *words), printed in (shown := list(examples(command))):
        assert (program, name) == ("shard-my-repo", command)
        done = invoke(name, *words)
        assert done.exit_code == (command == "diff"), done.stderr
        assert without_costs(done.stdout, place) == without_costs(printed, place)
    assert shown


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("warm_processes")
@pytest.mark.parametrize("command", ["compare", "devices"])
def test_what_the_docs_show_of_a_command_that_needs_a_model_is_what_it_prints(command: str, place: Path) -> None:
    invoke("shard", "./my-model", "./my-model-sharded", "-s", "5MB")
    (((_, name, *words), printed),) = examples(command)
    done = invoke(name, *words)
    assert done.exit_code == 0, done.stderr
    if command == "devices":
        assert done.stdout == printed
        return
    texts = (re.sub(r" *\n", "\n", re.sub(r"\d+\.\d+", "N", text)) for text in (done.stdout, printed))
    # The first line depends on the machine, and so does what the last one says of it.
    (_, *table), (_, *said) = (re.sub(r" {2,}", "  ", text).rpartition(";")[0].splitlines() for text in texts)
    assert table == said


def test_what_the_docs_show_of_localhub_is_what_it_prints(place: Path) -> None:
    (((_, *words), printed),) = examples("localhub")
    words[words.index("--port") + 1] = "0"
    with subprocess.Popen(
        [sys.executable, "-m", "sharding", *words], stdout=subprocess.PIPE, text=True, env=environment()
    ) as hub:
        assert hub.stdout
        ready = hub.stdout.readline()
        hub.terminate()
    assert re.sub(r"\d+$", "N", ready.strip()) == re.sub(r"\d+$", "N", printed.strip())


def test_every_command_has_an_example_in_the_docs() -> None:
    for command in CLI.commands:
        assert [words[1] for words, _ in examples(command)] == [command] * len(list(examples(command))), command


@cache
def commands_shown() -> list[tuple[Path, tuple[str, ...]]]:
    """Every line of a block of commands, and every command that stands in a line of text, with its page."""
    found = []
    for page in (*PAGES, RESULTS, *AGENTS):
        lines = [line for block in blocks(page, "sh") for line in block.splitlines() if line]
        lines += [line[2:] for block in blocks(page, "console") for line in block.splitlines() if line[:2] == "$ "]
        spans = [span for span in code(prose(page)) if " " in span and not {*"…{"} & {*span}]
        if page == RESULTS:
            gone = {span for line in page.read_text().splitlines() if "which is gone" in line for span in code(line)}
            spans = [span for span in spans if span not in gone]
        begins = ("shard-my-repo ", "python ", ".venv/bin/python ", "make ", "pip install ", "hf ", "uvx ")
        for line in [*lines, *(span for span in spans if span.startswith(begins))]:
            words = shlex.split(line, comments=True)
            found.append((page, tuple(word for word in words if not re.match(r"[A-Z_]+=http|HF_TOKEN=", word))))
    return found


SPACE = "https://huggingface.co/spaces/OWNER/shard-my-repo"


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.M))


@cache
def options_of_hf(*command: str) -> frozenset[str]:
    """The options of a command of the Hub's own tool."""
    from huggingface_hub.cli.hf import app

    with redirect_stdout(StringIO()) as told:
        app([*command, "--help"], standalone_mode=False)
    return frozenset(re.findall(r"--[a-z-]+", told.getvalue()))


def check(words: tuple[str, ...]) -> None:
    """Fail where there is no such command, or it has no such options."""
    match words:
        case ("shard-my-repo", option) if option.startswith("-"):
            assert option in [name for param in CLI.params for name in param.opts]
        case ("shard-my-repo", name, *rest) | ("python" | ".venv/bin/python", "-m", "sharding", name, *rest):
            CLI.commands[name].make_context(name, list(rest))  # raises for what it cannot read
            if name == "localhub":
                assert {word for word in rest if word.startswith("--")} <= localhub_options()
        case ("make", target, *_):
            assert target in targets()
        case ("pip", "install", what):
            asked = set(re.findall(r"(?<=\[)[a-z]+(?=\])", what))
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert asked <= set(extras) and re.fullmatch(rf"\.(\[[a-z]+\])?|shard-my-repo\[load\] @ git\+{SPACE}", what)
        case ("python" | ".venv/bin/python", "-m", module, *_):
            assert importlib.util.find_spec(module)
        case ("python" | ".venv/bin/python", script, *rest):
            text = (ROOT / script).read_text() + (ROOT / "bench/harness/scratch.py").read_text()
            assert {word for word in rest if word.startswith("--")} <= set(re.findall(r'"(--[a-z-]+)"', text))
        case ("uvx", "--from", address, *command):
            assert address == f"git+{SPACE}"
            check(tuple(command))
        case ("hf", "shard", *rest):
            check(("shard-my-repo", *rest))
        case ("hf", "jobs", "uv", "run", *rest) if "--" in rest:
            check(("shard-my-repo", "shard", *rest[rest.index("--") + 1 :]))
            check(("hf", "jobs", "uv", "run", *rest[: rest.index("--") - 1]))
        case ("hf", *rest):
            options = {word for word in rest[: next((at for at, word in enumerate(rest) if ":" in word), None)]}
            options = {word for word in options if word.startswith("--")}
            assert options <= options_of_hf(*takewhile(re.compile("[a-z]+").fullmatch, rest))
        case ("ray", "job", "submit", *rest):
            own, command = rest[: rest.index("--")], rest[rest.index("--") + 1 :]
            cli = Path(importlib.util.find_spec("ray").origin).parent / "dashboard/modules/job/cli.py"  # type: ignore[union-attr, arg-type]
            assert {word for word in own if word.startswith("--")} <= set(re.findall(r'"(--[a-z-]+)"', cli.read_text()))
            check(tuple(command))
        case ("shard-my-repo",) | ("git", "clone", _) | ("git", "push", _, _) | ("cd", _):
            pass
        case _:
            pytest.fail(f"There is no way to tell whether {words} is a command.")


def test_every_command_shown_can_be_given_and_the_readme_shows_every_command() -> None:
    for page, words in commands_shown():
        try:
            check(words)
        except (Exception, pytest.fail.Exception, SystemExit) as problem:
            raise AssertionError(f"{page.name}: {shlex.join(words)}: {problem!r}") from problem
    in_readme = [words for page, words in commands_shown() if page == README]
    assert {words[1] for words in in_readme if words[0] == "shard-my-repo"} == set(CLI.commands)


def test_the_readme_answers_each_wish_with_one_command() -> None:
    rows = table(README, "You have | You want")
    commands = [[span for span in code(typed) if span.startswith("shard-my-repo ")] for _, _, typed in rows]
    assert [len(spans) for spans in commands[:-1]] == [1] * (len(rows) - 1)
    assert code(rows[-1][-1]) == ["hf repos duplicate owner/name"]


def test_what_the_readme_shows_of_the_demo_is_what_the_demo_prints() -> None:
    (shown,) = (block for block in blocks(README, "console") if block.startswith("$ make demo"))
    command = f"shard {whole_job.SOURCE} {whole_job.DESTINATION} --max-shard-size {whole_job.SHARD_SIZE}"
    assert f"shard-my-repo {command}\n" in shown and f"HF_TOKEN=hf_{whole_job.USER} " in shown
    assert f"Each writes {whole_job.NEW_TOKENS} tokens after {whole_job.PROMPT!r}:\n" in shown
    texts = re.findall(r"^  \./demo/\S+ +('.*')$", shown, flags=re.M)
    assert texts == [repr(f"{whole_job.PROMPT} ugly.\nExplicit is better than implicit.")] * 2
    assert shown.endswith(f"They agree. The Hub has stopped.\n{whole_job.NEXT}\n")
    first, second = (line.strip() for line in whole_job.NEXT.splitlines()[-2:])
    assert any(block.startswith(f"$ {first}\n") for block in blocks(README, "console")) and second == "make run"


PYTHON = [(page, example) for page in PAGES if page != API for example in blocks(page, "python")]


def test_every_example_in_python_runs(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for page, example in PYTHON:
        (place := tmp_path / page.stem).mkdir()
        shutil.copytree(checkpoint, place / "my-model")
        monkeypatch.chdir(place)
        with redirect_stdout(StringIO()) as told:
            exec(example, {"__name__": "__main__"})
        assert told.getvalue().splitlines()[-1].startswith("Report(")
        assert (place / "my-model-sharded/model.safetensors").exists()
    assert [page for page, _ in PYTHON] == [README, COMMANDS]


def test_every_target_of_make_that_help_lists_stands_on_a_page() -> None:
    command = ["make", "--no-print-directory", "help"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {line.split()[0] for line in listed} == {words[1] for _, words in commands_shown() if words[0] == "make"}
