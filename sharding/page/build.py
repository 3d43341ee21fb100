"""Build the page over a desk: lay out its parts, connect their events, and set its colours."""

from typing import Any

import gradio as gr
from gradio.blocks import Block
from gradio.events import Dependency

from sharding.core.limits import MAX_CALLS_WAITING
from sharding.desk import Desk
from sharding.desk.questions import patient
from sharding.page.api import Endpoints
from sharding.page.arriving import Arriving
from sharding.page.form import Form
from sharding.page.jobs import Pushing, Running
from sharding.page.panels import message
from sharding.page.planning import Planning
from sharding.page.results import Comparing, Showing
from sharding.page.serving.answers import bound_answers
from sharding.page.site import Site

_SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")

_COLOURS = """
var(--ground) body_background_fill background_fill_secondary
var(--surface) background_fill_primary input_background_fill input_background_fill_focus
var(--surface) button_secondary_background_fill button_cancel_background_fill checkbox_background_color
var(--surface) checkbox_label_background_fill
var(--ink) body_text_color block_label_text_color block_title_text_color checkbox_label_text_color
var(--ink) button_secondary_text_color button_secondary_text_color_hover checkbox_label_text_color_selected
var(--muted) body_text_color_subdued block_info_text_color input_placeholder_color
var(--line) border_color_primary
var(--edge) input_border_color button_secondary_border_color checkbox_border_color checkbox_label_border_color
var(--accent) border_color_accent button_primary_background_fill input_border_color_focus link_text_color
var(--accent) link_text_color_hover link_text_color_active link_text_color_visited checkbox_background_color_selected
var(--accent) checkbox_border_color_selected
var(--accent-strong) button_primary_background_fill_hover
var(--accent-soft) color_accent_soft button_secondary_background_fill_hover checkbox_label_background_fill_hover
var(--accent-soft) checkbox_label_background_fill_selected
var(--on-accent) button_primary_text_color button_primary_text_color_hover
var(--bad) button_cancel_text_color button_cancel_text_color_hover
var(--bad-soft) button_cancel_background_fill_hover
transparent block_background_fill panel_background_fill
0px block_border_width
1px input_border_width checkbox_border_width checkbox_label_border_width
"""  # What Gradio's theme paints with each colour of the style sheet. Its last rows are widths.


def theme() -> gr.themes.Base:
    """Return the theme: the system's own fonts and the colours of the style sheet. It downloads nothing."""
    rows = map(str.split, _COLOURS.strip().splitlines())
    both = {name: colour for colour, *names in rows for name in names}
    dark = {f"{name}_dark": value for name, value in both.items() if not name.endswith("_width")}
    size = gr.themes.sizes
    sizes: dict[str, Any] = {"text_size": size.text_lg, "radius_size": size.radius_md, "spacing_size": size.spacing_lg}
    base = gr.themes.Base(font=_SANS, font_mono=_MONO, **sizes)
    return base.set(**both, **dark)


_QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
_LOOK_SECONDS = 0.02  # Gradio 6.31 looks into its queue every millisecond, which takes 8% of a core.
_SHOW_ADDRESS = "(query) => window.shardMyRepo.address(query)"
_SHOW_JOB = "(query, job) => window.shardMyRepo.taken(query, job)"
_BECOME = "(query) => /^[?](result|compare)=/.test(query) && window.shardMyRepo.address(query, true)"
_BUILDING = "Building the model without its weights …"
_SHOW_LIST = "() => window.shardMyRepo.showList()"


def build(desk: Desk, site: Site) -> gr.Blocks:
    """Return the page. It stores nothing about its visitors: everything that lasts is in the desk or on the Hub."""
    page = gr.Blocks(title="Shard My Repo", analytics_enabled=False, fill_width=True)
    with page:
        form = Form(on_space=site.space is not None)
        arriving, running = Arriving(desk, site, form), Running(desk, site, form)
        arrived = page.load(arriving.arrive, None, [*form.by_name.values()], **_QUIET)
        page.load(patient(arriving.greet), None, [form.account, form.jobs], **_QUIET)
        showing = Showing(desk, site, form)
        result = [form.result, form.result_map, form.result_details, form.check, form.load, form.check_message]
        arrived.then(showing.show, form.wanted, result, **_QUIET)
        arrived.then(running.follow, form.job, _job_parts(form), **_QUIET).then(None, form.query, js=_BECOME)
        _plan_and_push(form, arrived, arriving, Pushing(desk, site, form), running)

        listed = form.result_map.select(patient(showing.list_tensors), form.wanted, form.result_tensors, **_QUIET)
        listed.then(None, js=_SHOW_LIST)
        form.cancel.click(patient(running.cancel), form.job, _job_parts(form), **_QUIET)
        _follow(form, form.resume.click(patient(running.resume), form.job, _job_parts(form), **_QUIET), running)
        checking = [form.check, form.load, form.check_message, form.outcome, form.run, form.job, form.query]
        for button, start in ((form.check, showing.check), (form.load, showing.load)):
            _follow(form, button.click(patient(start), form.wanted, checking, **_QUIET), running)
        _compare(form, page, Comparing(desk, site, form), running)
        Endpoints(desk, site).add()
    for function in page.fns.values():
        if function.name == "_check_login_status":  # of the login button, which offers it to programs
            function.api_visibility = "private"
    page.queue(default_concurrency_limit=None, max_size=MAX_CALLS_WAITING)
    bound_answers(page._queue)
    page._queue.sleep_when_free = _LOOK_SECONDS
    return page


def _plan_and_push(form: Form, arrived: Dependency, arriving: Arriving, pushing: Pushing, running: Running) -> None:
    planning = Planning(arriving.desk, arriving.site, form)
    name: list[Block] = [form.namespace, form.name]
    # A set: for that Gradio passes all values together, by field.
    fields: set[Block] = {*form.of_a_plan, *name, form.visibility, form.measure, form.engine, form.proof, form.own}
    fields |= {form.goal, form.aim, form.shown, form.proposed, form.permitted, form.replace, form.replaced}
    fields |= {form.job, form.wanted, form.original, form.copied}
    place: list[Block] = [form.target, form.visibility, form.own]

    def propose(after: Dependency) -> None:
        after.then(None, js="() => window.shardMyRepo.ready()")
        shown = [*name, form.name_message, form.proposed, form.target, form.start, form.start_message]
        proposed = after.then(patient(pushing.propose), fields, shown, **_QUIET)
        proposed.then(None, form.query, js=_SHOW_ADDRESS)
        kept = proposed.then(None, form.name, form.name, js="(name) => window.shardMyRepo.ownName(name)")
        told = kept.then(patient(pushing.tell_target), fields, place, **_QUIET)
        told.then(None, js="() => window.shardMyRepo.goOn()")

    for field in (form.repo, form.original, form.copied):
        typed: dict[str, Any] = {"inputs": form.found, "outputs": [field, form.found], "trigger_mode": "always_last"}
        field.key_up(patient(arriving.suggest), **typed, **_QUIET)
    named = form.examples.click(lambda sample: sample[0], form.examples, form.repo, **_QUIET)
    # In the browser, because Gradio refuses a choice of a radio whose choices have changed in the meantime.
    picked = form.variants.input(None, form.variants, form.variant, js="(chosen) => chosen")
    chosen_goal: list[Block] = [form.goal, form.chosen, form.goals, form.repo, form.jobs]
    aimed = form.goals.select(arriving.aim_at, form.repo, chosen_goal, **_QUIET)
    aimed.then(None, js="() => window.shardMyRepo.aimed()")
    for begun in (arrived, aimed):
        begun.then(patient(arriving.exemplify), [form.goal, form.repo], form.examples, **_QUIET)
    begin: dict[str, Any] = {"fn": arriving.begin, "inputs": [form.repo, form.facts], "outputs": form.repo_message}
    begin |= {"trigger_mode": "always_last", **_QUIET}
    beside = [trigger for field in form.inputs.values() for trigger in (field.submit, field.blur)]
    # A click on the button or on a goal also leaves the field. Together they ask one after another, the last one last.
    asked = gr.on([form.repo.input, form.show.click, form.chosen.change, *beside], **begin)
    for chosen in (*(one.then(**begin) for one in (arrived, named, picked)), asked):
        propose(chosen.then(patient(planning.see), fields, _plan_parts(form), trigger_mode="always_last", **_QUIET))
    # Only what the visitor does, not what a link fills in. They run one after another, so the last choice wins.
    changes = [form.size.submit, form.size.blur, form.order.input]
    changes += [form.strategy.input, form.machines.submit, form.machines.blur, form.dtype.input, form.overflow.input]
    changes += [form.dequantize.input, form.proof.input]
    propose(gr.on(changes, patient(planning.draw), fields, _plan_parts(form), trigger_mode="always_last", **_QUIET))
    form.picture.select(patient(planning.list_tensors), fields, form.tensors, **_QUIET).then(None, js=_SHOW_LIST)

    leaving = form.account.select(arriving.keep, fields, form.query, **_QUIET)
    leaving.then(None, form.query, js="(query) => window.shardMyRepo.leave(query)")
    form.place.click(lambda: message(_BUILDING), None, form.devices, **_QUIET).then(
        patient(planning.place), [form.repo, form.budget, form.namespace, form.name], form.devices, **_QUIET
    )
    for trigger in (form.name.blur, form.name.submit, form.namespace.input):
        trigger(patient(pushing.check_name), [*name, form.shown], [form.name_message, form.start], **_QUIET)
    for trigger in (form.name.blur, form.name.submit, form.namespace.input, form.visibility.input, form.measure.input):
        trigger(patient(pushing.tell_target), fields, place, trigger_mode="always_last", **_QUIET)
    started = form.start.click(patient(pushing.start), fields, [*form.by_name.values()], **_QUIET)
    started.then(None, js="() => window.shardMyRepo.started()")
    _follow(form, started, running)


def _compare(form: Form, page: gr.Blocks, comparing: Comparing, running: Running) -> None:
    names: list[Block] = [form.original, form.copied]
    shown: list[Block] = [form.likeness, form.compare, form.read, form.read_message]
    opened = page.load(patient(comparing.arrive), None, [form.choose, form.same, *names, *shown], **_QUIET)
    triggers = [form.compare.click, form.original.input, form.copied.input]
    asked = gr.on(triggers, comparing.begin, [*names, form.compared], shown, trigger_mode="always_last", **_QUIET)
    verdict: list[Block] = [*shown, form.compared, form.query]
    for chosen in (opened, asked):
        compared = chosen.then(patient(comparing.show), names, verdict, trigger_mode="always_last", **_QUIET)
        compared.then(None, form.query, js=_SHOW_ADDRESS)
    parts: list[Block] = [form.same, form.read_message, form.run, form.job, form.query]
    _follow(form, form.read.click(patient(comparing.read), form.compared, parts, **_QUIET), running)


def _follow(form: Form, after: Dependency, running: Running) -> None:
    after.then(None, [form.query, form.job], js=_SHOW_JOB)
    followed = after.then(running.follow, form.job, _job_parts(form), **_QUIET)
    followed.then(None, form.query, js=_BECOME)


def _plan_parts(form: Form) -> list[Block]:
    shown: list[Block] = [form.repo, form.repo_message, form.goal, form.goals, *form.inputs.values()]
    shown += [form.examples, form.jobs]
    shown += [form.facts, form.variants, form.variant, form.plan, form.push, form.advanced, form.sizes, form.size]
    shown += [form.size_message, form.dequantize, form.picture, form.tensors, form.findings, form.summary, form.shards]
    shown += [form.strategy, form.machines, form.dtype, form.overflow, form.visibility, form.permitted, form.measure]
    return [*shown, form.engine, form.proof, form.machine, form.devices, form.start, form.query, form.aim, form.shown]


def _job_parts(form: Form) -> list[Block]:
    shown: list[Block] = [form.run_heading, form.progress, form.job_map, form.cancel, form.resume, form.run_message]
    shown += [form.log, form.run, form.outcome, form.result, form.result_map, form.result_details, form.past]
    return [*shown, form.check, form.load, form.check_message, form.wanted, form.job, form.query]
