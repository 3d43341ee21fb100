"""Handle what comes before a plan: fill in what a link opens, greet, suggest models, begin with a goal."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import gradio as gr

from sharding.core.errors import ShardingError, UsageError
from sharding.core.options import Options
from sharding.desk.jobs import ACTIVE
from sharding.page.form import PLAIN, PRIVATE, Aim, Form, Update, Values, goals_panel, size_label
from sharding.page.goals import GOALS, SAME
from sharding.page.job_panels import jobs_panel
from sharding.page.links import Wish, query_of, read_wish
from sharding.page.panels import message, problem
from sharding.page.render import render
from sharding.page.site import Events, Login

_MOST_FOUND = 200


class Arriving(Events):
    """The events before a plan. Nothing here needs a login."""

    def arrive(self, request: gr.Request) -> Update:
        """Fill in the form from the link. It asks no Hub, so that what the link names opens at once."""
        wish, form = read_wish(dict(request.query_params)), self.form
        update: Update = {part: gr.Accordion(open=False) for part in (form.advanced, form.where)}
        if wish.goal not in ("", SAME):
            update |= self._begun(wish.goal, wish.repo) | {form.aim: Aim(wish.goal if wish.sized else "")}
        if wish.repo:  # otherwise the visitor may be typing already
            source, variant = GOALS[wish.goal].source if wish.goal else "Model", wish.options.variant
            owner, _, name = wish.to.partition("/")
            chosen: Update = {form.measure: wish.measure, form.engine: wish.engine, form.proof: wish.proof}
            chosen |= {form.visibility: wish.private and PRIVATE, form.name: name}
            chosen[form.namespace] = owner and name and gr.Dropdown(choices=[owner], value=owner)
            update |= {
                form.repo: gr.Dropdown(choices=[wish.repo], value=wish.repo, label=source),
                form.goals: goals_panel(wish.goal, source=wish.repo),
                form.size: size_label(str(wish.options.max_shard_size)) if wish.sized else wish.misspelt,
                form.variants: gr.Radio([(variant or PLAIN, variant)], visible=False, value=variant),
                **form.filled_in(wish.options),
                **{field: value for field, value in chosen.items() if value},
            }
        if wish.job or wish.result:
            update |= {
                form.choose: gr.Column(visible=False),
                form.run: gr.Column(visible=bool(wish.job)),
                form.outcome: gr.Column(visible=bool(wish.result)),
                form.job: wish.job,
                form.wanted: wish.result,
                form.result: render("skeleton", repo_id=wish.result) if wish.result else "",
            }
        return update

    def aim_at(self, repo: str | None, chosen: gr.EventData) -> Update:
        """Begin with the chosen goal: show the form that it needs."""
        name = getattr(chosen, "goal", "")
        return {**self._begun(name, (repo or "").strip()), self.form.chosen: name} if name in GOALS else {}

    def _begun(self, goal: str, repo: str) -> Update:
        label = {self.form.goal: goal, self.form.repo: gr.Dropdown(label=GOALS[goal].source), self.form.jobs: ""}
        # Beside a model the browser shows the goal at once, and the plan shows it again.
        return label if repo else {**label, self.form.goals: goals_panel(goal)}

    def greet(self, request: gr.Request, login: Login) -> Update:
        """Greet a visitor who is signed in, and list their jobs."""
        opens, jobs = read_wish(dict(request.query_params)), ""
        try:
            if who := self.viewer(self.site.token(request, login)):
                records = self.desk.jobs_of(who.name)
                jobs, runs = jobs_panel(records), next((one.id for one in records if one.state in ACTIVE), "")
                page, link = f"{self.site.endpoint}/{who.name}", query_of(Wish(job=runs)) if runs else ""
                greeting = render("account", name=who.name, page=page, job=link)
            else:
                plans = "Sign in to push. Plans need no login."
                greeting = message(plans if self.site.space else "Nobody is signed in on this machine.")
        except ShardingError as error:
            greeting = problem(error)
        return {self.form.account: greeting, self.form.jobs: "" if opens.repo or opens.goal else jobs}

    def exemplify(self, goal: str, repo: str | None, request: gr.Request, login: Login) -> Any:
        """Offer models to try that suit the goal."""
        names: Sequence[str] = ()
        if goal and not (repo or "").strip():
            with suppress(ShardingError):
                names = self.site.examples(self.desk, goal, self.site.token(request, login))
        return gr.Dataset(samples=[[name] for name in names], visible=bool(names))

    def suggest(self, found: Sequence[str], typed: gr.KeyUpData, request: gr.Request, login: Login) -> tuple[Any, Any]:
        """Suggest repos before those `found` earlier: Gradio's script fails if the list gets shorter."""
        text, names = (typed.input_value or "").strip(), list[str]()
        with suppress(ShardingError):  # suggestions are a courtesy: the name can still be typed
            names = self.desk.lookup.search(text, self.site.token(request, login)) if len(text) >= 2 else []
        if not names:
            return gr.skip(), gr.skip()
        known = (*dict.fromkeys([*names, *found]),)[: max(len(found), _MOST_FOUND)]
        return gr.Dropdown(choices=list(known)), known

    def begin(self, repo: str, facts: str) -> str:
        """Return the message that the headers are being read. That takes a second or two. `facts` only fade."""
        return message(f"Reading the headers of {repo.strip()} …") if (repo or "").strip() and not facts else ""

    def keep(self, values: Values) -> str:
        """Return the query of the link to what a visitor has chosen, who goes to sign in. "" if that is nothing."""
        form, options, size = self.form, Options(), self.form.size_in(values)
        with suppress(UsageError):  # the plan shows what is wrong
            options = form.options_in({**values, form.size: size or str(options.max_shard_size)})
        names = [(values[field] or "").strip() for field in (form.job, form.wanted, form.original, form.copied)]
        opened: dict[str, Any] = dict(zip(("job", "result", "compare", "against"), names, strict=True))
        query = query_of(replace(wish_of(form, values, options), sized=bool(size), **opened))
        return query if query != "?" else ""


def wish_of(form: Form, values: Values, options: Options) -> Wish:
    """Return what a link to the form opens as it is filled in, with its plan."""
    name = (values[form.name] or "").strip()
    is_own = name not in ("", values[form.proposed].partition(" ")[2])
    return Wish(
        form.source_in(values),
        options,
        values[form.goal] or "",
        to=f"{values[form.namespace] or ''}/{name}" if is_own else "",
        private=values[form.visibility] == PRIVATE,
        measure=bool(values[form.measure]),
        engine=values[form.engine],
        proof=values[form.proof],
    )
