"""Give the handlers of the page's events what they share."""

from dataclasses import dataclass
from typing import Any

import gradio as gr

from sharding.core.errors import Refused, Remedy
from sharding.desk import Desk
from sharding.page.form import Form
from sharding.page.links import Wish, query_of
from sharding.page.site import Site
from sharding.storage.hub.answers import Person

Refusal = tuple[str, str, Remedy | None]
"""A message, a hint and a remedy."""


@dataclass(frozen=True, slots=True)
class Events:
    """Handlers of events: they ask `desk`, and show its answers in `form`."""

    desk: Desk
    site: Site
    form: Form

    def signed_in(self, request: gr.Request, login: gr.OAuthToken | None, refusal: Refusal) -> tuple[Person, str]:
        """Return the visitor and their token. Raises Refused with the words of `refusal` if nobody is signed in."""
        token = self.site.token(request, login)
        if token is None:
            raise Refused(*refusal)
        return self.desk.lookup.who(token), token

    def taken(self, job: str) -> dict[Any, Any]:
        """Show the part of the page with a job that the desk has taken. Its address becomes that of the job."""
        form = self.form
        return {form.run: gr.Column(visible=True), form.job: job, form.query: query_of(Wish(job=job))}
