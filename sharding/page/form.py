"""Lay out the parts of the page, without their behaviour."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from markupsafe import Markup

from sharding.core.options import OPTIONS
from sharding.page.goals import GOALS, SAME
from sharding.page.render import render
from sharding.planning.devices import PRESETS

ASSETS = Path(__file__).parent.parent.parent / "assets"

PIPELINE = "pp"
"""The strategy that needs a number of machines."""
FEWEST_MACHINES = 2

_PRESETS = {
    "colab-t4": "Colab, one T4",
    "kaggle-2xt4": "Kaggle, two T4",
    "24gb": "a card of 24 GB",
    "laptop-16gb": "a laptop with 16 GB",
}
_PLACED = ("strategy", "order", "dtype", "allow_overflow")
_MORE = tuple(name for name, option in OPTIONS.items() if option.declared.title and name not in _PLACED)
"""Options that have a title but no place of their own. They stand below the others."""
PLAIN = "The plain weights"
PRIVATE, PUBLIC = "Private", "Public"

_CHOSEN = "element.addEventListener('chosen', (event) => trigger('select', event.detail));"
"""Passes on a choice on the slider or on a map, which the script of the page reports."""

HIDDEN: Literal["hidden"] = "hidden"
"""Hides fields that exist all the time.

Gradio builds a field with `visible=False` when it is first shown, and then sets its value again. A quick visitor, or
one with a slow machine, would lose their input. (Gradio 6.31 can hide neither a column nor a single field like this.)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The parts of the page that events read or change, from top to bottom."""

    account: gr.HTML

    choose: gr.Column
    repo: gr.Dropdown
    size: gr.Textbox
    show: gr.Button
    goal: gr.Radio
    goal_hint: gr.HTML
    adapter: gr.Textbox
    repo_message: gr.HTML
    base: gr.Textbox
    examples: gr.Dataset
    facts: gr.HTML

    hero: gr.HTML
    jobs: gr.HTML

    same: gr.Column
    original: gr.Textbox
    copied: gr.Textbox
    compare: gr.Button
    likeness: gr.HTML
    read: gr.Button
    read_message: gr.HTML

    plan: gr.Column
    sizes: gr.HTML
    size_message: gr.HTML
    dequantize: gr.Checkbox
    picture: gr.HTML
    tensors: gr.HTML
    findings: gr.HTML

    advanced: gr.Accordion
    variants: gr.Radio
    strategy: gr.Radio
    machines: gr.Number
    order: gr.Radio
    dtype: gr.Radio
    overflow: gr.Checkbox
    more: Mapping[str, Any]
    namespace: gr.Dropdown
    name: gr.Textbox
    name_message: gr.HTML
    visibility: gr.Radio
    permitted: gr.Checkbox
    measure: gr.Checkbox
    machine: gr.Column
    budget: gr.Dropdown
    place: gr.Button
    devices: gr.HTML

    push: gr.Column
    summary: gr.HTML
    target: gr.HTML
    replace: gr.Checkbox
    start: gr.Button
    start_message: gr.HTML
    shards: gr.HTML

    outcome: gr.Column
    result: gr.HTML
    check: gr.Button
    check_message: gr.HTML
    result_map: gr.HTML
    result_tensors: gr.HTML
    result_details: gr.HTML

    run: gr.Column
    run_heading: gr.HTML
    progress: gr.HTML
    job_map: gr.HTML
    cancel: gr.Button
    resume: gr.Button
    run_message: gr.HTML
    log: gr.HTML

    variant: gr.Textbox
    job: gr.Textbox
    wanted: gr.Textbox
    query: gr.Textbox
    proposed: gr.State
    suggested: gr.State
    plan_id: gr.State
    aimed: gr.State
    stops: gr.State
    seen: gr.State
    found: gr.State
    replaced: gr.State
    compared: gr.State


def lay_out(on_space: bool) -> Form:
    """Put every part in its place, inside the open `gr.Blocks`. Only a Space has the login button."""
    parts: dict[str, Any] = {"account": _masthead(on_space)}
    with _step("choose") as parts["choose"]:
        _choose(parts)
    parts["hero"] = _panel("hero")  # as long as there is no plan
    parts["jobs"] = _panel("jobs", elem_classes="step")
    with _step("same", visible=False) as parts["same"]:
        _same(parts)
    with gr.Column(visible=False, elem_id="plan", elem_classes="step") as parts["plan"]:
        _plan(parts)
    with gr.Column(visible=False, elem_id="push") as parts["push"]:
        with gr.Row(elem_classes="bar"):
            with gr.Column(scale=1, elem_classes="words"):
                parts["summary"], parts["target"] = _panel("summary"), _panel("target")
            parts["start"] = gr.Button(
                "Shard and push", variant="primary", size="md", interactive=False, elem_id="start", scale=0
            )
        parts["start_message"] = _panel("start-message")
        parts["replace"] = gr.Checkbox(visible=False, elem_id="replace")
    parts["shards"] = _panel("shards", elem_classes="step")
    # Open, so that Gradio builds its fields. `arrive` closes it.
    with gr.Accordion("Advanced", visible=HIDDEN, elem_id="advanced", elem_classes="step") as parts["advanced"]:
        _advanced(parts)
    with _step("outcome", visible=False) as parts["outcome"]:
        parts["result"] = _panel("result")
        parts["check"] = gr.Button(
            "Read every byte of both now", variant="primary", visible=False, size="md", elem_id="check", scale=0
        )
        parts["check_message"] = _panel("check-message")
        parts["result_map"] = _panel("result-map", js_on_load=_CHOSEN)
        parts["result_tensors"] = _panel("result-tensors")
        parts["result_details"] = _panel("result-details")
    with _step("run", visible=False) as parts["run"]:
        _run(parts)
    for name in ("variant", "job", "wanted", "query"):
        parts[name] = gr.Textbox("", visible=False)
    parts |= {
        "proposed": gr.State(("", "")),
        "suggested": gr.State(""),
        "plan_id": gr.State(""),
        "aimed": gr.State(None),
        "stops": gr.State(()),
        "seen": gr.State(()),
        "found": gr.State(()),
        "replaced": gr.State(("", "")),
        "compared": gr.State(()),
    }
    return Form(**parts)


def _choose(parts: dict[str, Any]) -> None:
    with gr.Row(elem_classes="fields"):
        parts["repo"] = gr.Dropdown(
            [], value=None, label="Model", info="owner/name, or a link to it; @name for a branch, tag or commit",
            allow_custom_value=True, elem_id="repo", scale=4, min_width=280,
        )  # fmt: skip
        parts["size"] = gr.Textbox(
            "", label="Maximum file size", info="such as 300MB, or: one file", placeholder="chosen for you",
            elem_id="size", scale=1, min_width=210,
        )  # fmt: skip
        parts["show"] = gr.Button("Show the plan", size="md", elem_id="show", scale=0, min_width=170)
    with gr.Row(elem_classes="goals"):
        parts["goal"] = gr.Radio(
            [(goal.title, name) for name, goal in GOALS.items()], value=None, label="What is it for?", elem_id="goal",
            elem_classes="chips",
        )  # fmt: skip
        _panel("compare", render("compare_link", link=f"?goal={SAME}"))
    parts["goal_hint"] = _panel("goal-hint")
    parts["adapter"] = gr.Textbox(
        "", label="Adapter", visible=False, max_lines=1, elem_id="adapter", placeholder="owner/my-lora",
        info="The LoRA to merge: owner/name, owner/name@revision/folder, or a link to it.",
    )  # fmt: skip
    parts["repo_message"] = _panel("repo-message")
    parts["base"] = gr.Textbox(
        "", label="The model that was trained", visible=False, elem_id="base",
        info="The checkpoint has no configuration, tokenizer or licence. They are taken from the model you name here.",
    )  # fmt: skip
    parts["examples"] = gr.Dataset(
        components=["textbox"], samples=[[""]], label="Try one of these", elem_id="examples", visible=False
    )
    parts["facts"] = _panel("facts")


def _same(parts: dict[str, Any]) -> None:
    _panel("same-heading", render("heading", title="Is this copy the same?"))
    with gr.Row(elem_classes="fields"):
        info = "owner/name, or a link to it; @name for a branch, tag or commit"
        parts["original"] = gr.Textbox("", label="Original", info=info, max_lines=1, elem_id="original", scale=3)
        parts["copied"] = gr.Textbox("", label="Copy", info=info, max_lines=1, elem_id="copied", scale=3)
        parts["compare"] = gr.Button("Compare", variant="primary", size="md", elem_id="compare", scale=0, min_width=150)
    parts["likeness"] = _panel("likeness")
    parts["read"] = gr.Button(
        "Read every byte of both", variant="primary", visible=False, size="md", elem_id="read", scale=0
    )
    parts["read_message"] = _panel("read-message")


def _plan(parts: dict[str, Any]) -> None:
    _panel("plan-heading", '<h2 class="sr">The plan</h2>')
    parts["sizes"] = _panel("sizes")
    parts["size_message"] = _panel("size-message")
    parts["dequantize"] = gr.Checkbox(visible=False, elem_id="dequantize")
    parts["picture"] = _panel("picture", js_on_load=_CHOSEN)
    parts["tensors"] = _panel("tensors")
    parts["findings"] = _panel("findings")


def _advanced(parts: dict[str, Any]) -> None:
    parts["variants"] = gr.Radio(
        [(PLAIN, "")], value="", visible=False, elem_id="variants", label="Which weights",
        info="The repo holds several sets of weights; a copy has one of them.",
    )  # fmt: skip
    with gr.Row(elem_classes="fields tops"):
        with gr.Column():
            parts["strategy"] = _control("strategy")
            parts["machines"] = gr.Number(
                FEWEST_MACHINES, label="Machines", precision=0, minimum=1, visible=False, elem_id="machines"
            )
        with gr.Column():
            parts["order"] = _control("order")
    with gr.Row(elem_classes="fields tops"):
        with gr.Column():
            parts["dtype"] = _control("dtype")
            parts["overflow"] = _control("allow_overflow", visible=False, elem_id="overflow")
            parts["more"] = {name: _control(name) for name in _MORE}
        with gr.Column():
            with gr.Row(elem_classes="fields"):
                parts["namespace"] = gr.Dropdown([], label="Owner of the copy", elem_id="namespace", scale=1)
                parts["name"] = gr.Textbox("", label="Name of the new repo", elem_id="name", scale=2)
            parts["name_message"] = _panel("name-message")
            parts["visibility"] = gr.Radio(
                [PUBLIC, PRIVATE], value=PUBLIC, label="Visibility", elem_id="visibility",
                info="A private copy can be made public later, on its page on the Hub.",
            )  # fmt: skip
            parts["permitted"] = gr.Checkbox(visible=False, elem_id="permitted")
    parts["measure"] = gr.Checkbox(
        label="Load the original and the copy as well, and show what that costs",
        info="For a fair comparison in the model card. It takes minutes more, and disk space for both on this machine.",
        elem_id="measure",
    )
    with gr.Column(elem_id="machine") as parts["machine"]:
        with gr.Row(elem_classes="fields"):
            parts["budget"] = gr.Dropdown(
                [(f"{_PRESETS[preset]} ({PRESETS[preset]})", preset) for preset in PRESETS],
                label="Where would it run?", elem_id="budget", scale=3, allow_custom_value=True,
                info="See which device would hold which part. Choose a machine, or write the memory of its devices, "
                "such as cuda:0=16GB,cpu=12GB.",
            )  # fmt: skip
            parts["place"] = gr.Button("Show the devices", size="md", elem_id="place", scale=0, min_width=190)
        parts["devices"] = _panel("devices")


def _control(name: str, **more: Any) -> Any:
    """Return the field for an option, with the title and words that the option declares."""
    option = OPTIONS[name]
    told = {"label": option.declared.title, "info": option.declared.info, "elem_id": name, **more}
    told["elem_classes"] = "choice"
    if option.is_switch:
        return gr.Checkbox(value=option.default, **told)
    choices = option.declared.words if option.name == "strategy" else dict.fromkeys(option.choices)
    titles = [(option.declared.words.get(choice, choice), choice) for choice in choices]
    return gr.Radio(titles, value=option.default, **told)


def _run(parts: dict[str, Any]) -> None:
    parts["run_heading"] = _panel("run-heading")
    parts["progress"] = _panel("progress")
    parts["job_map"] = _panel("job-map")
    with gr.Row(elem_classes="actions"):
        parts["cancel"] = gr.Button("Cancel", variant="stop", visible=False, size="md", elem_id="cancel", scale=0)
        parts["resume"] = gr.Button("Resume", variant="primary", visible=False, size="md", elem_id="resume", scale=0)
    parts["run_message"] = _panel("run-message")
    parts["log"] = _panel("log")


def _masthead(on_space: bool) -> gr.HTML:
    with gr.Row(elem_classes="masthead-row"):
        _panel("masthead", render("header", logo=Markup((ASSETS / "logo.svg").read_text())))
        with gr.Row(elem_classes="account", scale=0):
            account = _panel("account")
            if on_space:
                gr.LoginButton(
                    "Sign in with Hugging Face", logout_value="Sign out", icon=None, size="sm", elem_id="sign-in"
                )
                gr.DuplicateButton("Duplicate this Space", variant="secondary", size="sm", elem_id="duplicate")
    return account


@contextmanager
def _step(name: str, visible: bool = True) -> Iterator[gr.Column]:
    with gr.Column(visible=visible, elem_id=name, elem_classes="step") as column:
        yield column


def _panel(name: str, html: str = "", **more: Any) -> gr.HTML:
    return gr.HTML(html, elem_id=name, apply_default_css=False, **more)
