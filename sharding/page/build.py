"""Build the page over a desk: lay it out, then say what follows from what."""

import gradio as gr

from sharding.desk import Desk
from sharding.page.api import Endpoints
from sharding.page.form import Form, lay_out
from sharding.page.planning import Planning
from sharding.page.pushing import Pushing
from sharding.page.running import Running
from sharding.page.showing import Showing
from sharding.page.site import Site

_SHOW_ADDRESS = "(query) => window.shardMyRepo.address(query)"
_TO_TOP = "() => window.scrollTo({ top: 0, behavior: 'smooth' })"


def build(desk: Desk, site: Site) -> gr.Blocks:
    """Return the page. It keeps nothing of its visitors: all that lasts is at the desk or on the Hub."""
    with gr.Blocks(title="Shard My Repo", analytics_enabled=False, fill_width=True) as page:
        form = lay_out(on_space=site.space is not None)
        planning, pushing = Planning(desk, site, form), Pushing(desk, site, form)
        running, showing = Running(desk, site, form), Showing(site, form)
        source = [form.repo, form.revision, form.size, form.other_size]

        def plan_from(step: gr.events.Dependency) -> None:
            step = step.then(planning.see, [*source, form.order], _plan_parts(form), **_QUIET)
            propose_from(step)

        def propose_from(step: gr.events.Dependency) -> None:
            given = [*source, form.namespace, form.name, form.proposed]
            step = step.then(pushing.propose, given, _push_parts(form), **_QUIET)
            step.then(None, form.query, js=_SHOW_ADDRESS)

        def follow_from(step: gr.events.Dependency) -> None:
            step.then(None, form.query, js=_SHOW_ADDRESS)
            step.then(running.follow, form.job, _run_parts(form), **_QUIET)

        arrived = page.load(planning.arrive, None, _all_parts(form), **_QUIET)
        plan_from(arrived.then(planning.begin, source[:2], form.repo_message, **_QUIET))
        arrived.then(running.follow, form.job, _run_parts(form), **_QUIET)
        arrived.then(showing.show, form.wanted, form.result, **_QUIET)

        form.repo.key_up(planning.suggest, None, form.repo, trigger_mode="always_last", **_QUIET)
        form.examples.click(_first, form.examples, form.repo, **_QUIET)
        chosen = gr.on([form.repo.change, form.revision.submit, form.show.click], planning.begin, source[:2], form.repo_message, **_QUIET)
        plan_from(chosen)
        redraws = [form.size.change, form.other_size.submit, form.other_size.blur, form.order.change]
        drawn = gr.on(redraws, planning.draw, [*source, form.order], _plan_parts(form), **_QUIET)
        propose_from(drawn)

        named = [form.namespace, form.name]
        gr.on([form.name.blur, form.name.submit, form.namespace.input], pushing.check_name, named, form.name_message, **_QUIET)
        order = [*source, form.order, *named, form.visibility, form.permitted]
        started = form.start.click(pushing.start, order, _all_parts(form), **_QUIET)
        started.then(None, js=_TO_TOP)
        follow_from(started)
        form.cancel.click(running.cancel, form.job, _run_parts(form), **_QUIET)
        follow_from(form.resume.click(running.resume, form.job, _run_parts(form), **_QUIET))
        Endpoints(desk, site).add()
    return page.queue(default_concurrency_limit=None)


_QUIET = {"api_visibility": "private", "show_progress": "hidden"}


def _first(sample: list[str]) -> str:
    return sample[0]


def _plan_parts(form: Form) -> list[gr.components.Component]:
    return [
        form.repo_message, form.facts, form.plan, form.push, form.other_size, form.size_message, form.shards,
        form.forecast, form.visibility, form.permitted, form.query,
    ]  # fmt: skip


def _push_parts(form: Form) -> list[gr.components.Component]:
    return [form.namespace, form.name, form.name_message, form.proposed, form.start, form.start_message]


def _run_parts(form: Form) -> list[gr.components.Component]:
    return [
        form.progress, form.cancel, form.resume, form.run_message, form.log, form.outcome, form.result, form.job,
        form.query,
    ]  # fmt: skip


def _all_parts(form: Form) -> list[gr.components.Component]:
    return [getattr(form, name) for name in form.__slots__]
