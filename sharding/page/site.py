"""Where the page stands: on which Hub, on whose Space if on one, and so who its visitors are."""

from dataclasses import dataclass

import gradio as gr

from sharding.core.environment import hub_endpoint, hub_token, space_id
from sharding.core.errors import Refused
from sharding.desk import Desk
from sharding.storage.hub.answers import Person

EXAMPLES = (
    "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "Qwen/Qwen3-8B",
    "mistralai/Mistral-7B-Instruct-v0.3",
    "google-t5/t5-large",
)
_PUBLIC_HUB = "https://huggingface.co"


@dataclass(frozen=True, slots=True)
class Site:
    """A Hub and, on a Space, its id. Off a Space the page belongs to whoever started it."""

    endpoint: str
    space: str | None = None

    @classmethod
    def from_environment(cls) -> "Site":
        """Return what the environment says."""
        return cls(hub_endpoint(), space_id())

    def token(self, request: gr.Request, login: gr.OAuthToken | None = None) -> str | None:
        """Return the token of who asks: what is sent as `Authorization`, else that of a visitor who signed in.

        Whoever sends one acts with that and nothing else. Off a Space all others act with this machine's login:
        nobody else's request comes so far (see `guard`). A secret HF_TOKEN of a Space is its owner's, lent to nobody.
        """
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
        """Return the address that links to this page begin with."""
        if self.space:
            return f"{_PUBLIC_HUB}/spaces/{self.space}"
        return f"http://{request.headers.get('host', 'localhost')}/"

    def examples(self, desk: Desk) -> tuple[str, ...]:
        """Return a few models to try: well-known ones, or some that another Hub has."""
        return EXAMPLES if self.endpoint == _PUBLIC_HUB else tuple(desk.lookup.search("samples/")[: len(EXAMPLES)])


def person(desk: Desk, token: str | None) -> Person | None:
    """Return who bears `token`. Raises DestinationError where it is not valid any more."""
    return desk.lookup.who(token) if token else None
