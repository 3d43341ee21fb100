"""Lay out the page: what stands where, and nothing of what it does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import gradio as gr
from markupsafe import Markup

from sharding.core.options import Order, TargetDtype
from sharding.loading.devices import PRESETS
from sharding.page.links import SIZES
from sharding.page.render import render

ASSETS = Path(__file__).parent.parent.parent / "assets"

OTHER_SIZE = "Other"
STAGES = "stages"
FEWEST_STAGES = 2

_ORDERS = {
    "natural": "Natural: layer 2 before layer 10",
    "stored": "As stored today",
    "transformers": "As transformers saves it",
}
_STRATEGIES = {
    "size": "By size alone",
    "blocks": "Keep blocks whole",
    STAGES: "Stages of a pipeline",
}
_PRESETS = {
    "colab-t4": "Colab, one T4",
    "kaggle-2xt4": "Kaggle, two T4",
    "24gb": "a card of 24 GB",
    "laptop-16gb": "a laptop with 16 GB",
}
PLAIN = "The plain weights"
PRIVATE, PUBLIC = "Private", "Public"


@dataclass(frozen=True, slots=True)
class Form:
    """The parts of the page that something happens to, from top to bottom."""

    account: gr.HTML
    notice: gr.HTML

    choose: gr.Column
    repo: gr.Dropdown
    revision: gr.Textbox
    show: gr.Button
    variants: gr.Radio
    repo_message: gr.HTML
    examples: gr.Dataset
    facts: gr.HTML

    plan: gr.Column
    size: gr.Radio
    other_size: gr.Textbox
    size_message: gr.HTML
    order: gr.Radio
    strategy: gr.Radio
    stages: gr.Number
    dtype: gr.Radio
    overflow: gr.Checkbox
    shards: gr.HTML
    forecast: gr.HTML
    machine: gr.Row
    budget: gr.Dropdown
    place: gr.Button
    devices: gr.HTML

    push: gr.Column
    namespace: gr.Dropdown
    name: gr.Textbox
    name_message: gr.HTML
    replace: gr.Checkbox
    visibility: gr.Radio
    permitted: gr.Checkbox
    measure: gr.Checkbox
    start: gr.Button
    start_message: gr.HTML

    run: gr.Column
    progress: gr.HTML
    cancel: gr.Button
    resume: gr.Button
    run_message: gr.HTML
    log: gr.HTML

    outcome: gr.Column
    result: gr.HTML
    check: gr.Button
    check_message: gr.HTML

    variant: gr.Textbox
    job: gr.Textbox
    wanted: gr.Textbox
    query: gr.Textbox
    proposed: gr.State
    replaced: gr.State


def lay_out(on_space: bool) -> Form:
    """Put every part in its place, inside the `gr.Blocks` that is open. The login button is for a Space only."""
    account = _masthead(on_space)
    notice = _panel("notice")
    with _step("choose", 1, "Choose a model") as choose:
        with gr.Row(elem_classes="fields"):
            repo = gr.Dropdown(
                [], value=None, label="Model", info="owner/name, or a link to it", allow_custom_value=True,
                elem_id="repo", scale=4,
            )  # fmt: skip
            revision = gr.Textbox(
                label="Revision", info="branch, tag or commit", placeholder="main", elem_id="revision", scale=1
            )
            show = gr.Button("Show the plan", size="md", elem_id="show", scale=0, min_width=170)
        repo_message = _panel("repo-message")
        variants = gr.Radio([(PLAIN, "")], value="", label="Variant of the weights", visible=False, elem_id="variants")
        examples = gr.Dataset(components=["textbox"], samples=[[""]], label="Try one of these", elem_id="examples")
        facts = _panel("facts")
    with _step("plan", 2, "See the plan", visible=False) as plan:
        with gr.Row(elem_classes="fields tops"):
            with gr.Column(scale=3):
                size = gr.Radio([*SIZES, OTHER_SIZE], value=SIZES[0], label="Largest shard", elem_id="size")
                other_size = gr.Textbox(
                    label="Another size", info="such as 300MB, 1.5GB or 1GiB", visible=False, elem_id="other-size"
                )
                size_message = _panel("size-message")
            with gr.Column(scale=2):
                choices = [(_ORDERS[order], order) for order in get_args(Order)]
                order = gr.Radio(choices, value="natural", label="Order of the tensors", elem_id="order")
        with gr.Row(elem_classes="fields tops"):
            with gr.Column(scale=3):
                choices = [(title, strategy) for strategy, title in _STRATEGIES.items()]
                strategy = gr.Radio(choices, value="size", label="Where to cut", elem_id="strategy")
                stages = gr.Number(
                    FEWEST_STAGES, label="Stages", precision=0, minimum=1, visible=False, elem_id="stages"
                )
            with gr.Column(scale=2):
                choices = [("Keep" if dtype == "keep" else dtype, dtype) for dtype in get_args(TargetDtype)]
                dtype = gr.Radio(choices, value="keep", label="Dtype of the copy", elem_id="dtype")
                overflow = gr.Checkbox(
                    label="Allow overflow",
                    info="Numbers too large for this dtype become infinite and are counted; else they end the job.",
                    visible=False,
                    elem_id="overflow",
                )
        _panel("choices", render("choices"))
        shards = _panel("shards")
        forecast = _panel("forecast")
        with gr.Row(elem_classes="fields") as machine:
            budget = gr.Dropdown(
                [(f"{_PRESETS[preset]} ({PRESETS[preset]})", preset) for preset in PRESETS],
                label="Where would it run?", info="a machine, or budgets such as cuda:0=16GB,cpu=12GB",
                allow_custom_value=True, elem_id="budget", scale=3,
            )  # fmt: skip
            place = gr.Button("Show the devices", size="md", elem_id="place", scale=0, min_width=170)
        devices = _panel("devices")
    with _step("push", 3, "Shard and push", visible=False) as push:
        with gr.Row(elem_classes="fields"):
            namespace = gr.Dropdown([], label="Namespace", elem_id="namespace", scale=1)
            name = gr.Textbox(label="Name of the new repo", elem_id="name", scale=3)
        name_message = _panel("name-message")
        replace = gr.Checkbox(visible=False, elem_id="replace")
        with gr.Row(elem_classes="fields"):
            visibility = gr.Radio([PUBLIC, PRIVATE], value=PUBLIC, label="Who may see it", elem_id="visibility")
            permitted = gr.Checkbox(
                label="The terms of the model allow a public copy", visible=False, elem_id="permitted"
            )
        measure = gr.Checkbox(
            label="Load the original and the copy as well, and show what that costs",
            info="takes minutes more, and both copies on the disk of this machine",
            elem_id="measure",
        )
        start = gr.Button("Shard and push", variant="primary", size="md", interactive=False, elem_id="start")
        start_message = _panel("start-message")
    with _step("run", 3, "Shard and push", visible=False) as run:
        progress = _panel("progress")
        with gr.Row(elem_classes="actions"):
            cancel = gr.Button("Cancel", variant="stop", visible=False, size="md", elem_id="cancel", scale=0)
            resume = gr.Button("Resume", variant="primary", visible=False, size="md", elem_id="resume", scale=0)
        run_message = _panel("run-message")
        log = _panel("log")
    with _step("outcome", 4, "Result", visible=False) as outcome:
        result = _panel("result")
        check = gr.Button("Read every byte of both now", visible=False, size="md", elem_id="check", scale=0)
        check_message = _panel("check-message")
    return Form(
        account, notice, choose, repo, revision, show, variants, repo_message, examples, facts, plan, size, other_size,
        size_message, order, strategy, stages, dtype, overflow, shards, forecast, machine, budget, place, devices, push,
        namespace, name, name_message, replace, visibility, permitted, measure, start, start_message, run, progress,
        cancel, resume, run_message, log, outcome, result, check,
        check_message,
        variant=gr.Textbox("", visible=False), job=gr.Textbox(visible=False), wanted=gr.Textbox(visible=False),
        query=gr.Textbox(visible=False), proposed=gr.State(("", "")), replaced=gr.State(("", "")),
    )  # fmt: skip


def _masthead(on_space: bool) -> gr.HTML:
    with gr.Row(elem_classes="masthead-row"):
        _panel("masthead", render("header", logo=Markup((ASSETS / "logo.svg").read_text())))
        with gr.Column(elem_classes="account", scale=0, min_width=280):
            account = _panel("account")
            if on_space:
                gr.LoginButton("Sign in with Hugging Face", logout_value="Sign out {}", size="md", elem_id="sign-in")
                gr.DuplicateButton("Duplicate this Space", variant="secondary", size="md", elem_id="duplicate")
    return account


@contextmanager
def _step(name: str, number: int, title: str, visible: bool = True) -> Iterator[gr.Column]:
    with gr.Column(visible=visible, elem_id=name, elem_classes="step") as column:
        _panel(f"{name}-heading", render("heading", number=number, title=title))
        yield column


def _panel(name: str, html: str = "") -> gr.HTML:
    return gr.HTML(html, elem_id=name, apply_default_css=False)
