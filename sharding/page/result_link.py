"""Show the result in any repo, from a report there that anybody may have written."""

from contextlib import suppress
from typing import Any

import gradio as gr

from sharding.core.errors import Refused, ShardingError
from sharding.core.values import Checkpoint
from sharding.desk import Desk
from sharding.drawing.model_map import map_of_copy
from sharding.page.form import Form
from sharding.page.links import Wish, query_of
from sharding.page.panels import map_panel, message, problem, tensors_of
from sharding.page.remedies import SIGN_IN
from sharding.page.result_panels import Places, can_check, details_panel, result_panel
from sharding.page.site import Site, person
from sharding.report.fetch import Result
from sharding.verify.trust import Trust

_NEEDS_LOGIN = "Sign in to check every byte."


class Showing:
    """The events of a result link."""

    def __init__(self, desk: Desk, site: Site, form: Form) -> None:
        """Ask `desk`, and show its answers in `form`."""
        self._desk = desk
        self._site = site
        self._form = form

    def show(self, wanted: str, request: gr.Request, login: gr.OAuthToken | None) -> dict[Any, Any]:
        """Show the result that a link names, or a message why there is none."""
        form, token = self._form, self._site.token(request, login)
        hidden: dict[Any, Any] = {form.check: gr.Button(visible=False), form.result_map: "", form.result_details: ""}
        if not wanted:
            return {form.result: "", **hidden}
        try:
            result, trust = self._desk.judge(wanted, token)
        except ShardingError as error:
            return {form.result: problem(error), **hidden}
        if trust.level == "contradicted":
            text = f"The report in {result.repo_id} does not match the repos, so it is not shown."
            return {form.result: message(text, " ".join(trust.reasons), "error"), **hidden}
        checkable = can_check(result.report, trust)
        return {
            **self._panels(result, trust, wanted, request),
            form.result_map: map_panel(
                map_of_copy(*self._both(result, token), result.report.plan.stages), result.repo_id
            ),
            form.check: gr.Button(visible=checkable and token is not None),
            form.check_message: message(_NEEDS_LOGIN, remedy=SIGN_IN) if checkable and token is None else "",
        }

    def check(self, wanted: str, request: gr.Request, login: gr.OAuthToken | None) -> dict[Any, Any]:
        """Start the job that reads every byte of the result and of its source."""
        form, token = self._form, self._site.token(request, login)
        try:
            who = person(self._desk, token)
            if who is None or token is None:
                raise Refused("Checking every byte needs a login.", _NEEDS_LOGIN, SIGN_IN)
            taken = self._desk.submit_check(wanted, who, token)
        except ShardingError as error:
            return {form.check_message: problem(error)}
        return {
            form.check: gr.Button(visible=False),
            form.outcome: gr.Column(visible=False),
            form.run: gr.Column(visible=True),
            form.job: taken,
            form.query: query_of(Wish(job=taken)),
        }

    def list_tensors(self, wanted: str, chosen: gr.EventData, request: gr.Request, login: gr.OAuthToken | None) -> str:
        """List the tensors in the chosen column of the map."""
        token = self._site.token(request, login)
        try:
            copy, original = self._both(self._desk.judge(wanted, token)[0], token)
        except ShardingError as error:
            return problem(error)
        placed = [(tensor, tensor.file) for tensor in copy.tensors]
        return tensors_of(map_of_copy(copy, original), placed, original.tensors if original else (), chosen)

    def _both(self, result: Result, token: str | None) -> tuple[Checkpoint, Checkpoint | None]:
        """Return the checkpoint of the copy, and that of its source if it can be read."""
        source, copy = result.report.source, f"{result.repo_id}@{result.revision}"
        original = None
        if source.kind == "hub":
            with suppress(ShardingError):
                original = self._desk.inspect(f"{source.repo_id}@{source.revision}", source.variant, token)
        return self._desk.inspect(copy, "", token), original

    def _panels(self, result: Result, trust: Trust, wanted: str, request: gr.Request) -> dict[Any, Any]:
        report, endpoint = result.report, self._site.endpoint
        source = None
        if report.source.kind == "hub":
            source = f"{endpoint}/{report.source.repo_id}/tree/{report.source.revision}"
        place = f"{result.repo_id}@{result.revision}" if "@" in wanted else result.repo_id
        link = self._site.address(request) + query_of(Wish(result=place))
        places = Places(result.repo_id, f"{endpoint}/{result.repo_id}", link, source, self._site.badge(place))
        return {
            self._form.result: result_panel(report, trust),
            self._form.result_details: details_panel(report, places, trust, self._desk.seconds_of(result)),
        }
