"""Keep answers until they are fetched, within limits: Gradio alone would keep those of 2,000 sessions."""

import asyncio
import sys
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import orjson
from gradio import queueing
from gradio.data_classes import PredictBodyInternal
from gradio.queueing import Queue
from gradio.server_messages import EventMessage, HeartbeatMessage, ProcessCompletedMessage
from gradio.state_holder import SessionState
from pydantic import BaseModel
from starlette.requests import Request

from sharding.core.errors import shortened
from sharding.core.limits import MAX_SESSIONS_KEPT

UNFETCHED_BYTES = 32_000_000  # Most bytes of answers that the page keeps until somebody fetches them.
UNFETCHED_SECONDS = 120.0  # Longest time that the page keeps answers that nobody fetches.
QUIET_SECONDS = 60.0  # Time after the last answer at which the page's stream of answers ends.
_PRINTED_LINES = 200
_STAYS_OPEN = "stays open"  # Among a browser's unfinished calls, so that Gradio does not end its stream.


class _Answer(ProcessCompletedMessage):
    """An answer that is sent without a copy. Pydantic's copy of 99,000 tensors takes 0.65 s in the event loop."""

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return dict(vars(self))


class Session(asyncio.Queue[EventMessage]):
    """The messages for one session of Gradio. `bytes` is their size, `since` the time when one was last fetched."""

    def __init__(self, sessions: "Sessions", name: str) -> None:
        super().__init__()
        self.bytes, self.listeners, self._sizes = 0, 0, deque[int]()
        self._sessions, self._name = sessions, name
        self.since = self.answered = sessions.clock()

    def put_nowait(self, item: EventMessage) -> None:
        """Add a message. A long error in it is shortened."""
        if isinstance(item, ProcessCompletedMessage):
            if not item.success and item.output.get("error"):
                item.output["error"] = shortened(str(item.output["error"]))
            item = _Answer.model_construct(**vars(item))
        self._sizes.append(_bytes(item))
        super().put_nowait(item)
        self.bytes += self._sizes[-1]
        self._sessions.forget(self)

    async def get(self) -> EventMessage:
        """Return the next message. Gradio ends the stream of one client of a session; this ends the others too."""
        self.listeners += 1
        try:
            message = await super().get()
        finally:
            self.listeners -= 1
        self.bytes, self.since = self.bytes - self._sizes.popleft(), self._sessions.clock()
        if not isinstance(message, HeartbeatMessage):
            self.answered = self.since
        elif self.empty() and self._sessions.is_over(self._name):
            return ProcessCompletedMessage(event_id="over", output={"error": "This call has ended."}, success=False)
        return message


class Sessions(OrderedDict[str, Any]):
    """Sessions by their hash, to replace the queue's own `pending_messages_per_session`."""

    def __init__(self, queue: Queue, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._queue, self.clock = queue, clock

    def __setitem__(self, session: str, messages: object) -> None:
        """Start a session. Gradio passes a queue without limits, which is not used."""
        super().__setitem__(session, Session(self, session))
        self.forget(self[session])

    def __missing__(self, session: str) -> Session:
        """Return a session that nobody reads, for a call whose own session was dropped."""
        return Session(self, session)

    def is_over(self, session: str) -> bool:
        """Return whether no call of a session waits or runs. If so, let Gradio end its streams."""
        waiting = [event for calls in self._queue.event_queue_per_concurrency_id.values() for event in calls.queue]
        running = [event for events in self._queue.active_jobs for event in events or ()]
        if any(event.session_hash == session and event.alive for event in (*waiting, *running)):
            return False
        stays_open = _STAYS_OPEN in self._queue.pending_event_ids_session.get(session, ())
        if stays_open and self.clock() - self[session].answered < QUIET_SECONDS:
            return False
        self._queue.pending_event_ids_session[session] = set()
        return True

    def forget(self, newest: Session) -> None:
        """Drop sessions without listeners: all old ones, and the oldest if there are too many or they are too large."""
        now, kept = self.clock(), sum(session.bytes for session in self.values())
        for name, session in list(self.items()):
            too_much = len(self) > MAX_SESSIONS_KEPT or kept > UNFETCHED_BYTES
            is_old = now - session.since > UNFETCHED_SECONDS
            if session is not newest and not session.listeners and (too_much or is_old):
                kept -= session.bytes
                del self[name]
                self._queue.pending_event_ids_session.pop(name, None)


def bound_answers(queue: Queue) -> None:
    """Make `queue` keep its limits, and sessions forget values, which Gradio keeps for deep links."""
    queueing.traceback = SimpleNamespace(print_exc=_print_error)  # type: ignore[attr-defined, assignment]
    queue.pending_messages_per_session = Sessions(queue)  # type: ignore[assignment]
    SessionState._update_value_in_config = lambda *_: None  # type: ignore[method-assign]
    push = queue.push

    async def and_stay_open(body: PredictBodyInternal, request: Request, username: str | None) -> tuple[Any, ...]:
        """Keep a browser's stream open after the last call. Else an act at that moment gets no answer."""
        session = body.session_hash  # None for a single call of the API, whose stream ends with its answer
        taken = await push(body, request, username)
        if session in queue.pending_event_ids_session and "sec-fetch-mode" in request.headers:
            queue.pending_event_ids_session[session].add(_STAYS_OPEN)
        return taken

    queue.push = and_stay_open  # type: ignore[method-assign]


def _print_error() -> None:
    lines = traceback.format_exc().splitlines()[-_PRINTED_LINES:]
    sys.stderr.writelines(f"{shortened(line)}\n" for line in lines)


def _bytes(message: EventMessage) -> int:
    return len(orjson.dumps(message, default=lambda part: vars(part) if isinstance(part, BaseModel) else str(part)))
