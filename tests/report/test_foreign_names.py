"""Names come from strangers' files: in code and commands to copy, and on cards, they are words and nothing more."""

import ast
import json
import shlex
from collections.abc import Iterable
from dataclasses import replace
from typing import get_args

import pytest
import yaml

from sharding import job
from sharding.core.hints import PipelineCut
from sharding.core.values import Library, RepoRef, Stage, TiedTensor
from sharding.formats.model_card import parse_card
from sharding.report.card import Links, write_card
from sharding.report.schema import Report, parse_report
from sharding.report.snippets import (
    how_to_check,
    loading_code,
    loading_snippets,
    pipeline_commands,
    pipeline_script,
    pipeline_snippets,
)
from tests.conftest import random_tensors, write_checkpoint

EVIL = ("x; evil()", "x\nevil()", "x') or evil('", '"+evil()+"', "x$(evil)", "`evil`", "x | evil #", "x.evil", "evil x")
HUB = {"kind": "hub", "repo_id": "me/source", "revision": "a" * 40}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The report of a result whose source is a repo."""
    folder = tmp_path_factory.mktemp("foreign")
    source = write_checkpoint(folder / "in", {"model.safetensors": random_tensors(4)}, index=False)
    *_, _ = job.shard(str(source), str(folder / "out"), "40kB")
    told = json.loads((folder / "out/sharding_report.json").read_text())
    told["source"] |= HUB
    return parse_report(json.dumps(told))


def of(report: Report, **source: object) -> Report:
    return replace(report, source=replace(report.source, **source))  # type: ignore[arg-type]


def planned(report: Report, **plan: object) -> Report:
    return replace(report, plan=replace(report.plan, **plan))  # type: ignore[arg-type]


def piped(report: Report, rank: int | None = None) -> Report:
    """The same, cut for two ranks of a pipeline of transformers."""
    files = [shard.file for shard in report.plan.shards]
    stages = tuple(Stage((), (), (file,), 1, ()) for file in files[:2])
    return planned(report, pipeline=PipelineCut("5.23.0", ((0, 2), (2, 4))), stages=stages, rank=rank)


def names_in(code: str) -> set[str]:
    """Every name that Python would look up or bind to run `code`, lines for a shell left out."""
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith("!")))
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found | {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}


@pytest.mark.parametrize("library", get_args(Library))
@pytest.mark.parametrize("evil", EVIL)
def test_code_that_loads_runs_nothing_that_a_name_says(library: Library, evil: str) -> None:
    for place in ("me/copy", "./copy"):
        usual = names_in(loading_code(place, library, None, "fp16", "weights"))
        assert names_in(loading_code(place, library, None, evil, evil)) == usual
        for named in (evil, f"LlamaForCausalLM{evil[1:]}", "LlamaForCausalLM\n", "Llama.evil", "1Llama", ""):
            assert names_in(loading_code(place, library, named, "fp16", "weights")) == usual, named
    asked = (("LlamaForCausalLM", evil), (evil, ""), (f"Llama{evil[1:]}", ""))
    for architecture, variant in asked:
        for code in loading_snippets("me/copy", architecture, library, variant, evil).values():
            assert "evil" not in names_in(code)


@pytest.mark.parametrize("evil", EVIL)
def test_the_script_of_a_pipeline_runs_nothing_that_a_name_says(report: Report, evil: str) -> None:
    for rank in (None, 1):
        usual = piped(report, rank)
        for other in (of(usual, architecture=evil), of(usual, variant=evil)):
            assert "evil" not in names_in(pipeline_script(other, "me/copy"))


@pytest.mark.parametrize("variant", ["fp16", *EVIL])
def test_the_command_to_check_with_says_each_word_as_it_is(report: Report, variant: str) -> None:
    told = of(report, variant=variant, base=RepoRef("hub", "me/base", "b" * 40))
    told = planned(told, dtype="fp16", dequantized="fp8")
    (command,) = how_to_check(told, "me/copy").values()
    assert shlex.split(command, comments=True) == [
        *("shard-my-repo", "verify", f"me/source@{'a' * 40}", "me/copy", "--dequantize", "--dtype", "fp16"),
        *("--variant", variant, "--base", f"me/base@{'b' * 40}"),
    ]
    (plain,) = how_to_check(report, ".").values()
    assert plain == f"shard-my-repo verify me/source@{'a' * 40} .\n"


def test_no_command_is_given_that_only_its_maker_could_run(report: Report) -> None:
    base = RepoRef("folder", "base", "1")
    assert how_to_check(of(report, kind="folder"), "me/copy") == {}
    assert how_to_check(piped(report, 0), ".") == how_to_check(piped(report, 1), ".") == {}
    assert how_to_check(planned(of(report, base=base), dtype="bf16"), "me/copy") == {}
    for told in (piped(report), of(report, base=base)):
        (command,) = how_to_check(told, "me/copy").values()
        assert command == f"shard-my-repo verify me/source@{'a' * 40} me/copy\n"
    needs = [of(report, kind="folder"), planned(of(report, base=base), dtype="bf16")]
    assert all(told.needs_folder for told in needs)
    hub = RepoRef("hub", "me/base", "b" * 40)
    others = [report, of(report, base=base), of(report, base=hub), planned(of(report, base=hub), dtype="bf16")]
    assert not any(told.needs_folder for told in others)


def test_there_is_a_script_for_a_pipeline_only(report: Report) -> None:
    assert pipeline_script(report, "me/copy") == pipeline_commands(report, "me/copy") == ""
    assert pipeline_snippets(report, "me/copy") == {}
    assert list(pipeline_snippets(piped(report), "me/copy")) == ["pipeline.py", "on each machine"]


# --- On cards ----------------------------------------------------------------------------------------------

MARKUP = ("<img src=x>", "*bold*", "[a](b)", "`code`", "_it_", "#1", "a|b", "!x", "a\\b", "line\n\n# title")


def card(report: Report, links: Links | None = None, before: str = "") -> str:
    return write_card(report, parse_card(before), links or Links("https://hub/me/source"), is_private=False)


def escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#!" else letter for letter in " ".join(text.split()))


@pytest.mark.parametrize("name", MARKUP)
def test_names_on_a_card_are_no_markup(report: Report, name: str) -> None:
    files = [shard.file for shard in report.plan.shards]
    tied = (TiedTensor(name, files[1], (f"{name}.a", f"{name}.b")), TiedTensor(f"other.{name}", files[1], (name,)))
    told = planned(piped(report), stages=(Stage((), (), (files[0],), 1, tied), Stage((), (), (files[1],), 1, ())))
    for text in (name, f"{name}.a", f"{name}.b", f"other.{name}"):
        assert f" {escaped(text)} " in card(told) or f" {escaped(text)}," in card(told)
    shared = f"other.{escaped(name)} in that file is {escaped(name)} here too."
    assert f"Stage 1 also needs `{files[1]}`: {shared}" in card(told)
    folder = of(report, kind="folder", repo_id=name)
    assert f"a copy of the folder `{escaped(name)}` in " in card(folder, Links())
    based = card(of(report, base=RepoRef("folder", name, "1")))
    assert f"come from the folder `{escaped(name)}`, the model that was trained" in based


# --- What a card says of the source, and of what was done --------------------------------------------------


def metadata(text: str) -> dict[str, object]:
    found = yaml.safe_load(text.split("---")[1])
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("link", ["LICENSE.md", "./LICENSE.md", "/LICENSE.md"])
def test_a_relative_link_to_the_licence_leads_to_the_commit_of_the_repo_that_it_is_from(
    report: Report, link: str
) -> None:
    before = f"---\nlicense: other\nlicense_link: {link}\nbase_model: some/body\nbase_model_relation: quantized\n---\n"
    source, links = "https://hub/me/source", Links("https://hub/me/source", None, "https://hub/me/base")
    told = metadata(card(report, links, before))
    assert told["license_link"] == f"{source}/blob/{'a' * 40}/LICENSE.md"
    assert (told["base_model"], told["base_model_relation"]) == ("me/source", "quantized")
    trained = of(report, base=RepoRef("hub", "me/base", "b" * 40))
    told = metadata(card(trained, links, before))
    assert told["license_link"] == f"https://hub/me/base/blob/{'b' * 40}/LICENSE.md"
    assert (told["base_model"], told.get("base_model_relation")) == ("me/base", None)
    of_a_folder = of(report, base=RepoRef("folder", "base", "1"))
    told = metadata(card(of_a_folder, Links(source), before))
    assert (told["license_link"], told["base_model"]) == (link, "some/body")


@pytest.mark.parametrize("dtype", ["keep", "fp16", "dequantized"])
def test_a_card_says_what_was_proved_and_what_not(report: Report, dtype: str) -> None:
    told = planned(report, dtype="bf16", dequantized="fp8") if dtype == "dequantized" else planned(report, dtype=dtype)
    open_end = "Not all files of the original were compared with a hash that the Hub states."
    for unstated in (True, False):
        said = card(replace(told, verification=replace(told.verification, unstated=unstated)))
        assert (open_end in said) is (", as it was read." in said) is unstated
        assert f"all {report.verification.tensors} tensors" in said
    words = {
        "keep": "were bit-identical to the original's",
        "fp16": "were equal to the original's, cast to fp16 as `tensor.to(dtype)` does",
        "dequantized": "were equal to the original's numbers times their scales, in bf16",
    }
    assert [word in said for word in words.values()] == [name == dtype for name in words]


def test_a_card_counts_the_numbers_that_became_infinite_over_all_tensors(report: Report) -> None:
    def said(overflowed: dict[str, int]) -> Iterable[str]:
        text = card(planned(replace(report, overflowed=overflowed), dtype="fp16"))
        return [line for line in text.splitlines() if "became infinite" in line]

    (line,) = said({"a": 3, "b": 1200, "c": 1})
    assert " 1,204 numbers were too large for fp16 and became infinite." in line
    assert said({}) == said({"a": 0}) == []
