"""Handle the events of steps 1 and 2: read the headers, plan and draw. Nothing here needs a login."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gradio as gr

from sharding.checkpoint.trained import needs_base
from sharding.core.errors import ShardingError, SourceError, TooManyTensors, VariantMissing
from sharding.core.options import SINGLE_FILE, Options
from sharding.core.origin import Role
from sharding.core.text import format_bytes
from sharding.core.values import Content, Plan
from sharding.desk.forecast import STATED_TIMES, Forecast, classic_forecast
from sharding.drawing.model_map import map_of_plan
from sharding.page import goals, panels
from sharding.page.arriving import wish_of
from sharding.page.form import HIDDEN, PLAIN, PRIVATE, Aim, Shown, Update, Values, goals_panel, size_label
from sharding.page.links import Wish, query_of
from sharding.page.site import Events, Login
from sharding.planning.dequantize import offer
from sharding.planning.devices import Need, needed, where_it_fits
from sharding.planning.plan import gathered, identify_plan
from sharding.planning.sizes import size_stops, stop_for
from sharding.recipes.cast import narrows
from sharding.report.report import summarize_source
from sharding.storage.hub.lookup import SourceCard

_MOST_VARIANTS = 24
_PERMITTED = "The terms of the model allow a public copy"
_NOT_PRIVATE = "The copy may be public, although the original is private"


class Planning(Events):
    """The events of steps 1 and 2."""

    def see(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Show the facts about the model, and draw the plan."""
        form, token, goal = self.form, self.site.token(request, login), values[self.form.goal]
        source, variant, base = form.source_in(values), values[form.variant], form.inputs_in(values).get("base", "")
        if not source:
            # Without a plan nothing has changed the goals, but a card may have been clicked in the meantime.
            was_shown = bool(values[form.shown].plan_id)
            cards = {form.goals: goals_panel(goal)} if was_shown else {}
            return {**self._hidden(values), **cards, form.facts: "", form.repo_message: ""}
        of_ranks, swapped = False, dict[Any, Any]()
        try:
            checkpoint, taken, remark = self._read(source, variant, token, goal)
            if not goal and (goal := goals.sole_goal(checkpoint)):
                swapped = {form.goal: goal, form.repo: gr.Dropdown(label=goals.GOALS[goal].source)}
            if goals.is_adapter(checkpoint) and "/" in checkpoint.named_base and goals.role_asked(goal) == "adapter":
                adapter, source = source, checkpoint.named_base
                values = {**values, form.repo: source, form.inputs["adapter"]: adapter}
                swapped |= {form.repo: gr.Dropdown(choices=[source], value=source, label=goals.GOALS[goal].source)}
                swapped |= {form.inputs["adapter"]: adapter}
                checkpoint, taken, remark = self._read(source, "", token)
            of_ranks = needs_base(checkpoint)
            values = {**values, form.goal: goal, form.inputs["base"]: base if of_ranks else ""}
            if of_ranks and base:
                checkpoint = self.desk.models.inspect(source, Options(variant=taken, base=base), token)
            if values[form.shown].choices == self._choices(values, checkpoint):
                return {form.repo_message: remark}  # asked twice, for example by a click that also leaves the field
            card = self.desk.lookup.card(source, token)
        except ShardingError as error:
            is_large, asked = isinstance(error, TooManyTensors), Options(variant=variant, base=base)
            return {
                **self._hidden(values),
                **swapped,
                form.goals: goals_panel(goal, of_ranks or None, source=source),
                form.repo_message: panels.problem(error),
                form.facts: self._counted(source, asked, token, request) if is_large else "",
                form.query: query_of(Wish(source, sized=False)),
            }
        # The variant asked for is not set again: the visitor may have chosen another one in the meantime.
        another: dict[str, Any] = {"value": taken} if taken != variant else {}
        hides, promise = self._hides(card, form.inputs_in(values), token)
        size, proposed = form.size_in(values), goals.usual(checkpoint)
        is_own = size not in ("", values[form.aim].size)
        by_goal, hint = self._aim(values, checkpoint, proposed, is_own)
        seen = {**values, form.variant: taken, form.size: size_label(size if is_own else proposed), **by_goal}
        quantized = offer(checkpoint)
        seen[form.dequantize] = bool(quantized and seen[form.dequantize])
        drawn = self.draw(seen, request, login)
        chips, answer = goals.goals_of(checkpoint), goals.GOALS[goal].answer(checkpoint) if goal else ""
        return {
            **swapped,
            **by_goal,
            form.repo_message: remark,
            form.inputs["base"]: values[form.inputs["base"]],
            form.goals: goals_panel(goal, of_ranks, chips, source=source, remark=hint, answer=answer),
            form.dequantize: _offered(quantized, **({"value": seen[form.dequantize]} if by_goal else {})),
            form.examples: gr.Dataset(visible=False),
            form.jobs: "",
            form.variants: _variants({taken, *checkpoint.other_variants}, checkpoint.sizes, **another),
            form.variant: gr.Textbox(**another),
            form.facts: panels.facts_panel(summarize_source(checkpoint), card),
            form.size: gr.Textbox(seen[form.size]) if seen[form.size] != values[form.size] else gr.Textbox(),
            form.aim: Aim(goal, form.size_in(seen) if by_goal else proposed),
            form.machine: gr.Column(visible=checkpoint.is_plain_model),
            form.devices: "",
            **{part: gr.Column(visible=True) for part in (form.plan, form.push)},
            form.advanced: gr.Accordion(visible=True),
            form.visibility: PRIVATE if hides else gr.Radio(),
            form.permitted: gr.Checkbox(value=False, visible=hides, label=promise),
            **drawn,
            form.shown: drawn[form.shown]
            if form.plan in drawn
            else replace(drawn[form.shown], choices=self._choices(seen, checkpoint)),
        }

    def _aim(self, values: Values, checkpoint: Content, usual: str, is_own: bool) -> tuple[Update, str]:
        """Return the fields that the chosen goal sets, and the words below the goals. A visitor's own size stays,
        unless the goal is new. A goal without sense takes back what the last one set."""
        form, name, before = self.form, values[self.form.goal], values[self.form.aim].goal
        if name not in goals.GOALS:
            return {}, ""
        chosen = goals.GOALS[name].choose(checkpoint)
        if isinstance(chosen, str):
            words = panels.message(f"“{goals.GOALS[name].title}” is not for this model.", chosen, "warning")
            back = form.aimed(Options(usual)) if before not in (None, "", name) else {}
            return {field: value for field, value in back.items() if not (is_own and field is form.size)}, words
        aimed = form.aimed(chosen) if not is_own or name != before else {}
        if is_own and before == "":  # the link has a size that is none: the plan says so
            aimed.pop(form.size, None)
        return aimed, ""

    def _hides(self, card: SourceCard, inputs: Mapping[Role, str], token: str | None) -> tuple[bool, str]:
        """Return whether a copy is private by default, and the promise that allows a public one."""
        if card.gated or card.private:
            return True, _PERMITTED if card.gated else _NOT_PRIVATE
        for role, text in inputs.items():
            with suppress(ShardingError):  # the plan shows what is wrong with it
                beside = self.desk.lookup.card(text, token)
                if beside.gated or beside.private:
                    return True, f"The result may be public, although the {role} is private or gated"
        return False, _NOT_PRIVATE

    def _counted(self, source: str, options: Options, token: str | None, request: gr.Request) -> str:
        try:
            overview = self.desk.models.overview(source, options, token, request.session_hash)
            return panels.overview_panel(overview, self.desk.lookup.card(source, token))
        except ShardingError as error:
            return panels.problem(error)

    def list_tensors(self, values: Values, chosen: gr.EventData, request: gr.Request, login: Login) -> Update:
        """List the tensors in the chosen column of the map."""
        try:
            checkpoint, plan, _ = self._plan(values, request, login)
        except ShardingError as error:
            return {self.form.tensors: panels.problem(error)}
        placed = [(tensor, shard.file) for shard in plan.shards for tensor in shard.tensors]
        return {self.form.tensors: panels.tensors_of(map_of_plan(checkpoint, plan), placed, checkpoint.tensors, chosen)}

    def draw(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Draw the plan for the current choices."""
        form, source, asked = self.form, self.form.source_in(values), goals.role_asked(values[self.form.goal])
        # The field may already name another model, of which only the plan is drawn so far.
        shown = replace(values[form.shown], choices=(), plan_id="")
        update: Update = {form.tensors: "", form.shown: shown}
        if source and asked and asked not in form.inputs_in(values):
            return self._unplanned(values, panels.message(f"Now name your {asked}.", "Its plan appears here."))
        if not source or not form.size_in(values):
            return {form.size_message: "", **update}
        try:
            checkpoint, plan, options = self._plan(values, request, login)
        except ShardingError as error:
            if isinstance(error, SourceError) and asked:
                return self._unplanned(values, panels.problem(error))
            gone = dict.fromkeys((form.picture, form.summary, form.shards, form.findings), "")
            return {form.size_message: panels.problem(error), **gone, **update}
        after = [tensor for shard in plan.shards for tensor in shard.tensors]
        # As `see` proposes a size: so that the field and the slider name the same one.
        largest = goals.largest_of(after if options.dequantize else checkpoint.tensors)
        may = any(narrows(tensor.recipe) for tensor in after)
        is_gguf, parts = checkpoint.format == "gguf", goals.has_components(checkpoint)
        size = plan.total_bytes if options.dequantize else checkpoint.total_bytes
        if parts:  # no file is larger than the largest component
            folders = {tensor.folder for tensor in after}
            size = max(sum(tensor.bytes for tensor in after if tensor.folder == folder) for folder in folders)
        stops, chosen = size_stops(size, largest, single_file=not parts), str(options.max_shard_size)
        each = "A pipeline cannot become one file here. Each of its components gets one file."
        lacks_base, need, at = needs_base(checkpoint), needed(checkpoint, plan), stop_for(stops, chosen)
        in_vain = panels.changes_nothing(checkpoint, plan) or goals.is_vain(values[form.goal], checkpoint)
        forecast = self.desk.forecast(checkpoint, plan)
        classic, again = classic_forecast(checkpoint, plan, forecast), (forecast.lower_seconds, forecast.upper_seconds)
        sampled = [STATED_TIMES * seconds for seconds in again]
        if values[form.proof] == "stated":
            forecast = replace(forecast, lower_seconds=sampled[0], upper_seconds=sampled[1])
        drawn, options = map_of_plan(checkpoint, plan), replace(options, allow_overflow=options.allow_overflow and may)
        return {
            **update,
            form.size_message: panels.message(each, "", "warning") if parts and chosen == SINGLE_FILE else "",
            **({form.sizes: panels.sizes_panel(stops, chosen)} if stops != shown.stops else {}),
            form.overflow: _possible(may),
            form.measure: _possible(checkpoint.has_loadable_copy and "compare_rounds" not in options.contradicted),
            form.engine: self._engine(None if is_gguf or "engine" in options.contradicted else classic),
            form.proof: gr.Radio(
                info=f"The job takes {panels.about(*again)} if it reads everything again. It takes "
                f"{panels.about(*sampled)} if it trusts the Hub's hashes. Then only a sample is read, and the result "
                "is not shown in green."
            ),
            form.picture: panels.map_panel(drawn, checkpoint.source.name, size_label(chosen), need),
            form.summary: panels.summary_panel(checkpoint, plan, forecast, form.choices_in(values), at),
            form.start: gr.Button(variant="secondary" if in_vain or lacks_base else "primary"),
            form.shards: panels.shards_panel(plan, forecast, classic),
            form.findings: panels.findings_panel((*checkpoint.findings, *gathered(plan))),
            form.query: query_of(wish_of(form, values, options)),
            # Nothing starts before the base is named.
            form.shown: Shown(stops=stops, plan_id="" if lacks_base else identify_plan(plan)),
        }

    def _engine(self, classic: Forecast | None) -> gr.Radio:
        """Return the choice of the engine with what the `classic` one takes. Hide it if this machine has not that."""
        if classic is None or not self.desk.has_room(classic):
            return gr.Radio(value="stream", visible=False)
        memory, disk = (format_bytes(size) for size in (classic.peak_anon_bytes, classic.disk_bytes))
        mapped = f", {format_bytes(classic.mapped_bytes)} of mapped files" if classic.mapped_bytes else ""
        words = f"takes about {memory} of memory{mapped} and {disk} on the disk of this machine"
        return gr.Radio(visible=True, info=f"To load the model and save it again, as tutorials do, {words}.")

    def _unplanned(self, values: Values, words: str) -> Update:
        form = self.form
        wish = replace(wish_of(form, values, Options(**form.named_in(values))), sized=False)
        gone = dict.fromkeys((form.size_message, form.shards, form.summary), "")
        return {**self._hidden(values), **gone, form.repo_message: words, form.query: query_of(wish)}

    def _choices(self, values: Values, checkpoint: Content) -> tuple[Any, ...]:
        return checkpoint.source, values[self.form.goal], *(values[field] for field in self.form.of_a_plan)

    def _plan(self, values: Values, request: gr.Request, login: Login) -> tuple[Content, Plan, Options]:
        token, options = self.site.token(request, login), self.form.options_in(values)
        return *self.desk.models.plan(self.form.source_in(values), options, token, request.session_hash), options

    def _hidden(self, values: Values) -> Update:
        form = self.form
        return {
            form.shown: replace(values[form.shown], choices=(), plan_id=""),
            form.variants: gr.Radio(visible=False),
            **{part: gr.Column(visible=False) for part in (form.plan, form.push)},
            form.advanced: gr.Accordion(visible=HIDDEN),
        }

    def place(
        self, repo: str, budget: str | None, owner: str | None, name: str, request: gr.Request, login: Login
    ) -> str:
        """Show which part of the model goes on which device, and the code that loads the copy like that."""
        if not repo or not budget:
            return panels.message("Choose a machine, or write how much memory each device has for weights.")
        try:
            token, session = self.site.token(request, login), request.session_hash
            copy = f"{owner}/{name.strip()}" if owner and name.strip() else ""
            return panels.devices_panel(self.desk.models.devices(repo.strip(), budget, token, session), copy)
        except ShardingError as error:
            return panels.problem(error)

    def _read(self, source: str, variant: str, token: str | None, goal: str = "") -> tuple[Content, str, str]:
        """Return the checkpoint in `source`, the variant taken, and a remark if that is not the one asked for."""
        options = Options(variant=variant, format="gguf" if goal == goals.OLLAMA else None)
        try:
            return self.desk.models.inspect(source, options, token), variant, ""
        except VariantMissing as error:
            taken = error.there[0]  # the plain weights, if there are some
            remark = panels.message(error.message, f"You see {taken or 'the plain weights'} instead.", "warning")
            return self.desk.models.inspect(source, replace(options, variant=taken), token), taken, remark


def _possible(it_is: bool) -> gr.Checkbox:
    return gr.Checkbox(visible=True) if it_is else gr.Checkbox(value=False, visible=False)


def _offered(quantized: tuple[str, str, str] | None, **value: Any) -> gr.Checkbox:
    if quantized is None:
        return _possible(False)
    how, before, after = quantized
    return gr.Checkbox(
        **value,
        visible=True,
        label=f"Dequantize: {before} → {after}",
        info=f"The weights are quantized with {how}. Tick this for a copy with ordinary weights in bf16, "
        "or in the number format under Advanced. Training needs them, and so do tools that read no quantized weights.",
    )


def _variants(there: Collection[str], sizes: Mapping[str, int], **value: Any) -> gr.Radio:
    taken = {value["value"]} if "value" in value else set()
    if len(sizes) > 1:  # each GGUF model, the smallest first, with the least place that holds it
        names = sorted(sizes, key=lambda name: sizes[name])
        return gr.Radio([(f"{name}: {_held(sizes[name])}", name) for name in names], visible=True, **value)
    names = sorted({*sorted(there)[:_MOST_VARIANTS], *taken})
    return gr.Radio([(name or PLAIN, name) for name in names], visible=len(there) > 1, **value)


def _held(size: int) -> str:
    fits = (fit.place for fit in where_it_fits(Need(size)) if fit.spare_bytes >= 0)
    return f"{format_bytes(size)}, fits {next(fits, 'none of the machines below')}"
