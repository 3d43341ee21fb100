"""Handle the events of step 3, then show the job to its owner, who can cancel or resume it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import gradio as gr

from sharding.core.errors import Refused, ReplaceRefused, ShardingError, UsageError
from sharding.core.limits import MAX_WATCHERS, ROUNDS, VIEW_SECONDS
from sharding.core.text import without_revision
from sharding.desk import JobRequest, JobStatus, destination_of
from sharding.desk.jobs import ACTIVE
from sharding.desk.questions import patient
from sharding.drawing.model_map import map_of_plan
from sharding.page.comparison_panels import link_of, outcome_panel
from sharding.page.form import HIDDEN, PRIVATE, START, Shown, Update, Values, goals_panel
from sharding.page.goals import SAME
from sharding.page.job_panels import has_outcome, heading_of, job_panel, past_panel
from sharding.page.links import Wish, query_of
from sharding.page.panels import log_panel, map_panel, message, problem
from sharding.page.render import HOME, SIGN_IN, Help, render
from sharding.page.results import Comparing, Showing
from sharding.page.site import Events, Login
from sharding.storage.hub.answers import Person
from sharding.storage.hub.lookup import propose_name
from sharding.storage.names import new_repo_id

_SIGN_IN_AND_START = "Sign in and start"
_NEEDS_LOGIN = ("Sign in to push.", "Your choices are kept.", SIGN_IN)


class Pushing(Events):
    """The events of step 3 before a job starts."""

    def propose(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Fill in a namespace and a free name. A name that the visitor wrote stays."""
        form, token, wanted = self.form, self.site.token(request, login), ""
        namespace, name, before = (values[field] for field in (form.namespace, form.name, form.proposed))
        proposed, _, short = before.partition(" ")
        off: Update = {form.start: gr.Button(interactive=False)}
        can_start = bool(values[form.shown].plan_id)
        if not token and self.site.space:
            return {form.start: gr.Button(_SIGN_IN_AND_START, interactive=can_start)}
        if not token:
            words, hint, remedy = _NEEDS_LOGIN
            return {**off, form.target: "", form.start_message: message(words, hint, remedy=remedy)}
        try:
            who = self.desk.lookup.who(token)
            space = namespace if namespace in who.namespaces else who.name
            update: Update = {form.start: gr.Button(START, interactive=can_start), form.start_message: ""}
            update |= {form.namespace: gr.Dropdown(choices=list(who.namespaces), value=space)}
            if namespace and namespace != space:
                where = (f"You cannot write to {namespace}.", f"The copy goes to {space} instead.")
                update |= {form.start_message: message(*where, "warning")}
            with suppress(UsageError):  # the plan shows what is wrong
                wanted = propose_name(space, form.source_in(values), form.options_in(values))
            if wanted in ("", proposed) or name not in ("", short):  # proposed already, or the visitor's own
                with suppress(ShardingError):
                    new_repo_id(f"{space}/{name.strip()}", self.site.endpoint)
                    return update
                return {**update, **off}
            free = self.desk.lookup.free_name(wanted, token)
        except ShardingError as error:
            return {**off, form.start_message: problem(error)}
        short, taken = free.partition("/")[2], (f"{wanted} exists already.", f"{free} is free.")
        return {
            **update,
            form.name: short,
            form.proposed: f"{wanted} {short}",
            form.name_message: message(*taken, "warning") if free != wanted else "",
        }

    def tell_target(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Show where the copy goes and who can see it. The choice follows a private repo that is there."""
        form, token = self.form, self.site.token(request, login)
        owner, name, chosen = values[form.namespace], (values[form.name] or "").strip(), values[form.visibility]
        place, there, own = f"{owner}/{name}" if owner and name and token else "", None, values[form.own]
        with suppress(ShardingError):
            there = self.desk.lookup.card(place, token) if place else None
        is_hidden = there is not None and there.private
        wanted = PRIVATE if is_hidden else own or chosen
        loads, private = bool(values[form.measure]), there.private if there else wanted == PRIVATE
        named = place
        if not token and self.site.space:  # it will be in the namespace of whoever signs in
            named = f"{owner}/{name}" if owner and name else name or "your namespace"
        told = {"repo_id": named, "private": private, "there": there, "loads": loads, "chosen": wanted == PRIVATE}
        follows: Update = {form.visibility: wanted} if wanted != chosen else {}
        return {**follows, form.target: render("target", **told), form.own: (own or chosen) if is_hidden else ""}

    def check_name(self, namespace: str | None, name: str, shown: Shown, request: gr.Request, login: Login) -> Update:
        """Show a message if the name is taken. Without a name that the Hub accepts, nothing can start."""
        form, token = self.form, self.site.token(request, login)
        wanted, off = f"{namespace}/{name.strip()}", gr.Button(interactive=False)
        fine = {form.name_message: "", form.start: gr.Button(interactive=bool(shown.plan_id))}
        if not token and self.site.space:
            return fine
        if not (namespace and name.strip() and token):
            words = message("Give the new repo a name.") if namespace and token else ""
            return {form.name_message: words, form.start: off}
        try:
            new_repo_id(wanted, self.site.endpoint)
            free = self.desk.lookup.free_name(wanted, token)
            if free == wanted or self.desk.unfinished(wanted, token):
                return fine
        except ShardingError as error:
            return {form.name_message: problem(error), form.start: off}
        text = f"{wanted} exists already. A copy of the same model in it gets a new commit. Nothing else is replaced "
        return {**fine, form.name_message: message(f"{text}unless you say so.", f"{free} is free.", "warning")}

    def start(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Hand the job to the desk and show its progress. If it is refused, show the reason beside the button."""
        form, source = self.form, self.form.source_in(values)
        destination = f"{values[form.namespace] or ''}/{values[form.name].strip()}"
        try:
            wanted = JobRequest(
                source=source,
                destination=destination,
                options=form.options_in(values),
                private=values[form.visibility] == PRIVATE,
                confirmed=values[form.permitted],
                # The permission to replace one copy does not hold for another.
                overwrite=values[form.replace] and values[form.replaced] == (source, destination),
                engine=values[form.engine],
                proof=values[form.proof],
                compare_rounds=ROUNDS if values[form.measure] else 0,
                expect=values[form.shown].plan_id,
                goal=values[form.goal] or "",
            )
            if not wanted.expect:
                raise Refused("There is no plan yet.", "Choose a model and a size first.")
            taken = self.desk.submit(wanted, *self.signed_in(request, login, _NEEDS_LOGIN))
        except ShardingError as error:
            there = error.there if isinstance(error, ReplaceRefused) else ""
            label = f"Replace the copy of {there} in {destination} with this copy of {source}"
            return {
                form.start_message: problem(error),
                form.replace: gr.Checkbox(label=label, value=False, visible=bool(there)),
                form.replaced: (source, destination),
            }
        return {
            **{part: gr.Column(visible=False) for part in (form.choose, form.plan, form.push)},
            form.advanced: gr.Accordion(visible=HIDDEN),
            form.start_message: "",
            **self.taken(taken),
        }


_NOT_YOURS = (
    "You have no job with this id here.",
    "Jobs are kept for a day, and only the account that started a job can see it. Look for the copy in its repo.",
    None,
)


@dataclass(frozen=True, slots=True)
class Running(Events):
    """The events of a running job."""

    _watchers: Counter[str] = field(default_factory=Counter, init=False)

    async def follow(self, job: str, request: gr.Request, login: Login) -> AsyncIterator[Update]:
        """Show each change of a job until it has ended. The job goes on if nobody watches."""
        if not job:
            yield {self.form.job: ""}
            return
        token = self.site.token(request, login)
        try:
            who = await asyncio.to_thread(self.viewer, token)
            status = self.desk.status(job, who.name if who else None)
            if status is None:
                yield await asyncio.to_thread(self._lost, job, who, token)
                return
            if self._watchers[status.owner] >= MAX_WATCHERS:
                text = f"You already watch jobs in {MAX_WATCHERS} windows."
                raise Refused(text, "Close one of them, then reload this page.")
        except ShardingError as error:
            yield {self.form.progress: problem(error)}
            return
        self._watchers[status.owner] += 1
        try:
            async for update in self._watch(status, token, request):
                yield update
        finally:
            self._watchers[status.owner] -= 1
            if not self._watchers[status.owner]:
                del self._watchers[status.owner]

    async def _watch(self, status: JobStatus, token: str | None, request: gr.Request) -> AsyncIterator[Update]:
        now: JobStatus | None = status
        shown, is_drawn = None, False
        while now is not None:
            if has_outcome(now):
                if shown is None:
                    waiting = render("skeleton", repo_id=without_revision(now.request.destination))
                    yield {self.form.progress: waiting}
                yield await self._ended(now, token, request)
                return
            if now != shown:
                update = self._show(now, request)
                if now.state == "failed":
                    update |= {self.form.job_map: ""}  # no picture of a success
                elif now.planned and not is_drawn:
                    update |= await patient(self._drawn)(now, token)
                    is_drawn = True
                yield update
            if now.state not in ACTIVE:
                return
            shown = now
            await asyncio.sleep(2 * VIEW_SECONDS)
            now = self.desk.status(status.id, status.owner)

    async def _ended(self, status: JobStatus, token: str | None, request: gr.Request) -> Update:
        """Show what a job has made or found. What it has made is shown as its result page shows it."""
        form, asked, address = self.form, status.request, self.site.address(request)
        is_of_two = asked.kind == "verify" and not asked.of_result
        panels = (form.progress, form.job_map, form.log, form.check_message, form.result_map, form.result_details)
        emptied: Update = {panel: "" for panel in panels}
        emptied |= {button: gr.Button(visible=False) for button in (form.check, form.load, form.cancel, form.resume)}
        try:
            if status.state == "failed":
                comparing = Comparing(self.desk, self.site, form)
                told = await patient(comparing.told)(asked.destination, token)
                shown: Update = {form.result: told + await patient(comparing.differences)(status, token, address)}
            elif is_of_two:
                shown = {form.result: outcome_panel(status, self.site.endpoint, address)}
            else:
                place, showing = status.result or asked.destination, Showing(self.desk, self.site, form)
                shown = await showing.made(place, token, request)
                shown |= {form.job: "", form.query: query_of(Wish(result=place))}
            if is_of_two:
                shown[form.result] = goals_panel(SAME) + shown[form.result]
                shown |= {form.job: "", form.query: link_of(status)}
        except ShardingError as error:
            shown = {form.result: problem(error, [HOME])}
        if status.remark:
            shown[form.result] = message(status.remark, level="warning") + shown[form.result]
        return {
            **emptied,
            **shown,
            form.run: gr.Column(visible=False),
            form.outcome: gr.Column(visible=True),
            form.past: past_panel(status, self.desk.lookup.link(asked.source)),
        }

    def cancel(self, job: str, request: gr.Request, login: Login) -> Update:
        """Stop the job."""
        try:
            who = self.viewer(self.site.token(request, login))
            self.desk.cancel(job, who.name if who else None)
        except ShardingError as error:
            return {self.form.run_message: problem(error)}
        return {self.form.cancel: gr.Button("Cancelling …", interactive=False)}

    def resume(self, job: str, request: gr.Request, login: Login) -> Update:
        """Start an interrupted or failed job again. It goes on from the finished shards, unless the copy differed."""
        try:
            who, token = self.signed_in(request, login, _NOT_YOURS)
            wanted = self._interrupted(job, who, token)
            if wanted is None:
                raise Refused(*_NOT_YOURS)
            shown = self.taken(self.desk.submit(wanted, who, token))
        except ShardingError as error:
            return {self.form.run_message: problem(error)}
        del shown[self.form.run]
        return {**shown, self.form.resume: gr.Button(visible=False), self.form.run_message: ""}

    def _interrupted(self, job: str, who: Person, token: str) -> JobRequest | None:
        if status := self.desk.status(job, who.name):
            differed = status.verification is not None and not status.verification.holds
            return replace(status.request, restart=status.request.restart or differed)
        repo_id = destination_of(job) or ""
        return self.desk.unfinished(repo_id, token) if repo_id.partition("/")[0] in who.namespaces else None

    def _lost(self, job: str, who: Person | None, token: str | None) -> Update:
        form, copy = self.form, destination_of(job)
        if who is None or token is None:
            hint = "Only the account that started it can see it."
            text = message("You are not signed in, so you cannot see this job.", hint, remedy=SIGN_IN, ways=[HOME])
            return {form.progress: text}
        if self._interrupted(job, who, token):
            text = f"The job for {copy} was interrupted because this Space was restarted."
            hint = "Its finished shards are kept on the Hub. Resume it to go on from there."
            return {form.progress: message(text, hint, "warning"), form.resume: gr.Button(visible=True)}
        ways = [Help(label=f"Look at {copy}", link=query_of(Wish(result=copy)))] if copy else []
        return {form.progress: message(*_NOT_YOURS[:2], "error", ways=[*ways, HOME])}

    def _show(self, status: JobStatus, request: gr.Request) -> Update:
        form, is_stopping = self.form, status.state == "cancelling"
        source = self.desk.lookup.link(status.request.source)
        link = self.site.address(request) + query_of(Wish(job=status.id))
        words = "Cancelling …" if is_stopping else "Cancel"
        again = "Resume" if status.state == "interrupted" else "Retry"
        return {
            form.run_heading: heading_of(status),
            form.progress: job_panel(status, source, link),
            form.log: log_panel(status),
            form.cancel: gr.Button(words, visible=status.state in ACTIVE, interactive=not is_stopping),
            form.resume: gr.Button(again, visible=status.can_resume),
        }

    def _drawn(self, status: JobStatus, token: str | None) -> Update:
        asked = status.request
        with suppress(ShardingError):  # without the source's headers there is no map
            if asked.kind == "shard":
                checkpoint, plan = self.desk.models.plan(asked.source, asked.options, token)
                return {self.form.job_map: map_panel(map_of_plan(checkpoint, plan), asked.destination)}
        return {}
