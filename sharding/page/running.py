"""Show a job to its owner while it runs, and let them cancel or resume it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import gradio as gr

from sharding.core.errors import Refused, ShardingError
from sharding.core.limits import MAX_WATCHERS, VIEW_SECONDS
from sharding.desk import JobRequest, JobStatus, destination_of
from sharding.desk.jobs import ACTIVE
from sharding.desk.judgement import BESIDE
from sharding.desk.patience import patient
from sharding.drawing.model_map import map_of_plan
from sharding.page.events import Events, Login
from sharding.page.form import Update
from sharding.page.job_panels import differs, heading_of, job_panel
from sharding.page.links import Wish, query_of
from sharding.page.panels import log_panel, map_panel, message, problem
from sharding.page.remedies import SIGN_IN
from sharding.page.result_panels import details_panel, result_panel
from sharding.page.same.panels import differences_panel, outcome_panel
from sharding.page.site import person
from sharding.storage.hub.answers import Person
from sharding.verify.trust import Trust, lowered

_OWN = Trust("made-here", ("This page made the copy. It read every byte again before it published the copy.", BESIDE))
_NOT_YOURS = (
    "You have no job with this id here.",
    "Jobs are kept for a day, and only the account that started a job can see it. Look for the copy in its repo.",
    None,
)

_TOO_MANY_WINDOWS = Refused(
    f"You already watch jobs in {MAX_WATCHERS} windows.", "Close one of them, then reload this page."
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
            who = await asyncio.to_thread(person, self.desk, token)
            status = self.desk.status(job, who.name if who else None)
            if status is None:
                yield await asyncio.to_thread(self._lost, job, who, token)
                return
        except ShardingError as error:
            yield {self.form.progress: problem(error)}
            return
        if self._watchers[status.owner] >= MAX_WATCHERS:
            yield {self.form.progress: problem(_TOO_MANY_WINDOWS)}
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
            if now != shown:
                update = self._show(now, request)
                if now.state == "failed":
                    update |= {self.form.job_map: ""}  # no picture of a success
                elif now.planned and not is_drawn:
                    update |= await patient(self._drawn)(now, token)
                    is_drawn = True
                if now.state == "failed" and now.verification and now.verification.differences:
                    update |= await patient(self._differences)(now, token)
                yield update
            if now.state not in ACTIVE:
                return
            shown = now
            await asyncio.sleep(2 * VIEW_SECONDS)
            now = self.desk.status(status.id, status.owner)

    def cancel(self, job: str, request: gr.Request, login: Login) -> Update:
        """Stop the job."""
        try:
            who = person(self.desk, self.site.token(request, login))
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
            if wanted.kind == "verify" and wanted.of_result:
                again = self.desk.submit_check(wanted.destination, who, token)
            elif wanted.kind == "verify":
                places = wanted.source, wanted.destination, wanted.options.variant
                again = self.desk.submit_comparison(*places, who, token)
            else:
                again = self.desk.submit(wanted, who, token)
        except ShardingError as error:
            return {self.form.run_message: problem(error)}
        shown = self.taken(again)
        del shown[self.form.run]
        return {**shown, self.form.resume: gr.Button(visible=False), self.form.run_message: ""}

    def _interrupted(self, job: str, who: Person, token: str) -> JobRequest | None:
        if status := self.desk.status(job, who.name):
            differed = status.verification is not None and not status.verification.holds
            return replace(status.request, restart=status.request.restart or differed)
        repo_id = destination_of(job) or ""
        return self.desk.unfinished(repo_id, token) if repo_id.partition("/")[0] in who.namespaces else None

    def _lost(self, job: str, who: Person | None, token: str | None) -> Update:
        """Show what to do about a job that the desk does not know, or that is not this visitor's."""
        form, repo_id = self.form, destination_of(job) or ""
        if who is None or token is None:
            hint = "Only the account that started it can see it."
            text = message("You are not signed in, so you cannot see this job.", hint, remedy=SIGN_IN)
            return {form.progress: text}
        if repo_id.partition("/")[0] in who.namespaces and self.desk.unfinished(repo_id, token):
            text = message(
                f"The job for {repo_id} was interrupted because this Space was restarted.",
                "Its finished shards are kept on the Hub. Resume it to go on from there.",
                "warning",
            )
            return {form.progress: text, form.resume: gr.Button(visible=True)}
        return {form.progress: problem(Refused(*_NOT_YOURS))}

    def _show(self, status: JobStatus, request: gr.Request) -> Update:
        form, address = self.form, self.site.address(request)
        update: Update = {
            form.run_heading: heading_of(status),
            form.progress: job_panel(
                status, self.desk.lookup.link(status.request.source), address + query_of(Wish(job=status.id))
            ),
            form.log: log_panel(status),
            form.cancel: gr.Button(
                "Cancel" if status.state != "cancelling" else "Cancelling …",
                visible=status.state in ACTIVE,
                interactive=status.state != "cancelling",
            ),
            form.resume: gr.Button(
                "Resume" if status.state == "interrupted" else "Retry",
                visible=status.state in ("interrupted", "failed") and not differs(status),
            ),
        }
        if status.request.kind == "verify" and status.state == "done":
            shown = {form.result: outcome_panel(status), form.result_details: ""}
            return {**update, form.outcome: gr.Column(visible=True), **shown}
        if status.report is None or status.state != "done":
            return update  # neither words nor links of a success
        report, revision = status.report, status.published.ref.revision if status.published else ""
        places = self.places(report, status.request.destination, revision, request)
        trust = lowered(_OWN, report.verification.unreached)
        return {
            **update,
            form.outcome: gr.Column(visible=True),
            form.result: result_panel(report, trust, places),
            form.result_details: details_panel(report, places, trust, status.whole_seconds),
        }

    def _drawn(self, status: JobStatus, token: str | None) -> Update:
        """Draw the map that gets its colours as files are finished. Without the source's headers there is no map."""
        if status.request.kind == "verify":
            return {}
        try:
            checkpoint, plan = self.desk.models.plan(status.request.source, status.request.options, token)
        except ShardingError:
            return {}
        name = status.request.destination
        return {self.form.job_map: map_panel(map_of_plan(checkpoint, plan), name, fits=False)}

    def _differences(self, status: JobStatus, token: str | None) -> Update:
        """Show by how much the tensors differ that a job has compared. Only the headers name those that do not."""
        asked, form, names = status.request, self.form, set[str]()
        with suppress(ShardingError):
            names = {tensor.name for tensor in self.desk.models.inspect(asked.destination, "", token).tensors}
        shown = {form.result: differences_panel(status, names), form.result_details: ""}
        return {form.outcome: gr.Column(visible=True), **shown}
