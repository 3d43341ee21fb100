"""Show the result in any repo, from a report there that anybody may have written."""

from collections.abc import AsyncIterator
from contextlib import suppress

import gradio as gr

from sharding.core.errors import ShardingError
from sharding.core.options import Options
from sharding.core.threads import readers
from sharding.core.values import Checkpoint
from sharding.desk import Forecast
from sharding.desk.patience import patient
from sharding.drawing.model_map import map_of_copy
from sharding.page.events import Events, Login
from sharding.page.form import Update
from sharding.page.panels import map_panel, message, problem, tensors_of
from sharding.page.remedies import SIGN_IN
from sharding.page.result_panels import Places, can_check, details_panel, result_panel
from sharding.planning.adapters.merged import changed_names
from sharding.report.files import Result
from sharding.verify.trust import Trust, claim

_NEEDS_LOGIN = "Sign in to check every byte."


class Showing(Events):
    """The events of a result link."""

    async def show(self, wanted: str, request: gr.Request, login: Login) -> AsyncIterator[Update]:
        """Show the result that a link names, or a message why there is none.

        What the report claims comes first. A moment later it has been compared with the headers of both repos.
        """
        form, token = self.form, self.site.token(request, login)
        hidden: Update = {form.check: gr.Button(visible=False), form.result_map: "", form.result_details: ""}
        if not wanted:
            yield {form.result: "", **hidden}
            return
        try:
            result = await patient(self.desk.results.read)(wanted, token)
            claimed = claim(result.report, result.files)
            places = self.places(result.report, result.repo_id, result.revision, request, is_pinned="@" in wanted)
            yield {form.result: _certificate(result, claimed, places), **hidden}
            if claimed.level != "contradicted":
                yield await patient(self._judged)(result, places, token)
        except ShardingError as error:
            yield {form.result: problem(error), **hidden}

    def _judged(self, result: Result, places: Places, token: str | None) -> Update:
        """Return the panels of a result that has been compared with the headers of both repos."""
        form, report = self.form, result.report
        with readers(1) as pool:
            pool.submit(self.desk.lookup.answer_seconds, result.repo_id)  # the forecast below needs it
            trust = self.desk.results.trust(result, token)
        if trust.level == "contradicted":
            return {form.result: _certificate(result, trust, places)}
        copy, original, changed = self._both(result, token)
        checkable = can_check(report, trust)
        reading = self.desk.forecast(original, copy) if checkable and original else None
        drawn = map_of_copy(copy, original, report.plan.stages, changed)
        return {
            form.result: _certificate(result, trust, places, reading),
            form.result_details: details_panel(report, places, trust, self.desk.results.seconds_of(result)),
            form.result_map: map_panel(drawn, result.repo_id, sides=("Source", "Copy")),
            form.check: gr.Button(visible=checkable and token is not None),
            form.check_message: message(_NEEDS_LOGIN, remedy=SIGN_IN) if checkable and token is None else "",
        }

    def check(self, wanted: str, request: gr.Request, login: Login) -> Update:
        """Start the job that reads every byte of the result and of its source."""
        form, refusal = self.form, ("Checking every byte needs a login.", _NEEDS_LOGIN, SIGN_IN)
        try:
            taken = self.desk.submit_check(wanted, *self.signed_in(request, login, refusal))
        except ShardingError as error:
            return {form.check_message: problem(error)}
        return {form.check: gr.Button(visible=False), form.outcome: gr.Column(visible=False), **self.taken(taken)}

    def list_tensors(self, wanted: str, chosen: gr.EventData, request: gr.Request, login: Login) -> str:
        """List the tensors in the chosen column of the map."""
        token = self.site.token(request, login)
        try:
            copy, original, _ = self._both(self.desk.results.judge(wanted, token)[0], token)
        except ShardingError as error:
            return problem(error)
        placed = [(tensor, tensor.file) for tensor in copy.tensors]
        return tensors_of(map_of_copy(copy, original), placed, original.tensors if original else (), chosen)

    def _both(self, result: Result, token: str | None) -> tuple[Checkpoint, Checkpoint | None, frozenset[str]]:
        """Return the copy, its source if that can be read, and the names of the tensors that a merge changes."""
        source, copy, merge = result.report.source, f"{result.repo_id}@{result.revision}", result.report.plan.merged
        original, changed = None, frozenset[str]()
        if source.kind == "hub":
            pinned = source.ref.pinned
            with suppress(ShardingError):
                original = self.desk.models.inspect(pinned, source.variant, token)
                if merge and merge.changed and merge.adapter.kind == "hub":
                    options = Options(variant=source.variant, adapter=merge.path)
                    changed = changed_names(self.desk.models.plan(pinned, options, token)[1])
        return self.desk.models.inspect(copy, "", token), original, changed


def _certificate(result: Result, trust: Trust, places: Places, reading: Forecast | None = None) -> str:
    if trust.level == "contradicted":
        text = f"The report in {result.repo_id} does not match the repos, so it is not shown."
        return message(text, " ".join(trust.reasons), "error")
    return result_panel(result.report, trust, places, reading)
