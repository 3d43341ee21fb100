"""The rooms of the page over a Hub in this process and a desk where jobs wait: what they answer, without a browser."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import numpy as np
import pytest
from gradio.blocks import Block

from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, Settings
from sharding.page.form import Form
from sharding.page.site import Site
from tests.conftest import in_a_loop
from tests.hubs import push
from tests.inhouse import InHouse, hub_in_house
from tests.page.sources import save_one

Given = dict[Any, Any]
Tensors = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Rooms:
    """A Hub, the desk, and the form; `site` is at home and `space` is a Space."""

    hub: InHouse
    desk: Desk
    form: Form

    @property
    def site(self) -> Site:
        return Site(self.hub.address)

    @property
    def space(self) -> Site:
        return Site(self.hub.address, "carol/shard-my-repo")

    def push(self, repo_id: str, tensors: Tensors | None = None, gated: bool = False, **options: object) -> None:
        """Have its owner make a repo with a model of 240 kB, or of `tensors`, in one file."""
        token = f"hf_{repo_id.partition('/')[0]}"
        with TemporaryDirectory() as folder:
            push(self.hub, save_one(Path(folder), tensors), repo_id, token, **options)
        if gated:
            self.hub.api(token).update_repo_settings(repo_id, gated="auto")

    def given(self, **values: object) -> Given:
        """What stands in the fields of a form that nobody has touched, but for `values`."""
        fields = self.form.by_name
        assert values.keys() <= fields.keys()
        return {field: values.get(name, getattr(field, "value", None)) for name, field in fields.items()}

    def waiting(self, user: str) -> list[JobRequest]:
        """What `user` has asked for and that waits for its turn."""
        return [record.request for record in self.desk.jobs_of(user) if record.state == "queued"]

    def cancel_all(self, *users: str) -> None:
        for user in users or ("alice", "bob"):
            for record in self.desk.jobs_of(user):
                self.desk.cancel(record.id, user)


@contextmanager
def rooms_over(folder: Path, **settings: object) -> Iterator[Rooms]:
    """Open the rooms over a new Hub; no job ever gets its turn, and what was asked in vain is asked again at once."""
    with pytest.MonkeyPatch.context() as patch, hub_in_house(folder / "hub", **settings) as hub:
        patch.setattr(Desk, "_work", lambda desk: None)
        patch.setattr("sharding.desk.questions._LOOK_SECONDS", 0.001)
        with Desk(Settings(folder / "desk", hub.address)) as desk:
            yield Rooms(hub, desk, in_a_loop(form()))


async def form() -> Form:
    """Return the form of a page. Outside of an event loop Gradio would leave one open."""
    with gr.Blocks():
        return Form(on_space=False)


def asks(user: str = "", session: str = "s", query: Mapping[str, str] | None = None, **headers: str) -> gr.Request:
    """A request of `user`, who sends a token, from the link with `query`."""
    sent = {"authorization": f"Bearer hf_{user}"} if user else {}
    sent |= {name.replace("_", "-"): text for name, text in headers.items()}
    return gr.Request(headers={"host": "127.0.0.1:7860", **sent}, session_hash=session, query_params=dict(query or {}))


def login(user: str) -> gr.OAuthToken:
    """What a visitor of a Space has who signed in as `user`."""
    return gr.OAuthToken(token=f"hf_{user}", scope="", expires_at=0)


def whole(updates: AsyncIterator[dict[Any, Any]]) -> dict[Any, Any]:
    """What a browser shows at the end of several updates."""

    async def gather() -> dict[Any, Any]:
        shown: dict[Any, Any] = {}
        async for update in updates:
            shown |= update
        return shown

    return in_a_loop(gather())


def told(update: dict[Any, Any], part: Block) -> dict[str, Any]:
    """What an update sends to the browser of `part`: its new settings, the value among them."""
    new = update[part]
    return new.constructor_args if isinstance(new, Block) else {"value": new}
