"""Words that no command takes: one object for programs, a sentence for people, and the word that was meant."""

import json
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.environment import max_job_bytes
from sharding.core.errors import UsageError
from sharding.core.options import Options
from sharding.loading.compare import how_to_load
from tests.cli.test_every_command import STREAMED
from tests.commands import invoke
from tests.conftest import listing
from tests.docs.pages import CLI

WRONG: dict[str, tuple[str, str]] = {
    "an argument is missing": ("shard", "Missing argument 'SOURCE'."),
    "one of two arguments is missing": ("shard ./in", "Missing argument 'DESTINATION'."),
    "an option that must be given": ("devices ./in", "Missing option '--budget'."),
    "one argument too many": ("verify ./in ./out ./more", "unexpected extra argument(s) (./more)."),
    "an option that is none": ("verify ./in ./in --quickly", "No such option: --quickly."),
    "an option of no command": ("--quickly", "No such option: --quickly."),
    "an option without its value": ("plan ./in -s", "-s"),
    "a value too many": ("shard ./in ./out --single-file=3", "'--single-file' does not take a value."),
    "a choice that is none": ("shard ./in ./out --order random", "There is no order 'random'."),
    "a number that is none": ("compare ./in ./in --rounds x", "--rounds"),
    "a number that is too small": ("compare ./in ./in --rounds 0", "--rounds"),
    "a value for an option twice": ("plan ./in --adapter ./a --adapter ./b", "--adapter is given 2 times."),
    "an option twice, by both its names": (
        "plan ./in -s 1GB --max-shard-size=2GB",
        "--max-shard-size is given 2 times.",
    ),
    "a switch and its opposite": ("shard ./in ./out --private --public", "--private/--public is given 2 times."),
    "a command that is none": ("frobnicate ./in", "No such command 'frobnicate'."),
}
"""What is wrong, the words, and what must be said."""


@pytest.mark.parametrize("way", ["--json", "--events"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_words_are_one_object_for_programs_and_a_sentence_for_people(case: str, way: str) -> None:
    words, says = WRONG[case]
    is_cut = words.endswith("-s")  # it would take the way as its value
    done = invoke(*([way] if is_cut else []), *words.split(), *([] if is_cut else [way]))
    assert (done.exit_code, done.stdout.count("\n")) == (2, 1), done.output
    document = json.loads(done.stdout)
    assert document.keys() == {"error"} and list(document["error"]) == ["kind", "message", "hint", "remedy"]
    error = document["error"]
    ends = error["message"][-1] + error["hint"][-1]
    assert error["kind"] == "UsageError" and set(ends) <= {".", "?"}
    assert error["message"] in done.stderr and error["hint"] in done.stderr and "{" not in done.stderr
    if not is_cut and (way == "--json" or words.split()[0] in STREAMED):
        assert says in error["message"]
    done = invoke(*words.split())
    assert (done.exit_code, done.stdout) == (2, "") and says in " ".join(done.stderr.split())
    assert "--help" in done.stderr or "Choose" in done.stderr


def test_every_option_that_takes_one_value_is_refused_a_second_time() -> None:
    commands = {name: one for name, one in CLI.commands.items() if name != "localhub"}
    for name, command in commands.items():
        for option in (one for one in command.params if one.param_type_name == "option" and not one.is_flag):
            if option.multiple:
                continue
            done = invoke(name, *(f"{option.opts[0]}=1", f"{option.opts[-1]}=2"))
            assert (done.exit_code, f"{option.opts[0]} is given 2 times." in done.stderr) == (2, True), done.output


def test_a_second_adapter_is_refused_with_the_way_to_merge_both_and_a_switch_may_be_repeated(checkpoint: Path) -> None:
    done = invoke("plan", checkpoint, "--adapter", "./a", "--adapter", "./b")
    assert "Then merge the next one into the result." in done.stderr
    with pytest.raises(UsageError, match=r"^The adapter is not a text\."):
        Options(adapter=["./a", "./b"])  # type: ignore[arg-type]
    assert invoke("plan", checkpoint, "--json", "--json").exit_code == 0


def test_without_words_the_help_is_shown_as_an_error() -> None:
    done = invoke()
    assert (done.exit_code, done.stdout) == (2, "") and "Commands:" in done.stderr


MEANT = {
    "dtype": {
        **{"bfloat16": "bf16", "BF16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16", "float32": "fp32"},
        **{"keeep": "keep", "int4": "", "fp8": ""},
    },
    "order": {"naturl": "natural", "store": "stored", "transformer": "transformers", "random": ""},
    "strategy": {"block": "blocks", "sizes": "size", "pp:x": "pp:N", "layers": ""},
}
"""What somebody may write, and what is offered: "" for nothing."""


@pytest.mark.parametrize("what", MEANT)
def test_the_choice_that_is_wrong_is_named_and_the_nearest_is_offered(what: str, checkpoint: Path) -> None:
    for word, meant in MEANT[what].items():
        done = invoke("plan", checkpoint, f"--{what}", word, "--json")
        error = json.loads(done.stdout)["error"]
        assert (done.exit_code, error["message"]) == (2, f"There is no {what} {word!r}.")
        assert (f"Did you mean {meant}? " in error["hint"]) == ("Did you mean" in error["hint"]) == bool(meant)


def test_every_choice_is_offered_by_each_command_that_takes_it(checkpoint: Path) -> None:
    for words, meant in (
        ("shard IN ./out --dtype bfloat16", "bf16"),
        ("verify IN IN --dtype float16", "fp16"),
        ("compare IN IN --dtype half", "fp16"),
        ("devices IN --budget cpu=1GB --dtype float16", "fp16"),
        ("shard IN ./out --engine streem", "stream"),
        ("shard IN ./out --workers rays", "ray"),
        ("compare IN IN --method from_pretrain", "from_pretrained"),
    ):
        done = invoke(*words.replace("IN", str(checkpoint)).split())
        assert done.exit_code == 2 and f"Did you mean {meant}?" in done.stderr, (words, done.output)


def test_a_choice_is_checked_from_python_too(checkpoint: Path, tmp_path: Path) -> None:
    source, out = str(checkpoint), tmp_path / "out"
    wrong: Any = {"dtype": "bfloat16"}
    for ask in (
        lambda: list(job.verify(source, source, **wrong)),
        lambda: job.devices(source, "cpu=1GB", **wrong),
        lambda: how_to_load(**wrong),
        lambda: how_to_load(**{"method": "from_pretrain"}),  # type: ignore[arg-type]
        lambda: list(job.shard(source, str(out), **{"engine": "streem"})),  # type: ignore[arg-type]
        lambda: list(job.shard(source, str(out), **{"workers": "rays"})),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match="^There is no ") as refusal:
            ask()
        assert refusal.value.hint.startswith("Did you mean ")
    assert not out.exists()


def test_the_option_or_command_that_was_meant_is_offered() -> None:
    for words, meant in (
        ("plan ./in --max-shard 3GB", "--max-shard-size"),
        ("--versoin", "--version"),
        ("verfy ./in ./in", "'verify'"),
    ):
        said = " ".join(invoke(*words.split()).stderr.split())
        assert f"Did you mean {meant}?" in said and "No such " in said and "(Possible" not in said


def test_an_option_that_is_to_come_is_refused_by_name_and_nothing_else_is_offered() -> None:
    done = invoke("shard", "./in", "./out", option := "--pull-request", "x", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.exit_code, error["message"]) == (2, f"This version has no {option}.")
    assert "Did you mean" not in error["hint"]


def test_a_gguf_file_is_refused_as_one(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    before = listing(tmp_path)
    for file in ("model.gguf", "./model.gguf"):
        for words in (("inspect", file), ("plan", file), ("shard", file, "./out"), ("shard", checkpoint, file)):
            done = invoke(*words, "--json")
            error = json.loads(done.stdout)["error"]
            assert (done.exit_code, error["kind"]) == (2, "UsageError")
            assert error["message"].endswith(".gguf is a GGUF file, and not a folder or a repo.")
    assert invoke("shard", checkpoint, "./new.gguf").exit_code == 2
    assert listing(tmp_path) == before
    checkpoint.rename(tmp_path / "folder.gguf")
    assert invoke("inspect", "./folder.gguf").exit_code == 0


def test_a_size_that_cannot_be_is_named_by_what_it_measures(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = str(checkpoint)
    for words, what in (
        (["plan", source, "-s"], "shard"),
        (["compare", source, source, "--memory-limit"], "memory limit"),
        (["devices", source, "--budget"], "budget of cuda:0"),
    ):
        before = "cuda:0=" * (what[0] == "b")
        for size, problem in (
            ("0", f"{what} of '0' cannot hold anything."),
            ("9EB", f"'9EB' is not a size for a {what}."),
            ("9999999PB", f"{what} of '9999999PB' fits on no machine."),
        ):
            done = invoke(*words, before + size, "--json")
            assert done.exit_code == 2 and problem in json.loads(done.stdout)["error"]["message"], done.output
    for size in ("0", "much", "9999999PB"):
        monkeypatch.setenv("SHARD_MAX_JOB_SIZE", size)
        with pytest.raises(UsageError, match="SHARD_MAX_JOB_SIZE"):
            max_job_bytes()
