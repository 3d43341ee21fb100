"""Answer a visitor who looks around: suggest models, plan, draw. Nothing here needs a login."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import gradio as gr

from sharding.core.errors import ShardingError, VariantMissing
from sharding.core.values import Checkpoint
from sharding.desk import Desk
from sharding.page.choices import Given, filled_in, options_in, size_in, source_in
from sharding.page.form import OTHER_SIZE, PLAIN, PRIVATE, PUBLIC, STAGES, Form
from sharding.page.links import Wish, query_of, read_wish, source_of
from sharding.page.panels import devices_panel, facts_panel, forecast_panel, message, plan_panel, problem
from sharding.page.render import render
from sharding.page.site import Site, person
from sharding.planning.cast import may_overflow

Update = dict[Any, Any]
"""New values, or settings, of parts of the form."""

_MOST_VARIANTS = 24
_SIGN_IN = "Sign in to see your private models and to push. Plans need no login."
_NO_LOGIN = "Nobody is signed in on this machine. Run `hf auth login` to push, then reload the page."


class Planning:
    """What happens in the steps 1 and 2."""

    def __init__(self, desk: Desk, site: Site, form: Form) -> None:
        """Plan at `desk`, show in `form`."""
        self._desk = desk
        self._site = site
        self._form = form

    def arrive(self, request: gr.Request, login: gr.OAuthToken | None) -> Update:
        """Fill the form in as the link says, and greet who is signed in."""
        wish, form = read_wish(dict(request.query_params)), self._form
        update: Update = {
            form.account: self._greet(request, login),
            form.examples: gr.Dataset(samples=[[name] for name in self._examples()]),
        }
        if wish.repo:  # otherwise somebody may be typing already
            update |= {
                form.repo: gr.Dropdown(choices=[wish.repo], value=wish.repo),
                form.revision: wish.revision,
                form.variants: _variants([wish.options.variant], value=wish.options.variant),
                **filled_in(form, wish.options),
            }
        if wish.job or wish.result:
            update |= {
                form.choose: gr.Column(visible=False),
                form.run: gr.Column(visible=bool(wish.job)),
                form.outcome: gr.Column(visible=bool(wish.result)),
                form.job: wish.job,
                form.wanted: wish.result,
            }
        return update

    def suggest(self, typed: gr.KeyUpData, request: gr.Request, login: gr.OAuthToken | None) -> Any:
        """Offer repos whose names are like what was typed so far."""
        text = (typed.input_value or "").strip()
        if len(text) < 2:
            return gr.skip()
        try:
            return gr.Dropdown(choices=self._desk.lookup.search(text, self._site.token(request, login)))
        except ShardingError:
            return gr.skip()  # suggestions are a courtesy: the name can still be typed

    def begin(self, repo: str, revision: str) -> str:
        """Say that the headers are being read, which takes a second or two."""
        source = source_of(repo, revision)
        return message(f"Reading the headers of {source} …") if source else ""

    def see(self, given: Given, request: gr.Request, login: gr.OAuthToken | None) -> Update:
        """Say what the model is, and draw the plan."""
        form, token = self._form, self._site.token(request, login)
        source, variant = source_in(form, given), given[form.variant]
        hidden = {
            form.facts: "",
            form.variants: gr.Radio(visible=False),
            form.plan: gr.Column(visible=False),
            form.push: gr.Column(visible=False),
        }
        if not source:
            return {**hidden, form.repo_message: ""}
        try:
            checkpoint, taken, remark = self._read(source, variant, token)
            card = self._desk.lookup.card(source, token)
        except ShardingError as error:
            return {**hidden, form.repo_message: problem(error)}
        # Where it is the one asked for, nothing is set: the visitor may have gone on meanwhile.
        another: dict[str, Any] = {"value": taken} if taken != variant else {}
        hides = card.gated or card.private
        loads = checkpoint.is_plain_model
        return {
            form.repo_message: remark,
            form.variants: _variants({taken, *checkpoint.other_variants}, **another),
            form.variant: gr.Textbox(**another),
            form.facts: facts_panel(checkpoint, card),
            form.machine: gr.Row(visible=loads),
            form.devices: "",
            form.plan: gr.Column(visible=True),
            form.push: gr.Column(visible=True),
            form.visibility: PRIVATE if hides else PUBLIC,
            form.permitted: gr.Checkbox(value=False, visible=hides),
            form.measure: gr.Checkbox(visible=True) if loads else gr.Checkbox(value=False, visible=False),
            **self.draw({**given, form.variant: taken}, request, login),
        }

    def draw(self, given: Given, request: gr.Request, login: gr.OAuthToken | None) -> Update:
        """Draw the plan for what is chosen."""
        form, source = self._form, source_in(self._form, given)
        shown = {
            form.other_size: gr.Textbox(visible=given[form.size] == OTHER_SIZE),
            form.stages: gr.Number(visible=given[form.strategy] == STAGES),
        }
        if not source or not size_in(form, given):
            return {form.size_message: "", **shown}
        try:
            options = options_in(form, given)
            checkpoint, plan = self._desk.plan(source, options, self._site.token(request, login))
        except ShardingError as error:
            return {form.size_message: problem(error), **shown}
        may = may_overflow(checkpoint.tensors, (tensor for shard in plan.shards for tensor in shard.tensors))
        return {
            form.size_message: "",
            **shown,
            form.overflow: gr.Checkbox(visible=True) if may else gr.Checkbox(value=False, visible=False),
            form.shards: plan_panel(checkpoint, plan),
            form.forecast: forecast_panel(self._desk.forecast(plan), (*checkpoint.findings, *plan.findings)),
            form.query: query_of(Wish(source, options=replace(options, allow_overflow=options.allow_overflow and may))),
        }

    def wait(self) -> str:
        """Say that the model is being built, without its weights, which takes some seconds."""
        return message("Building the model without its weights …")

    def place(
        self, repo: str, revision: str, budget: str | None, request: gr.Request, login: gr.OAuthToken | None
    ) -> str:
        """Show which part of the model goes on which device."""
        source = source_of(repo, revision)
        if not source or not budget:
            return message("Choose a machine, or write how much memory each device has for weights.")
        try:
            return devices_panel(self._desk.devices(source, budget, self._site.token(request, login)))
        except ShardingError as error:
            return problem(error)

    def _read(self, source: str, variant: str, token: str | None) -> tuple[Checkpoint, str, str]:
        """Return what is in `source`, the variant taken, and a remark where it is not the one that was asked for."""
        try:
            return self._desk.inspect(source, variant, token), variant, ""
        except VariantMissing as error:
            taken = error.there[0]  # the plain weights, where there are some
            remark = message(error.message, f"You see {taken or 'its plain weights'} instead.", "warning")
            return self._desk.inspect(source, taken, token), taken, remark

    def _examples(self) -> tuple[str, ...]:
        try:
            return self._site.examples(self._desk)
        except ShardingError:
            return ()

    def _greet(self, request: gr.Request, login: gr.OAuthToken | None) -> str:
        try:
            who = person(self._desk, self._site.token(request, login))
        except ShardingError as error:
            return problem(error)
        if who:
            return render("account", name=who.name, page=f"{self._site.endpoint}/{who.name}")
        return message(_SIGN_IN if self._site.space else _NO_LOGIN)


def _variants(there: Collection[str], **value: Any) -> gr.Radio:
    """Return the choice among the first of the variants `there`, which shows where it is one."""
    taken = {value["value"]} if "value" in value else set()
    names = sorted({*sorted(there)[:_MOST_VARIANTS], *taken})
    return gr.Radio([(name or PLAIN, name) for name in names], visible=len(there) > 1, **value)
