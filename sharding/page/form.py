"""Lay out the parts of the page, without their behaviour, and convert between its fields and options."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import gradio as gr
from markupsafe import Markup

from sharding.core.option import Option
from sharding.core.options import OPTIONS, SINGLE_FILE, Options
from sharding.core.origin import Role
from sharding.page.goals import GOALS, OLLAMA, SAME, goal_for, role_asked
from sharding.page.links import Wish, query_of
from sharding.page.render import render
from sharding.planning.devices import PRESETS
from sharding.planning.sizes import SizeStop

ASSETS = Path(__file__).parent.parent.parent / "assets"

PIPELINE = "pp"  # The strategy that needs a number of machines.
PLAIN = "The plain weights"
PRIVATE, PUBLIC = "Private", "Public"
START = "Start"
ONE_FILE = "one file"  # The word for SINGLE_FILE on the page.
HIDDEN: Literal["hidden"] = "hidden"
"""Hides fields that exist all the time. Gradio sets the value of one with `visible=False` when it is first shown, so a
quick visitor would lose their input. (Gradio 6.31 can hide neither a column nor a single field like this.)"""

Values = Mapping[Any, Any]  # The values of fields of the form, by field, as Gradio passes them to an event.
Update = dict[Any, Any]  # What an event changes, by part of the form.
_FEWEST_MACHINES = 2
_PRESETS = {
    "colab-t4": "Colab, one T4",
    "kaggle-2xt4": "Kaggle, two T4",
    "24gb": "a card of 24 GB",
    "laptop-16gb": "a laptop with 16 GB",
}
_INPUTS: Mapping[Role, Option] = {option.role: option for option in OPTIONS.values() if option.role and option.title}
_BY_GOAL = {goal.role for goal in GOALS.values() if goal.role}  # The roles of inputs that goals ask for.
_DRAWINGS = {name: Markup((ASSETS / "goals" / f"{name}.svg").read_text()) for name in GOALS}
_REPO = "owner/name, or a link to it; @name for a branch, tag or commit"
_HEADER = render("header", logo=Markup((ASSETS / "logo.svg").read_text()))
_STYLE = Markup((ASSETS / "style.css").read_text())
_CHOSEN = "element.addEventListener('chosen', (event) => trigger('select', event.detail));"
"""Passes on what the script of the page reports: a choice on a map, or that the visitor goes to sign in."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The plan that a visitor sees: what it depends on (() if of two models), the slider's stops, its id."""

    choices: tuple[Any, ...] = ()
    stops: tuple[SizeStop, ...] = ()
    plan_id: str = ""


@dataclass(frozen=True, slots=True)
class Aim:
    """What was filled in for the visitor: the choices of a `goal`, None if none was looked at yet, and a `size`."""

    goal: str | None = None
    size: str = ""


class Form:
    """The parts of the page that events read or change, from top to bottom."""

    def __init__(self, on_space: bool) -> None:
        """Put every part in its place, inside the open `gr.Blocks`. Only a Space has the login button."""
        self.account = _masthead(on_space)
        with _step("choose") as self.choose:
            self._lay_out_choice()
        self.jobs = _panel("jobs", elem_classes="step")
        with _step("same", visible=False) as self.same:
            self._lay_out_comparison()
        with _step("plan", visible=False) as self.plan:
            _panel("plan-heading", '<h2 class="sr">The plan</h2>')
            self.sizes = _panel("sizes")
            self.size_message = _panel("size-message")
            self.dequantize = gr.Checkbox(visible=False, elem_id="dequantize")
            self.picture = _panel("picture", js_on_load=_CHOSEN)
            self.tensors = _panel("tensors")
            self.findings = _panel("findings")
        with gr.Column(visible=False, elem_id="push") as self.push:
            with gr.Row(elem_classes="bar"):
                with gr.Column(scale=1, elem_classes="words"):
                    self.summary, self.target = _panel("summary"), _panel("target")
                self.start = _button(START, "start", "primary", interactive=False)
            self.start_message = _panel("start-message")
            self.replace = gr.Checkbox(visible=False, elem_id="replace")
            self.permitted = gr.Checkbox(visible=False, elem_id="permitted")
            # Open, as Advanced is.
            with gr.Accordion("Change this, or measure loading too", elem_id="where") as self.where:
                self._lay_out_target()
        self.shards = _panel("shards", elem_classes="step")
        # Open, so that Gradio builds its fields. `arrive` closes it.
        with gr.Accordion("Advanced", visible=HIDDEN, elem_id="advanced", elem_classes="step") as self.advanced:
            self._lay_out_options()
        with _step("outcome", visible=False) as self.outcome:
            self.result = _panel("result")
            self.check = _button("Read every byte of both now", "check", "primary", visible=False)
            self.check_message = _panel("check-message")
            self.result_map = _panel("result-map", js_on_load=_CHOSEN)
            self.result_tensors = _panel("result-tensors")
            self.load = _button("Measure loading", "load", visible=False)
            self.result_details = _panel("result-details")
            self.past = _panel("past")  # the job
        with _step("run", visible=False) as self.run:
            self.run_heading = _panel("run-heading")
            self.progress = _panel("progress")
            self.job_map = _panel("job-map")
            with gr.Row(elem_classes="actions"):
                self.cancel = _button("Cancel", "cancel", "stop", visible=False)
                self.resume = _button("Resume", "resume", "primary", visible=False)
            self.run_message = _panel("run-message")
            self.log = _panel("log")
        # `chosen` is the goal that was clicked last. Its change asks for a plan, as that of a field does.
        hidden = (gr.Textbox("", visible=False) for _ in range(6))
        self.goal, self.chosen, self.variant, self.job, self.wanted, self.query = hidden
        self.shown, self.aim = gr.State(Shown()), gr.State(Aim())
        self.replaced = gr.State(("", ""))
        # The name that was proposed, and the one that was free. A field, because it must change together with the name.
        self.proposed = gr.Textbox("", visible=False)
        self.own = gr.State("")  # The visibility that the visitor chose, while the field shows that of a private repo.
        self.found, self.compared = gr.State(()), gr.State(())

    def _lay_out_choice(self) -> None:
        self.goals = _panel("goals", goals_panel(), js_on_load=_CHOSEN)
        with gr.Row(elem_classes="fields"):
            self.repo = gr.Dropdown(
                [], value=None, label="Model", info=_REPO, allow_custom_value=True, elem_id="repo", scale=4,
                min_width=280,
            )  # fmt: skip
            self.inputs = {
                role: gr.Textbox(
                    "", label=option.title, info=option.info, max_lines=1, elem_id=option.name, scale=4, min_width=280,
                    placeholder="owner/name",
                )
                for role, option in _INPUTS.items()
            }  # fmt: skip
            self.size = gr.Textbox(
                "", label="Maximum file size", info="such as 300MB, or: one file", placeholder="chosen for you",
                elem_id="size", scale=1, min_width=210,
            )  # fmt: skip
            self.machines = gr.Number(
                _FEWEST_MACHINES, label="Machines", precision=0, minimum=1, elem_id="machines", scale=1, min_width=110
            )
            self.show = _button("Show the plan", "show", min_width=170)
        self.repo_message = _panel("repo-message")
        self.examples = gr.Dataset(
            components=["textbox"], samples=[[""]], label="Try one of these", elem_id="examples", visible=False
        )
        self.facts = _panel("facts")
        self.variants = gr.Radio(
            [(PLAIN, "")], value="", visible=False, elem_id="variants", label="Which weights",
            info="The repo holds several sets of weights; a copy has one of them.",
        )  # fmt: skip

    def _lay_out_comparison(self) -> None:
        _panel("same-heading", goals_panel(SAME))
        with gr.Row(elem_classes="fields"):
            field: dict[str, Any] = {"info": _REPO, "value": None, "allow_custom_value": True, "scale": 3}
            self.original = gr.Dropdown([], label="Original", elem_id="original", **field)
            self.copied = gr.Dropdown([], label="Copy", elem_id="copied", **field)
            self.compare = _button("Compare", "compare", "primary", min_width=180)
        self.likeness = _panel("likeness")
        self.read = _button("Read every byte of both", "read", "primary", visible=False)
        self.read_message = _panel("read-message")

    def _lay_out_target(self) -> None:
        with gr.Row(elem_classes="fields"):
            self.namespace = gr.Dropdown([], label="Owner of the copy", elem_id="namespace", scale=1, min_width=120)
            self.name = gr.Textbox("", label="Name of the new repo", elem_id="name", scale=2, min_width=160)
            self.visibility = gr.Radio(
                [PUBLIC, PRIVATE], value=PUBLIC, label="Visibility", elem_id="visibility", scale=1, min_width=200,
                info="A private copy can be made public later, on the Hub.",
            )  # fmt: skip
        self.name_message = _panel("name-message")
        self.measure = gr.Checkbox(
            label="Measure loading too",
            info="Load the original and the copy three times each, for a comparison of time and memory in the model "
            "card. It takes 15 seconds or more, and disk space for both on this machine.",
            elem_id="measure",
        )

    def _lay_out_options(self) -> None:
        with gr.Row(elem_classes="fields tops"):
            with gr.Column():
                self.strategy = _control("strategy")
            with gr.Column():
                self.order = _control("order")
        self.dtype = _control("dtype")
        self.overflow = _control("allow_overflow", visible=False, elem_id="overflow")
        # No plan depends on it, so nobody waits for one.
        self.engine = _control("engine", visible=False, elem_classes="")
        self.proof = _control("proof", elem_classes="")
        with gr.Column(elem_id="machine") as self.machine:
            with gr.Row(elem_classes="fields"):
                self.budget = gr.Dropdown(
                    [(f"{_PRESETS[preset]} ({PRESETS[preset]})", preset) for preset in PRESETS],
                    label="Where would it run?", elem_id="budget", scale=3, allow_custom_value=True,
                    info="See which device would hold which part. Choose a machine, or write the memory of its "
                    "devices, such as cuda:0=16GB,cpu=12GB.",
                )  # fmt: skip
                self.place = _button("Show the devices", "place", min_width=190)
            self.devices = _panel("devices")

    @property
    def by_name(self) -> dict[str, Any]:
        """All parts, by their names here."""
        plain = {name: part for name, part in vars(self).items() if name != "inputs"}
        return {**plain, **{_INPUTS[role].name: field for role, field in self.inputs.items()}}

    @property
    def by_option(self) -> dict[str, Any]:
        """The fields that hold an option as it is, by the name of the option."""
        own = {"order": self.order, "dtype": self.dtype, "variant": self.variant, "allow_overflow": self.overflow}
        return {**own, "dequantize": self.dequantize}

    @property
    def of_a_plan(self) -> list[Any]:
        """All fields that a plan depends on."""
        named = [self.repo, self.size, self.strategy, self.machines]
        return [*named, *self.inputs.values(), *self.by_option.values()]

    def source_in(self, values: Values) -> str:
        """Return the source in the form, or "" if there is none."""
        return (values[self.repo] or "").strip()

    def inputs_in(self, values: Values) -> dict[Role, str]:
        """Return the inputs that the form names beside the source. What a goal asks for counts only for it."""
        asked = role_asked(values.get(self.goal))
        seen = {role: field for role, field in self.inputs.items() if role == asked or role not in _BY_GOAL}
        return {role: text for role, field in seen.items() if (text := (values[field] or "").strip())}

    def named_in(self, values: Values) -> dict[str, Any]:
        """Return the options that name these inputs, each with its value."""
        return {_INPUTS[role].name: text for role, text in self.inputs_in(values).items()}

    def size_in(self, values: Values) -> str:
        """Return the size in the form, or "" if there is none."""
        size = (values[self.size] or "").strip()
        return SINGLE_FILE if size.lower() in (ONE_FILE, "1 file", SINGLE_FILE) else size

    def options_in(self, values: Values) -> Options:
        """Return the chosen options. Raises UsageError if one is invalid."""
        kind = values[self.strategy]
        return Options(
            max_shard_size=self.size_in(values),
            strategy=f"{kind}:{int(values[self.machines] or 0)}" if kind == PIPELINE else kind,
            format="gguf" if values.get(self.goal) == OLLAMA else None,
            **self.named_in(values),
            **{name: values[field] for name, field in self.by_option.items()},
        )

    def choices_in(self, values: Values) -> dict[str, Any]:
        """Return the value of each field that a plan depends on, by the id of the field. The script compares them."""
        unseen = {self.variant} if values[self.strategy] == PIPELINE else {self.variant, self.machines}
        fields = [field for field in self.of_a_plan if field not in unseen]
        return {field.elem_id: values[field] if values[field] is not None else "" for field in fields}

    def aimed(self, options: Options) -> Update:
        """Return the values of the fields that a goal sets."""
        kind, _, count = options.strategy.partition(":")
        return {
            self.size: size_label(str(options.max_shard_size)),
            self.strategy: kind,
            self.machines: int(count or _FEWEST_MACHINES),
            self.dtype: options.dtype,
            self.dequantize: options.dequantize,
        }

    def filled_in(self, options: Options) -> Update:
        """Return the fields filled in for `options`, except the size."""
        goal, aimed = goal_for(options), self.aimed(options)
        del aimed[self.size]
        return {
            **aimed,
            **{field: getattr(options, name) for name, field in self.by_option.items()},
            **{field: options.inputs.get(role, "") for role, field in self.inputs.items()},
            **({self.goal: goal} if goal else {}),
        }


def goals_panel(
    goal: str = "", takes_base: bool | None = None, chips: Iterable[str] = (), source: str = "", **words: str
) -> str:
    """Return all goals as cards, or the chosen `goal` with its fields, or `chips` for `source`. HTML as `remark`
    replaces its words. `takes_base` says whether the source needs a base, if that is known."""
    links = [(name, GOALS[name], query_of(Wish(source, goal=name, sized=False))) for name in chips]
    cards, usual = ([], ("size",)) if goal or source else (GOALS.items(), ())
    fields = {*GOALS[goal].fields} if goal else {*usual}
    if takes_base is not None:
        fields = fields | {"base"} if takes_base else fields - {"base"}
    values = {"cards": cards, "fields": [*fields], "chips": links, "chosen": goal, "goal": GOALS.get(goal)}
    values |= {"remark": Markup(words.get("remark", "")), "answer": words.get("answer", "")}
    return render("goals", source=source, drawings=_DRAWINGS, same=SAME, **values)


def first_view(goal: str, is_home: bool) -> str:
    """Return the HTML that stands until Gradio has built the page: `is_home` for all goals, or the form of one."""
    goals = Markup(goals_panel(goal)) if is_home else ""
    label = GOALS[goal].source if goal else "Model"
    values = {"goals": goals, "goal": goal, "label": label, "skeleton": Markup(render("skeleton", repo_id=""))}
    return render("first", masthead=Markup(_HEADER), style=_STYLE, **values)


def size_label(size: str) -> str:
    """Return a size as the page shows it."""
    return ONE_FILE if size == SINGLE_FILE else size


def _control(name: str, **more: Any) -> Any:
    option = OPTIONS[name]
    words = {"label": option.title, "info": option.info, "elem_id": name, "elem_classes": "choice", **more}
    if option.is_switch:
        return gr.Checkbox(value=option.default, **words)
    choices = option.labels if option.name == "strategy" else dict.fromkeys(option.choices)
    titles = [(option.labels.get(choice, choice), choice) for choice in choices]
    return gr.Radio(titles, value=option.default, **words)


def _masthead(on_space: bool) -> gr.HTML:
    with gr.Row(elem_classes="masthead-row"):
        _panel("masthead", _HEADER)
        with gr.Row(elem_classes="account", scale=0):
            account = _panel("account", js_on_load=_CHOSEN)
            if on_space:
                gr.LoginButton(
                    "Sign in with Hugging Face", logout_value="Sign out", icon=None, size="sm", elem_id="sign-in"
                )
                gr.DuplicateButton("Duplicate this Space", variant="secondary", size="sm", elem_id="duplicate")
    return account


def _step(name: str, visible: bool = True) -> gr.Column:
    return gr.Column(visible=visible, elem_id=name, elem_classes="step")


def _panel(name: str, html: str = "", **more: Any) -> gr.HTML:
    return gr.HTML(html, elem_id=name, apply_default_css=False, **more)


def _button(
    words: str, name: str, variant: Literal["primary", "secondary", "stop"] = "secondary", **more: Any
) -> gr.Button:
    return gr.Button(words, variant=variant, size="md", elem_id=name, scale=0, **more)
