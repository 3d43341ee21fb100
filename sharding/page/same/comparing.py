"""Handle the events of "Is this copy the same?". Only reading every byte needs a login."""

import gradio as gr

from sharding.core.errors import Refused, ShardingError, VariantMissing
from sharding.core.text import format_bytes
from sharding.page.events import Events, Login
from sharding.page.form import Update
from sharding.page.goals import SAME
from sharding.page.links import Wish, query_of, read_wish
from sharding.page.panels import message, problem
from sharding.page.remedies import SIGN_IN
from sharding.page.result_panels import READ_HERE
from sharding.page.same.panels import likeness_panel
from sharding.verify.structure import Likeness
from sharding.verify.trust import Trust

_INTRODUCTION = message(
    "Name two repos.",
    "This page compares the names, shapes and dtypes of their tensors, and the hashes of their files. It reads no "
    "weights. Public repos need no login.",
)
_NEEDS_LOGIN = "Reading every byte needs a login."


class Comparing(Events):
    """The events of the section with two repos."""

    def arrive(self, request: gr.Request) -> Update:
        """Open the section if the link asks for it, with the repos that it names."""
        form, query = self.form, dict(request.query_params)
        wish = read_wish(query)
        if not (wish.compare or wish.against or query.get("goal") == SAME):
            return {form.same: gr.skip()}
        names = {form.original: wish.compare, form.copied: wish.against}
        return {**self.open(), **names, **self.begin(wish.compare, wish.against)}

    def open(self) -> Update:
        """Show the section instead of the form of a plan."""
        return {self.form.choose: gr.Column(visible=False), self.form.same: gr.Column(visible=True)}

    def begin(self, original: str, copied: str) -> Update:
        """Say that the headers are being read, which takes a second or two. Without two names, say what happens."""
        form, names = self.form, [(name or "").strip() for name in (original, copied)]
        waiting = _INTRODUCTION
        if all(names):
            waiting = message("Reading the headers of both repos …")
        elif any(names):
            waiting = message("Name the original and the copy.")
        return {form.likeness: waiting, form.read: gr.Button(visible=False), form.read_message: ""}

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
        # Differences can be read again, to see their numbers.
        can_read = likeness.have_common and trust.level not in READ_HERE
        names = [side.pinned for side in (likeness.original, likeness.copy)]
        return {
            form.likeness: likeness_panel(likeness, trust, self.site.endpoint),
            form.read: gr.Button(_read_words(likeness), visible=can_read, interactive=token is not None),
            form.read_message: message(_NEEDS_LOGIN, remedy=SIGN_IN) if can_read and token is None else "",
            form.compare: gr.Button(variant="secondary" if can_read else "primary"),
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

    def _compared(self, original: str, copied: str, token: str | None, session: str | None) -> tuple[Likeness, Trust]:
        """Compare two repos. If the original has no plain weights, take the first of its variants."""
        try:
            return self.desk.results.compare(original, copied, token, session)
        except VariantMissing as error:
            return self.desk.results.compare(original, copied, token, session, error.there[0])


def _read_words(likeness: Likeness) -> str:
    return f"Read every byte of both ({format_bytes(likeness.bytes)})"
