"""Show the result in any repo, or how alike any two repos are. Only reading every byte needs a login."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Literal

import gradio as gr

from sharding.core.errors import Refused, Remedy, ShardingError, VariantMissing
from sharding.core.text import format_bytes
from sharding.core.threads import readers
from sharding.core.values import Content, Plan
from sharding.desk import JobStatus
from sharding.desk.judgement import reading_both, request_about
from sharding.desk.questions import patient
from sharding.drawing.model_map import map_of_copy
from sharding.page.comparison_panels import differences_panel, likeness_panel
from sharding.page.form import Update
from sharding.page.goals import SAME
from sharding.page.job_panels import has_outcome
from sharding.page.links import Wish, query_of, read_wish
from sharding.page.panels import map_panel, message, problem, tensors_of
from sharding.page.render import HOME, SIGN_IN, Help, help_with
from sharding.page.result_panels import READ_HERE, Places, details_panel, named, result_panel
from sharding.page.site import PUBLIC_HUB, Events, Login
from sharding.planning.devices import needed
from sharding.report.files import Result
from sharding.report.report import asked_of, decided_by
from sharding.storage.names import parse_address
from sharding.verify.structure import Likeness
from sharding.verify.trust import Trust, claim

_CHECK_LOGIN = "Sign in to check every byte."
_REFUSAL = ("This needs a login.", _CHECK_LOGIN, SIGN_IN)
SOON_SECONDS = 2.0  # The longest time that a result waits for headers before it shows what its report claims.


class Showing(Events):
    """The events of a result link."""

    async def show(self, wanted: str, request: gr.Request, login: Login) -> AsyncIterator[Update]:
        """Show the result that a link names; first what its report claims, if headers take long."""
        form, token = self.form, self.site.token(request, login)
        hidden: Update = {part: gr.Button(visible=False) for part in (form.check, form.load)}
        hidden |= {form.result_map: "", form.result_details: ""}
        if not wanted:
            yield {form.result: "", **hidden}
            return
        try:
            result = await patient(self.desk.results.read)(wanted, token)
            claimed = claim(result.report, result.files)
            places = self.places(result.repo_id, result.revision, request, is_pinned="@" in wanted)
            first = {**hidden, form.result: result_panel(result.report, claimed, places)}
            if claimed.level == "contradicted":
                yield first
                return
            judging = asyncio.ensure_future(patient(self._judged)(result, places, token))
            if not (await asyncio.wait({judging}, timeout=SOON_SECONDS))[0]:  # what is soon there would move it
                yield first
            yield {**hidden, **await judging}
        except ShardingError as error:
            yield {form.result: problem(error, await patient(self._ways)(wanted, token)), **hidden}

    async def made(self, place: str, token: str | None, request: gr.Request) -> Update:
        """Show the result in `place` at once as far as it is known."""
        result = await patient(self.desk.results.read)(place, token)
        places = self.places(result.repo_id, result.revision, request, is_pinned=True)
        return {self.form.wanted: place, **await patient(self._judged)(result, places, token)}

    def _ways(self, wanted: str, token: str | None) -> list[Help]:
        ways = [HOME] if token else [help_with(SIGN_IN), HOME]
        with suppress(ShardingError):
            place = parse_address(wanted, self.site.endpoint).text
            self.desk.lookup.card(place, token)  # there is a repo
            return [help_with(Remedy("plan_repo", place)), *ways]
        return ways

    def _judged(self, result: Result, places: Places, token: str | None) -> Update:
        form, report = self.form, result.report
        with readers(1) as pool:
            pool.submit(self.desk.lookup.answer_seconds, result.repo_id)  # the forecast below needs it
            trust = self.desk.results.trust(result, token)
        if trust.level == "contradicted":
            return {form.result: result_panel(report, trust, places)}
        copy, original, plan = self._both(result, token)
        checkable = trust.level in ("stated", "fits") and not report.needs_folder
        loadable = bool(original and original.has_loadable_copy and copy.is_plain_model and not report.needs_folder)
        reading = self.desk.forecast(original, copy) if checkable and original else None
        drawn = map_of_copy(copy, original, report.plan.stages, plan)
        # What loading costs tells something of both, so it is only for who can read both.
        loads = self.desk.findings(request_about("compare", result)) if original else None
        costs = loads.costs if loads else report.comparison
        again = "Measure again" if costs and costs.table else "Measure loading"
        return {
            form.result: result_panel(report, trust, places, reading),
            form.result_details: details_panel(report, places, trust, self.desk.results.seconds_of(result), loads),
            form.result_map: map_panel(drawn, result.repo_id, need=needed(copy), sides=("Source", "Copy")),
            form.check: gr.Button(visible=checkable and token is not None),
            form.load: gr.Button(again, visible=loadable and token is not None),
            form.check_message: message(_CHECK_LOGIN, remedy=SIGN_IN) if checkable and token is None else "",
        }

    def check(self, wanted: str, request: gr.Request, login: Login) -> Update:
        """Start the job that reads every byte of the result and of its source."""
        return self._submit("verify", wanted, request, login)

    def load(self, wanted: str, request: gr.Request, login: Login) -> Update:
        """Start the job that loads the result and its source in turn."""
        return self._submit("compare", wanted, request, login)

    def _submit(self, kind: Literal["verify", "compare"], wanted: str, request: gr.Request, login: Login) -> Update:
        form = self.form
        try:
            taken = self.desk.submit_about(kind, wanted, *self.signed_in(request, login, _REFUSAL))
        except ShardingError as error:
            return {form.check_message: problem(error)}
        hidden = {part: gr.Button(visible=False) for part in (form.check, form.load)}
        return {**hidden, form.outcome: gr.Column(visible=False), **self.taken(taken)}

    def list_tensors(self, wanted: str, chosen: gr.EventData, request: gr.Request, login: Login) -> str:
        """List the tensors in the chosen column of the map."""
        token = self.site.token(request, login)
        try:
            copy, original, plan = self._both(self.desk.results.judge(wanted, token)[0], token)
        except ShardingError as error:
            return problem(error)
        placed = [(tensor, tensor.file) for tensor in copy.tensors]
        return tensors_of(map_of_copy(copy, original, plan=plan), placed, original.tensors if original else (), chosen)

    def _both(self, result: Result, token: str | None) -> tuple[Content, Content | None, Plan | None]:
        """Return the copy, its source if that can be read, and the plan if other inputs or names count."""
        report, copy = result.report, f"{result.repo_id}@{result.revision}"
        original: Content | None = None
        plan: Plan | None = None
        if report.source.place.is_pinned:
            source, options = decided_by(report)
            with suppress(ShardingError):
                original = self.desk.models.inspect(source, options, token)
                if not report.needs_folder and any(one.by or not one.changed for one in report.plan.made):
                    plan = self.desk.models.plan(*asked_of(report), token)[1]
        return self.desk.models.inspect(copy, token=token), original, plan


_INTRODUCTION = (
    "Name two repos.",
    "This page compares the names, shapes and dtypes of their tensors, and the hashes of their files. It reads no "
    "weights. Public repos need no login.",
)
_EXAMPLES = (
    ("Qwen/Qwen3-8B", "unsloth/Qwen3-8B"),
    ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "unsloth/SmolLM2-1.7B-Instruct"),
)
_SAMPLES = (("samples/t5-tiny", "samples/t5-tiny-ranks"),)
_NEEDS_LOGIN = "Reading every byte needs a login."


class Comparing(Events):
    """The events of the section with two repos."""

    def arrive(self, request: gr.Request) -> Update:
        """Open the section if the link asks for it, with the repos that it names."""
        form, query = self.form, dict(request.query_params)
        wish = read_wish(query)
        if not (wish.compare or wish.against or wish.goal == SAME):
            return {form.same: gr.skip()}
        names = {form.original: wish.compare, form.copied: wish.against}
        update: Update = {form.choose: gr.Column(visible=False), form.same: gr.Column(visible=True), **names}
        update |= self.begin(wish.compare, wish.against)
        if not (wish.compare or wish.against):
            with suppress(ShardingError):  # examples are a courtesy
                update[form.likeness] = message(*_INTRODUCTION, ways=list(self._examples()))
        return update

    def _examples(self) -> Iterator[Help]:
        is_public = self.site.endpoint == PUBLIC_HUB
        for original, copy in _EXAMPLES if is_public else _SAMPLES:
            if is_public or copy in self.desk.lookup.search(copy):
                link = query_of(Wish(compare=original, against=copy))
                yield Help(label=f"Try {original} and {copy}", link=link)

    def begin(self, original: str, copied: str, compared: tuple[str, ...] = ()) -> Update:
        """Say that the headers are being read, or what happens, unless these two are `compared` already."""
        form, names = self.form, [(name or "").strip() for name in (original, copied)]
        if compared and all(f"{was}@".startswith(f"{name}@") for name, was in zip(names, compared, strict=False)):
            return {form.likeness: gr.skip()}
        waiting = message(*_INTRODUCTION)
        if all(names):
            waiting = message("Reading the headers of both repos …")
        elif any(names):
            waiting = message("Name the original and the copy.")
        hidden = {form.read: gr.Button(visible=False), form.read_message: ""}
        return {form.likeness: waiting, form.compare: gr.Button("Compare", variant="primary"), **hidden}

    def show(self, original: str, copied: str, request: gr.Request, login: Login) -> Update:
        """Show what is known of both repos without reading weights."""
        form, token = self.form, self.site.token(request, login)
        original, copied = (original or "").strip(), (copied or "").strip()
        if not (original and copied):
            return {form.compared: ()}
        try:
            likeness, trust = self._compared(original, copied, token, request.session_hash)
        except ShardingError as error:
            asked = query_of(Wish(compare=original, against=copied))
            return {form.likeness: problem(error), form.compared: (), form.query: asked}
        names, panel = [side.text for side in (likeness.original, likeness.copy)], ""
        status = self.desk.findings(reading_both(likeness)) if trust.level == "contradicted" else None
        if status and status.state == "failed" and has_outcome(status):
            panel = self.differences(status, token, self.site.address(request))
        # Differences whose numbers are not kept can be read again.
        can_read = likeness.have_common and trust.level not in READ_HERE and not panel
        return {
            form.likeness: self.told(names[1], token) + (panel or likeness_panel(likeness, trust, self.site.endpoint)),
            form.read: gr.Button(
                f"Read every byte of both ({format_bytes(likeness.bytes)})",
                variant="secondary" if likeness.verdict == "different" else "primary",
                visible=can_read,
                interactive=token is not None,
            ),
            form.read_message: message(_NEEDS_LOGIN, remedy=SIGN_IN) if can_read and token is None else "",
            form.compare: gr.Button("Compare again", variant="secondary"),
            form.compared: (*names, likeness.variant),
            form.query: query_of(Wish(compare=original, against=copied)),
        }

    def read(self, compared: tuple[str, ...], request: gr.Request, login: Login) -> Update:
        """Start the job that reads every byte of both repos, at the commits that are shown."""
        form = self.form
        try:
            who, token = self.signed_in(request, login, (_NEEDS_LOGIN, "Sign in first.", SIGN_IN))
            if not compared:
                raise Refused("There is nothing to read yet.", "Compare two repos first.")
            original, copied, variant = compared
            taken = self.desk.submit_comparison(original, copied, variant, who, token)
        except ShardingError as error:
            return {form.read_message: problem(error)}
        return {form.same: gr.Column(visible=False), **self.taken(taken)}

    def told(self, copy: str, token: str | None) -> str:
        """Return the message that a `copy` need not be the same, if its report names other weights, else ""."""
        with suppress(ShardingError):
            beside = self.desk.results.read(copy, token).report.source.beside
            if others := " and ".join(named(place) for place in beside if place.gives_numbers):
                text = f"The report of the copy says that {others} went into it, so it need not be the same."
                ways = [Help(label="Check that on its result", link=query_of(Wish(result=copy)))]
                return message(text, ways=ways)
        return ""

    def differences(self, status: JobStatus, token: str | None, address: str) -> str:
        """Return by how much the tensors differ that a job has compared. Only the headers name those that do not."""
        names = set[str]()
        with suppress(ShardingError):
            copy = self.desk.models.inspect(status.request.destination, token=token)
            names = {tensor.name for tensor in copy.tensors}
        return differences_panel(status, names, self.site.endpoint, address)

    def _compared(self, original: str, copied: str, token: str | None, session: str | None) -> tuple[Likeness, Trust]:
        """Compare two repos. If the original has no plain weights, take the first of its variants."""
        try:
            return self.desk.results.compare(original, copied, token, session)
        except VariantMissing as error:
            return self.desk.results.compare(original, copied, token, session, error.there[0])
