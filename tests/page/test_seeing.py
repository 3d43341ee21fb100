"""What a visitor sees of a model and its plan: asked of the rooms in this process."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl

import gradio as gr
import numpy as np
import pytest
from gradio.blocks import Block

from sharding.core.options import Options
from sharding.desk import Forecast
from sharding.page.api import Endpoints
from sharding.page.arriving import Arriving
from sharding.page.form import PRIVATE
from sharding.page.jobs import Pushing
from sharding.page.planning import Planning
from sharding.page.results import Comparing, Showing
from tests.conftest import random_tensors, write_checkpoint
from tests.hubs import push, shard
from tests.page.rooms import Rooms, asks, login, told, whole
from tests.page.sources import save_fp8, save_lora, save_plain, save_ranks, save_variants
from tests.promises import promise

SMALL, VARIANTS, NO_PLAIN, FP8 = "bob/small", "bob/variants", "bob/no-plain", "bob/model-fp8"
PLAIN, LORA, OTHER_LORA, SECRET = "bob/plain", "bob/lora", "bob/other-lora", "alice/secret-lora"


@pytest.fixture(scope="module", autouse=True)
def repos(rooms: Rooms, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("in")
    rooms.push(SMALL)
    half = {name: tensor.astype(np.float16) for name, tensor in random_tensors(3, 300).items()}
    write_checkpoint(folder / "two", {f"model.{name}.safetensors": half for name in ("ema", "fp16")}, False)
    save_variants(folder / "variants")
    save_fp8(folder / "fp8")
    save_plain(folder / "plain")
    save_lora(folder / "lora")
    save_lora(folder / "other", side=48)
    repos = {NO_PLAIN: "two", VARIANTS: "variants", FP8: "fp8", PLAIN: "plain", LORA: "lora", OTHER_LORA: "other"}
    for repo, name in repos.items():
        push(rooms.hub, folder / name, repo, "hf_bob")
    push(rooms.hub, folder / "lora", SECRET, private=True)


class Visitor:
    """A form that somebody fills in, which keeps what each event sets, as a browser does."""

    def __init__(self, rooms: Rooms, query: Mapping[str, str] | None = None, user: str = "alice", site: Any = None):
        """Open the link with `query`."""
        self.form, self.values, self.shown = rooms.form, rooms.given(), dict[Block, dict[str, Any]]()
        self._asks, self._planning = asks(user), Planning(rooms.desk, site or rooms.site, rooms.form)
        self._pushing = Pushing(rooms.desk, site or rooms.site, rooms.form)
        self._apply(Arriving(rooms.desk, site or rooms.site, rooms.form).arrive(asks(user, query=query)))
        if query:
            self.see()

    def see(self, **typed: object) -> None:
        """Ask for the model and its plan, and for a name of the copy."""
        self._write(typed)
        self._apply(self._planning.see(self.values, self._asks, None))
        self._apply(self._pushing.propose(self.values, self._asks, None))

    def draw(self, **typed: object) -> None:
        """Ask for another plan of the model."""
        self._write(typed)
        self._apply(self._planning.draw(self.values, self._asks, None))

    def now(self, name: str) -> Any:
        """The value of a part of the form."""
        return self.values[self.form.by_name[name]]

    def text(self, name: str) -> str:
        return " ".join(re.sub("<[^>]+>", " ", str(self.now(name)).replace("<wbr>", "")).split())

    def has(self, field: str) -> bool:
        """Whether the form shows a field that not every goal has."""
        return field in re.findall('data-fields="([^"]*)"', self.now("goals"))[0].split()

    def is_visible(self, name: str) -> bool:
        return self.shown.get(self.form.by_name[name], {}).get("visible") is True

    def _write(self, typed: Mapping[str, object]) -> None:
        self.values |= {self.form.by_name[name]: value for name, value in typed.items()}

    def _apply(self, update: dict[Any, Any]) -> None:
        for part in update:
            settings = told(update, part)
            self.shown.setdefault(part, {}).update(settings)
            if "value" in settings:
                self.values[part] = settings["value"]


@pytest.mark.parametrize(
    "typed",
    [
        {"repo": f"{SMALL}@main", "size": "70kB", "order": "stored", "strategy": "pp", "machines": 3, "dtype": "bf16"},
        {"repo": SMALL, "size": "", "variant": "fp16", "goal": "free-colab", "visibility": PRIVATE},
        {"repo": PLAIN, "size": "one file", "goal": "merge-lora", "adapter": LORA},
        {"repo": SMALL, "size": "70kB", "namespace": "acme", "name": "mine"},
        {"goal": "one-file"},
        {"original": SMALL, "copied": PLAIN},
    ],
)
def test_who_signs_in_comes_back_to_the_same_choices_though_their_plan_was_not_there_yet(
    rooms: Rooms, typed: dict[str, object]
) -> None:
    arriving, form = Arriving(rooms.desk, rooms.space, rooms.form), rooms.form
    link = arriving.keep(rooms.given(**typed))
    back = asks(query=dict(parse_qsl(link[1:])))
    visit = Visitor(rooms)
    visit._apply(arriving.arrive(back))
    if "original" in typed:
        visit._apply(Comparing(rooms.desk, rooms.space, form).arrive(back))
    assert {name: visit.now(name) for name in typed} == typed


def test_who_signs_in_beside_a_job_or_with_no_choice_keeps_the_link(rooms: Rooms) -> None:
    arriving = Arriving(rooms.desk, rooms.space, rooms.form)
    assert arriving.keep(rooms.given(repo=SMALL, job="A/bob/it")) == "?job=A/bob/it"
    assert arriving.keep(rooms.given()) == ""


def test_one_variant_is_offered_beside_others_and_kept(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": SMALL, "size": "13kB", "variant": "bf16"})
    assert re.search("There is no variant .*bf16.* You see the plain weights instead", visit.text("repo_message"))
    assert visit.is_visible("machine") and not visit.is_visible("variants")
    # Several and no plain weights: one of them is shown.
    visit.see(repo=NO_PLAIN)
    assert "several variants but no plain weights" in visit.text("repo_message") and visit.now("variant") == "ema"
    visit.see(variant="fp16")
    assert "model.fp16.safetensors" in visit.text("shards") and visit.text("repo_message") == ""
    # Only the plain weights are placed on devices, and loaded to compare.
    assert not visit.is_visible("machine") and not visit.is_visible("measure")
    # One beside the plain weights.
    visit.see(repo=VARIANTS, variant="")
    assert visit.is_visible("variants") and "F32" in visit.text("facts")
    visit.see(variant="fp16")
    assert "F16" in visit.text("facts") and "variant=fp16" in visit.now("query")
    assert visit.now("name").startswith("variants-fp16-sharded-")


def test_each_model_suggests_a_size_and_a_size_of_ones_own_stays(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": SMALL})
    assert visit.now("size") == "50kB" and "If a download breaks" in visit.text("sizes")
    visit.see(repo=PLAIN)
    assert visit.now("size") == "20kB"
    visit.draw(size="77kB")
    visit.see(repo=SMALL)
    assert visit.now("size") == "77kB" and "size=77kB" in visit.now("query")
    visit.draw(size="one file")
    assert "1 file" in visit.text("summary") and "size=single-file" in visit.now("query")


def test_both_ways_of_checking_say_their_time_and_the_chosen_one_is_in_the_bar_and_the_link(rooms: Rooms) -> None:
    slow = Forecast(100, 200, 10**8, 0, "As measured.")
    with patch.object(rooms.desk, "forecast", lambda *_: slow):
        visit = Visitor(rooms, {"repo": SMALL, "size": "50kB"})
        said = visit.shown[visit.form.proof]["info"]
        assert "about 100 to 200 s if it reads everything" in said and "about 75 to 150 s if it trusts" in said
        assert visit.now("proof") == "read" and "about 100 to 200 s" in visit.text("summary")
        visit.draw(proof="stated")
        assert "about 75 to 150 s" in visit.text("summary") and "proof=stated" in visit.now("query")
        again = Visitor(rooms, dict(parse_qsl(visit.now("query")[1:])))
        assert again.now("proof") == "stated" and "about 75 to 150 s" in again.text("summary")


def test_the_base_of_a_training_run_is_asked_for_and_goes_with_the_copy(rooms: Rooms, tmp_path: Path) -> None:
    push(rooms.hub, save_ranks(tmp_path), "bob/trained", "hf_bob")
    visit = Visitor(rooms, {"repo": SMALL, "size": "60kB"})
    assert not visit.has("base")
    visit.see(repo="bob/trained")
    assert visit.has("base") and "There is no config.json and no tokenizer" in visit.text("findings")
    assert "Name the model that was trained." in visit.text("summary") and not visit.now("shown").plan_id
    assert visit.shown[visit.form.start]["variant"] == "secondary" and not visit.is_visible("measure")
    visit.see(base="bob/nothing-there")
    assert "bob/nothing-there" in visit.text("repo_message")
    visit.see(base=SMALL)
    assert "LlamaForCausalLM" in visit.text("facts") and "There is no config.json" not in visit.text("findings")
    assert "Nothing loads" not in visit.text("summary") and visit.shown[visit.form.start]["variant"] == "primary"
    assert visit.is_visible("measure")  # transformers loads the copy
    assert "base=bob/small" in visit.now("query")
    again = Visitor(rooms, dict(parse_qsl(visit.now("query")[1:])))
    assert again.now("base") == SMALL and again.has("base")
    again.see(repo=SMALL)  # an ordinary repo has none
    assert "base=" not in again.now("query")


def test_overflow_is_asked_about_where_a_cast_can_have_it(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": VARIANTS, "dtype": "fp16", "allow_overflow": "true"})
    assert visit.now("overflow") and visit.is_visible("overflow") and "allow_overflow=true" in visit.now("query")
    visit.draw(dtype="keep")
    assert not visit.is_visible("overflow") and "allow_overflow" not in visit.now("query")
    visit.draw(dtype="fp16")
    assert visit.is_visible("overflow") and visit.now("overflow") is False


def test_ordinary_weights_are_offered_where_a_repo_is_quantized(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": FP8, "size": "90kB", "dtype": "bf16", "dequantize": "true"})
    assert visit.now("dequantize") is True
    visit.see(repo=SMALL)
    assert not visit.is_visible("dequantize") and "dequantize" not in visit.now("query")
    visit.draw(dtype="keep")
    visit.see(repo=FP8)
    box = visit.shown[visit.form.dequantize]
    assert box["label"] == "Dequantize: 320.9 kB → 640.8 kB"
    assert "quantized with fp8, one scale for each 128 x 128" in box["info"]
    assert visit.now("dequantize") is False and "choose ordinary weights" in visit.text("findings")
    visit.see(dequantize=True)
    assert "640.8 kB" in visit.text("picture") and visit.now("query").endswith("size=90kB&dequantize=true")
    assert not visit.is_visible("measure") and visit.now("name") == "model-fp8-bf16-sharded-90kB"


def test_a_goal_changes_the_size_that_another_goal_set_and_a_size_of_ones_own_stays_until_then(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": VARIANTS, "goal": "half-size", "size": "30kB"})
    assert (visit.now("size"), visit.now("dtype")) == ("30kB", "keep")  # the link names the size
    visit.see(goal="slow-connection")
    assert visit.now("size") != "30kB"
    visit.see(goal="half-size")
    assert visit.now("dtype") == "bf16"
    visit.see(goal="one-file")
    assert (visit.now("size"), visit.now("dtype")) == ("one file", "keep")
    visit.see(goal="half-size")
    visit.see(goal="unquantize")  # makes no sense for it, and takes back what the goal before it set
    assert "is not for this model. Its weights are not quantized" in visit.text("goals")
    assert visit.now("dtype") == "keep" and visit.now("size") != "one file"
    visit = Visitor(rooms, {"repo": FP8, "goal": "unquantize"})
    assert visit.now("dequantize") is True and "320.9 → 640.8 kB, 1 file" in visit.text("summary")
    visit.see(repo=SMALL)
    assert "not quantized" in visit.text("goals") and visit.text("summary")


def test_what_is_pasted_is_recognised(rooms: Rooms, tmp_path: Path) -> None:
    """The goals that fit it are offered, and an adapter alone is merged into the base that it names."""
    config = {"peft_type": "LORA", "base_model_name_or_path": PLAIN, "r": 2, "lora_alpha": 2, "target_modules": ["x"]}
    folder = save_lora(tmp_path / "lora")
    known = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | known | {"base_model_name_or_path": PLAIN}))
    push(rooms.hub, folder, "bob/names-its-base", "hf_bob")
    offered = {
        repo: re.findall(r"data-goal[^>]*>([^<]+)<", Visitor(rooms, {"repo": repo}).now("goals"))
        for repo in (SMALL, FP8, VARIANTS)
    }
    first = {SMALL: "Smaller files", FP8: "Ordinary weights", VARIANTS: "Smaller files"}
    assert {repo: titles[0] for repo, titles in offered.items()} == first
    assert "Half the size" in offered[VARIANTS] and "Merge my LoRA" in offered[FP8]
    for goal in ({}, {"goal": "merge-lora"}):
        visit = Visitor(rooms, {"repo": "bob/names-its-base", **goal})
        assert (visit.now("repo"), visit.now("adapter")) == (PLAIN, "bob/names-its-base")
        assert "12 of 25 tensors change" in visit.text("summary") and visit.now("name") == "plain-names-its-base-merged"


def test_a_goal_that_is_not_about_sizes_keeps_those_of_today(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": VARIANTS, "goal": "half-size"})
    assert ", 1 file" in visit.text("summary") and " → " in visit.text("summary")


def test_what_is_wrong_with_an_adapter_stands_below_its_field(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": PLAIN, "goal": "merge-lora"})
    assert "Now name your adapter." in visit.text("repo_message") and not visit.is_visible("push")
    for adapter, words in (
        ("bob/nothing-there", "bob/nothing-there"),
        (SMALL, "has no adapter_config.json"),
        (OTHER_LORA, "Name the base that the adapter was trained on"),
    ):
        visit.see(adapter=adapter)
        assert words in visit.text("repo_message") and PLAIN in visit.now("facts") and not visit.is_visible("push")
    visit.see(adapter=LORA)
    assert "12 of 25 tensors change" in visit.text("summary") and visit.text("repo_message") == ""
    assert visit.is_visible("push") and "adapter=bob/lora" in visit.now("query")


def test_the_result_of_a_merge_shows_what_changes_and_leads_to_its_plan(rooms: Rooms) -> None:
    shard(rooms.hub, PLAIN, "alice/merged", Options("30kB", adapter=LORA))
    update = whole(Showing(rooms.desk, rooms.site, rooms.form).show("alice/merged", asks("alice"), None))
    assert "12 of 25 tensors change" in update[rooms.form.result_map]
    assert re.search("adapter=bob/lora@[0-9a-f]{40}", update[rooms.form.result])


def test_two_repos_are_read_whole_by_who_has_a_login(rooms: Rooms) -> None:
    comparing, read = Comparing(rooms.desk, rooms.space, rooms.form), rooms.form.read
    offers = [told(comparing.show(SMALL, SMALL, asks(), by), read) for by in (None, login("alice"))]
    assert [(offer["visible"], offer["interactive"]) for offer in offers] == [(True, False), (True, True)]


@pytest.mark.parametrize("user", ["", "alice"])
def test_a_space_reads_a_private_adapter_with_the_token_of_its_visitor_only(rooms: Rooms, user: str) -> None:
    visit = Visitor(rooms, {"repo": PLAIN, "adapter": SECRET, "size": "30kB"}, user, rooms.space)
    assert ("12 of 25 tensors change" in visit.text("summary")) == visit.is_visible("push") == bool(user)
    # The result is private by itself, as its adapter is.
    assert user == "" or visit.now("visibility") == PRIVATE


@promise("docs/security.md#stop-the-page-with-a-million")
def test_of_a_model_that_is_too_large_to_plan_the_tensors_are_counted_and_the_layers_shown(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms.push("bob/large")
    monkeypatch.setattr("sharding.core.limits.MAX_PAGE_TENSORS", 10)
    visit = Visitor(rooms, {"repo": "bob/large"})
    assert "more than 10 tensors" in visit.text("repo_message")
    assert "14 tensors in 1 file" in visit.text("facts") and "data:image/svg+xml;base64," in visit.now("facts")
    endpoints = Endpoints(rooms.desk, rooms.site)
    assert endpoints.inspect("bob/large", asks("alice"))["weight_files"][0]["tensors"] == 14
    with pytest.raises(gr.Error, match="more than 10 tensors.*shard-my-repo"):
        endpoints.plan("bob/large", asks("alice"))


def test_a_name_that_is_none_starts_nothing_and_a_taken_one_is_told(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": SMALL, "size": "100kB"})
    form, pushing = visit.form, Pushing(rooms.desk, rooms.site, rooms.form)

    def checked(user: str, name: str) -> tuple[str, bool]:
        update = pushing.check_name(user, name, visit.now("shown"), asks(user), None)
        return update[form.name_message], told(update, form.start)["interactive"]

    for name in ("", "a--b", "  ", "x/y/z", "a.git"):
        said, can_start = checked("alice", name)
        assert not can_start and (f"alice/{name}" if name.strip() else "Give the new repo a name") in said
    assert "bob/small exists already" in checked("bob", "small")[0]
    assert checked("alice", "free") == ("", True)


def test_who_has_a_job_already_is_led_to_it(rooms: Rooms) -> None:
    visit = Visitor(rooms, {"repo": SMALL, "size": "100kB", "to": "alice/one"})
    pushing = Pushing(rooms.desk, rooms.site, rooms.form)
    job = pushing.start(visit.values, asks("alice"), None)[visit.form.job]
    visit.see(name="another")
    refusal = pushing.start(visit.values, asks("alice"), None)[visit.form.start_message]
    assert "You have a job here already" in refusal and f'href="?job={job}">Open it</a>' in refusal
    rooms.cancel_all()


def test_models_are_suggested_by_what_is_typed(rooms: Rooms) -> None:
    arriving = Arriving(rooms.desk, rooms.site, rooms.form)

    def suggested(text: str, *found: str) -> Any:
        typed = gr.KeyUpData(None, {"key": text[-1:], "input_value": text})
        return arriving.suggest(found, typed, asks("alice"), None)[1]

    assert SMALL in suggested("bob/smal") and suggested("bob/smal", "a/b")[-1] == "a/b"
    assert not isinstance(suggested("b"), tuple) and not isinstance(suggested("bob/nothing-like-it"), tuple)


@pytest.mark.thorough
def test_the_devices_of_a_machine_are_shown_with_the_code_that_uses_them(rooms: Rooms, tmp_path: Path) -> None:
    from tests import models

    push(rooms.hub, models.save("llama", tmp_path / "tiny"), "bob/tiny", "hf_bob")
    planning = Planning(rooms.desk, rooms.site, rooms.form)
    budget = "cuda:0=40kB,cpu=1GB"
    for name, loaded in (("", "bob/tiny"), ("mine", "alice/mine")):
        html = planning.place("bob/tiny", budget, "alice", name, asks("alice"), None)
        assert "It fits." in html and f"from_pretrained(\n    &#39;{loaded}&#39;," in html
    assert "is not the budget of one device" in planning.place("bob/tiny", "much", "alice", "", asks("alice"), None)
