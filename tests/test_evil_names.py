"""Names come from strangers' files: wherever one is shown or copied, it is a word and nothing more."""

import ast
import json
import shlex
import struct
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any, get_args

import pytest

from sharding.core.errors import Refused
from sharding.core.events import Published, ShardFinished, Verified
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.protocols import Discarded
from sharding.core.values import Component, Finding, Library, Stage, TiedTensor
from sharding.core.verification import Difference, Evidence, Mismatch, Verification
from sharding.desk.jobs import JobRecord, JobRequest, Told, status_of
from sharding.drawing.certificate import Certificate, draw_badge
from sharding.drawing.heat import draw_heat
from sharding.drawing.map_svg import draw_plan
from sharding.drawing.model_map import map_of_plan
from sharding.formats.file_formats import format_of
from sharding.formats.model_card import ModelCard
from sharding.loading.costs import Comparison, LoadCost, Prediction, Probed, Verdict
from sharding.page import job_panels, panels
from sharding.page.comparison_panels import differences_panel, likeness_panel
from sharding.page.render import render
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.page.serving.pictures import certificate_of
from sharding.planning.devices import DeviceLoad, DevicePlan, device_snippet
from sharding.report.card import write_card
from sharding.report.files import Result as Shown
from sharding.report.report import summarize_source
from sharding.report.snippets import download_snippet, how_to_check, loading_code, loading_snippets, pipeline_snippets
from sharding.storage.hub.lookup import SourceCard
from sharding.verify.structure import compare_structure
from sharding.verify.trust import Level, Trust
from tests.report.golden import FORECAST, terminal
from tests.report.results import BASE, COPY, FOLDER, LORA, MERGE, PIPED, Result, checkpoint, made, of, planned, proved

HARMLESS, READ = "harmless", Evidence("both")
EVIL = (
    *("x; evil()", "x\nevil()", "x') or evil('", '"+evil()+"', "x.evil", "evil x"),  # Python
    *("x$(evil)", "`evil`", "x | evil #", "x' evil"),  # a shell
    *("*evil*", "[evil](x)", "*_evil_*", "#1", "!evil", "a|b", "a\\evil", "line\n\n# evil"),  # Markdown
    *("<img src=x onerror=evil()>\"'&", '</title><script>evil()</script>"&', "a&b]]>"),  # HTML and SVG
    *("\x1b]0;evil\x07\x1b[31m[bold red]evil", "\u202eevil\x00"),  # a terminal
)


def result(name: str, options: Options | None = None) -> Result:
    """A result in which everything is called `name` that a stranger can name."""
    tensors = tuple(tensor._replace(name=f"layers.{n}.{name}") for n, tensor in enumerate(checkpoint().tensors))
    source = checkpoint(replace(FOLDER, repo_id=name), tensors=tensors, architecture=name)
    findings = (Finding("warning", "x", name, name), Finding("info", "x", name))
    base, lora = (replace(place, store="folder", repo_id=name, inside="") for place in (BASE, LORA))
    merge = replace(MERGE, done=f"with {lora.text} merged", by=lora)
    cut = made(options, replace(source, findings=findings), made=(merge,))
    return replace(cut, report=of(cut.report, beside=(base, lora)))


# --- Code to copy ------------------------------------------------------------------------------------------


def of_python(name: str) -> Iterable[str]:
    for library in get_args(Library):
        for place in ("me/copy", "./copy"):
            yield loading_code(place, library, None, name, name)
            for architecture in (name, f"Llama{name}", f"{name}ForCausalLM", ""):
                if not architecture.isidentifier():  # else it may be a class
                    yield loading_code(place, library, architecture, "fp16", "weights")
        yield from loading_snippets("me/copy", name, library, name, name).values()
    for rank in (None, 1):
        report = planned(of(made(PIPED).report, architecture=name, variant=name), rank=rank)
        yield pipeline_snippets(report, "me/copy")["pipeline.py"]
    yield device_snippet("LlamaForCausalLM", {name: "cpu", f"{name}.0": "cpu", f"{name}.1": "disk"}, Place("hub", name))


def names_in(code: str) -> set[str]:
    """Every name that Python would look up or bind to run `code`, lines for a shell left out."""
    tree = ast.parse("\n".join(line for line in code.splitlines() if not line.startswith("!")))
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    found |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found | {node.name for node in ast.walk(tree) if isinstance(node, ast.alias)}


@cache
def usual_names() -> set[str]:
    return set[str]().union(*map(names_in, of_python("1 harmless")))


@pytest.mark.parametrize("name", [*EVIL, "LlamaForCausalLM\n", "Llama.evil", "1Llama"])
def test_code_runs_nothing_that_a_name_says(name: str) -> None:
    for code in of_python(name):
        assert names_in(code) <= usual_names(), code


@pytest.mark.parametrize("name", [HARMLESS, *EVIL])
def test_commands_hold_a_name_as_one_word(name: str) -> None:
    report = of(made(PIPED).report, beside=(BASE, replace(LORA, repo_id=name)))
    report = planned(report, asked={"dtype": "fp16", "variant": name, "dequantize": True})
    (check,) = how_to_check(report, "me/copy").values()
    assert shlex.split(check, comments=True) == [
        *("shard-my-repo", "verify", f"acme/model@{'a' * 40}", "me/copy", "--dtype", "fp16", "--variant", name),
        *("--base", BASE.text, "--dequantize", "--adapter", f"{name}@{'b' * 40}/sub"),
    ]
    shard = replace(report.plan.shards[0], file=name)
    stages = (Stage((), (), (name,), 1, (TiedTensor("w", f"{name}.tied", ("v",)),)), *report.plan.stages[1:])
    commands = pipeline_snippets(planned(report, stages=stages), "me/copy")["on each machine"]
    words = shlex.split(commands, comments=True)
    assert [word for before, word in zip(words, words[1:], strict=False) if before == "--include"] == [
        *("*.json", "token*", name, f"{name}.tied")
    ]
    chosen = checkpoint(components=(Component(variant=name),))
    html = likeness_panel(compare_structure(chosen, checkpoint(COPY, tensors=())), Trust("contradicted", ()), "")
    command = "shard-my-repo diff" + Tags(html).text.rpartition("shard-my-repo diff")[2]
    assert shlex.split(command)[4:7] == ["--variant", name, "--json"]
    (download,) = download_snippet(planned(report, shards=(shard,)), f"me/{name}@{name}").values()
    assert {f"me/{name}", name} <= set(shlex.split(download, comments=True))


# --- What is shown -----------------------------------------------------------------------------------------


def escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#!" else letter for letter in " ".join(text.split()))


@pytest.mark.parametrize("name", EVIL)
def test_names_on_a_card_are_no_markup(name: str) -> None:
    told = result(name, PIPED).report
    first, *others = told.plan.stages
    stages = (replace(first, also_needs=(TiedTensor(name, first.files[0], (f"{name}.b",)),)), *others)
    card = write_card(planned(told, stages=stages), ModelCard(), "", None, is_private=False)
    assert name not in card.replace(escaped(name), "")
    assert f"the folder `{escaped(name)}`, with the folder `{escaped(name)}` merged, in " in card
    assert f"come from the folder `{escaped(name)}`, the model that was trained" in card
    assert f"`{first.files[0]}`: {escaped(name)} in that file is {escaped(name + '.b')} here too." in card


class Tags(HTMLParser):
    """The tags of a panel, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.seen, self.text = list[str](), ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag, and each of its attributes that could run something."""
        self.seen += [tag, *(name for name, _ in attrs if name.startswith("on"))]

    def handle_data(self, data: str) -> None:
        """Note a text."""
        self.text += data


def panels_of(name: str) -> Iterable[str]:
    cut = result(name)
    source, plan, report = cut.source, cut.plan, cut.report
    trust, places = Trust("claims", (name,), (name,)), Places(name, "", "")
    yield panels.map_panel(map_of_plan(source, plan), name, name)
    yield render("tensors", title=name, other="To file", tensors=[(tensor, name) for tensor in source.tensors])
    yield panels.shards_panel(replace(plan, shards=(replace(plan.shards[0], file=name),)), FORECAST)
    yield panels.shards_panel(result(name, PIPED).plan, FORECAST)
    card = SourceCard(name, "0" * 40, "http://hub/it", name, False, False)
    yield panels.facts_panel(summarize_source(source), card)
    yield panels.message(name, name, "error")
    yield panels.findings_panel(source.findings)
    device = DeviceLoad("cuda:0", 40, 30, (name,), (name,))
    yield panels.devices_panel(DevicePlan(name, (name,), 3, (device,), {name: "cuda:0"}, name, name), "")
    wrong = Mismatch(name, name)
    proof = Verification(1, 1, 1.0, READ, (wrong,), differences=(Difference(name, note=name),))
    told = Told(log=(name,), verification=proof)
    record = JobRecord("x", name, JobRequest(name, name, Options()), 1, 0.0, "failed")
    yield job_panels.jobs_panel([record])
    yield panels.log_panel(status_of(record, told))
    compared = replace(record, request=JobRequest("a/b", "c/d", kind="verify"), error=(name, name))
    yield differences_panel(status_of(compared, told), [name], "http://hub", "http://page/")
    for at in (trust, Trust("fits", (name,), made=report.plan.made)):
        for proof in ({}, {"mismatches": (wrong,)}, {"unreached": (name,), "unstated": True}):
            yield result_panel(proved(report, **proof), at, places)
        yield details_panel(replace(report, tool=name), places, at, 1.0)
    yield likeness_panel(compare_structure(source, checkpoint(FOLDER)), trust, "http://hub")


def test_what_a_report_says_was_done_is_never_told_as_ours() -> None:
    texts = ("done", "called", "how", "then", "relation", "evidence", "caveat")
    told = planned(made().report, made=(replace(MERGE, by=None, **dict.fromkeys(texts, "EVIL")),))
    for level in get_args(Level):
        trust, places = Trust(level, (), made=(replace(MERGE, how="GOOD"),)), Places("me/copy", "", "")
        shown = result_panel(told, trust, places) + details_panel(told, places, trust)
        picture = str(certificate_of(Shown("me/copy", "e" * 40, (), told), trust))
        assert "EVIL" not in shown + picture
        assert ("GOOD" in shown) == (level in ("made-here", "read-now", "stated", "fits")), level


@cache
def usual_panels() -> list[Tags]:
    return list(map(Tags, panels_of(HARMLESS)))


@pytest.mark.parametrize("name", EVIL)
def test_names_on_the_page_are_no_markup(name: str) -> None:
    for tags, usual in zip(map(Tags, panels_of(name)), usual_panels(), strict=True):
        assert {*tags.seen} <= {*usual.seen, "wbr"}, tags.text
        assert "evil" not in name or "evil" in tags.text or HARMLESS not in usual.text


def pictures_of(name: str) -> Iterable[str]:
    cut = result(name)
    yield draw_badge(Certificate(name, name, "plain", name, (name,), revision=name))
    yield draw_heat([name, f"layers.0.{name}", "w"], [Difference(name, 1.0, 1.0, 0.5, 0.5, name)])
    yield draw_plan(cut.source, cut.plan)


@cache
def usual_pictures() -> list[set[str]]:
    return list(map(elements, pictures_of(HARMLESS)))


def elements(svg: str) -> set[str]:
    return {element.tag for element in ET.fromstring(svg).iter()}


@pytest.mark.parametrize("name", EVIL)
def test_names_in_a_picture_are_no_markup_and_it_stays_xml(name: str) -> None:
    assert list(map(elements, pictures_of(name))) == usual_pictures()


LOADED, ONE = ("from_pretrained", None, True, None), {"sharded": Prediction(1, 1)}
FAILED = ("from_pretrained", None, None, "cold", dict[str, float](), 1, 1, 1)


@pytest.mark.parametrize("name", EVIL)
def test_names_at_a_terminal_cannot_steer_it(name: str) -> None:
    cut = result(name)
    shown = Verification(1, 1, 1.0, READ, (Mismatch(name, name),), cut.plan.made, unreached=(name,))
    numbers = replace(shown, differences=(Difference(name, 1.0, 1.0, 0.5, 0.5, name),))
    lines: list[Callable[..., object]] = [
        lambda view: view.event(cut.source),
        lambda view: view.event(((), result(name, PIPED).plan, None)),
        lambda view: view.event(((), cut.plan, {name: name})),
        lambda view: view.event(Verified(numbers)),
        lambda view: view.event(Published(Place("hub", name, ""), name, name)),
        lambda view: view.event(replace(cut.report, overflowed={name: 1}, destination=Place("folder", name, ""))),
        lambda view: view.event(ShardFinished(name, 4, "0", 1, 1, kept=True)),
        lambda view: view.error(Refused(name, name)),
        lambda view: view.findings([Finding("warning", "x", name, name)]),
        lambda view: view.event(Discarded(True, False, name)),
        lambda view: view.event(DevicePlan(name, (name,), 3, (), {name: "cpu"}, f"# {name}", name)),
        lambda view: view.comparison(Comparison(*LOADED, (), (), Verdict("gain", None, name), ONE, name, name)),
        lambda view: view.event(Probed("original", 1, 1, LoadCost("failed", name, *FAILED))),
    ]
    shown_there = [terminal(show).replace("\n", "") for show in lines]
    assert [text for text in shown_there if not text.isprintable()] == []
    assert r"\x1b]0;evil\x07\x1b[31m[bold red]evil" in "".join(shown_there) or "\x1b" not in name


@pytest.mark.parametrize("name", EVIL)
def test_names_in_a_header_and_an_index_are_read_again_as_they_were(name: str) -> None:
    plan = result(name).plan
    (index,) = format_of(plan).beside(plan).values()
    weight_map = json.loads(index)["weight_map"]
    for shard in plan.shards:
        data: Any = next(format_of(plan).pieces(plan, shard))
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        assert [key for key in header if key != "__metadata__"] == [tensor.name for tensor in shard.tensors]
        assert all(weight_map[tensor.name] == shard.file for tensor in shard.tensors)
