"""Give the handlers of the page's events what they share."""

from dataclasses import dataclass

import gradio as gr

from sharding.core.errors import Refused, Remedy
from sharding.desk import Desk
from sharding.page.form import Form, Update
from sharding.page.links import Wish, query_of
from sharding.page.result_panels import Places, adapter_page
from sharding.page.site import Site
from sharding.report.schema import Report
from sharding.storage.hub.answers import Person

Login = gr.OAuthToken | None
"""Who has signed in on a Space."""
Refusal = tuple[str, str, Remedy | None]
"""A message, a hint and a remedy."""


@dataclass(frozen=True, slots=True)
class Events:
    """Handlers of events: they ask `desk`, and show its answers in `form`."""

    desk: Desk
    site: Site
    form: Form

    def signed_in(self, request: gr.Request, login: Login, refusal: Refusal) -> tuple[Person, str]:
        """Return the visitor and their token. Raises Refused with the words of `refusal` if nobody is signed in."""
        token = self.site.token(request, login)
        if not token:
            raise Refused(*refusal)
        return self.desk.lookup.who(token), token

    def places(
        self, report: Report, repo_id: str, revision: str, request: gr.Request, is_pinned: bool = False
    ) -> Places:
        """Return where the result in `repo_id` is. If it `is_pinned`, its links name the `revision`."""
        endpoint, place = self.site.endpoint, f"{repo_id}@{revision}" if is_pinned else repo_id
        source = f"{endpoint}/{report.source.ref.tree}" if report.source.kind == "hub" else None
        link, badge = self.site.address(request) + query_of(Wish(result=place)), self.site.badge(place)
        return Places(repo_id, f"{endpoint}/{repo_id}", link, source, revision, badge, adapter_page(report, endpoint))

    def taken(self, job: str) -> Update:
        """Show the part of the page with a job that the desk has taken. Its address becomes that of the job."""
        form = self.form
        return {form.run: gr.Column(visible=True), form.job: job, form.query: query_of(Wish(job=job))}
