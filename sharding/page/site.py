"""Know where the page runs and who its visitors are, for the handlers of its events."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import gradio as gr

from sharding.core.environment import hub_endpoint, hub_token, space_hosts, space_id
from sharding.core.errors import Refused, Remedy, ShardingError
from sharding.core.values import Content
from sharding.desk import Desk
from sharding.page.form import Form, Update
from sharding.page.goals import GOALS, goals_of
from sharding.page.links import Wish, query_of
from sharding.page.result_panels import Places
from sharding.storage.hub.answers import Person

_MOST_EXAMPLES = 4
PUBLIC_HUB = "https://huggingface.co"

BADGE, CERTIFICATE = "/badge.svg", "/certificate.png"  # Paths that `serving.pictures` answers.


@dataclass(frozen=True, slots=True)
class Site:
    """The Hub of the page, the id of its Space if any, and the `origin` at which anybody reaches that Space."""

    endpoint: str
    space: str | None = None
    origin: str = ""

    @classmethod
    def from_environment(cls) -> "Site":
        """Return the site that the environment describes."""
        space, hosts = space_id(), space_hosts()
        return cls(hub_endpoint(), space, f"https://{hosts[0]}" if space and hosts else "")

    def token(self, request: gr.Request, login: gr.OAuthToken | None = None) -> str | None:
        """Return the caller's token: from `Authorization`, else from the login. Off a Space that is this machine's:
        `guard` lets no others through. On a Space nobody acts with its HF_TOKEN, which is the owner's."""
        sent = request.headers.get("authorization")
        if sent is not None:
            scheme, _, token = sent.partition(" ")
            return token.strip() or None if scheme.lower() == "bearer" else None
        if self.space:
            return login.token if login else None
        try:
            return hub_token()
        except Refused as error:
            raise gr.Error(f"{error.message} {error.hint}", print_exception=False) from error

    def address(self, request: gr.Request) -> str:
        """Return the start of every link to this page."""
        if self.space:
            return f"{PUBLIC_HUB}/spaces/{self.space}"
        return f"http://{request.headers.get('host', 'localhost')}/"

    @property
    def picture(self) -> str:
        """The address of the picture in previews of links, "" off a Space."""
        return f"{PUBLIC_HUB}/spaces/{self.space}/resolve/main/assets/result.png" if self.space else ""

    def drawn(self, path: str, place: str) -> str:
        """Return the address of the result in `place` as a BADGE or CERTIFICATE, "" if no other site can reach it."""
        return f"{self.origin}{path}{query_of(Wish(result=place))}" if self.origin else ""

    def examples(self, desk: Desk, goal: str, token: str | None) -> Sequence[str]:
        """Return a few models for a goal: well-known ones, or the samples that suit it on a Hub that has such."""
        if self.endpoint == PUBLIC_HUB:
            return GOALS[goal].examples
        there = dict[str, Content]()
        for name in desk.lookup.search("samples/"):
            with suppress(ShardingError):
                there[name] = desk.models.inspect(name, token=token)
        fitting = [name for name, checkpoint in there.items() if goal in goals_of(checkpoint)]
        likely = [name for name in fitting if GOALS[goal].is_likely(there[name])]
        return (likely or fitting)[:_MOST_EXAMPLES]


Login = gr.OAuthToken | None  # Who has signed in on a Space.
Refusal = tuple[str, str, Remedy | None]  # A message, a hint and a remedy.


@dataclass(frozen=True, slots=True)
class Asked:
    """What answers visitors and programs: it asks `desk`."""

    desk: Desk
    site: Site

    def viewer(self, token: str | None) -> Person | None:
        """Return the owner of `token`, None without one. Raises DestinationError if the token is no longer valid."""
        return self.desk.lookup.who(token) if token else None

    def signed_in(self, request: gr.Request, login: Login, refusal: Refusal) -> tuple[Person, str]:
        """Return the visitor and their token. Raises Refused with the words of `refusal` if nobody is signed in."""
        token = self.site.token(request, login)
        if not token:
            raise Refused(*refusal)
        return self.desk.lookup.who(token), token


@dataclass(frozen=True, slots=True)
class Events(Asked):
    """Handlers of events: they show the answers of the desk in `form`."""

    form: Form

    def places(self, repo_id: str, revision: str, request: gr.Request, is_pinned: bool = False) -> Places:
        """Return where the result in `repo_id` is. If it `is_pinned`, its links name the `revision`."""
        endpoint, place = self.site.endpoint, f"{repo_id}@{revision}" if is_pinned else repo_id
        link, badge = self.site.address(request) + query_of(Wish(result=place)), self.site.drawn(BADGE, place)
        space = self.site.space
        install = {"install": f"pip install git+{PUBLIC_HUB}/spaces/{space}"} if space else {}
        return Places(repo_id, endpoint, link, revision, badge, **install)

    def taken(self, job: str) -> Update:
        """Show the part of the page with a job that the desk has taken. Its address becomes that of the job."""
        form = self.form
        return {form.run: gr.Column(visible=True), form.job: job, form.query: query_of(Wish(job=job))}
