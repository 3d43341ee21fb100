"""See every request that changes something on a Hub, in order; let one fail for good, or kill the job before it."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from huggingface_hub import get_session

from sharding.localhub.faults import Fault
from tests.inhouse import InHouse
from tests.storage.recorder import Killed

_ASKING = re.compile(r"^(GET|HEAD) |/(preupload|paths-info|validate-yaml)\b|/info/lfs/objects/batch$")
"""Requests that change nothing, some of them by POST."""


@dataclass
class Requests:
    """The changing requests so far ("METHOD path"); before number `dies_at` the process is killed."""

    dies_at: int | None = None
    made: list[str] = field(default_factory=list)
    is_dead: bool = False

    def take(self, request: Any) -> None:
        if self.is_dead:
            raise Killed
        asked = f"{request.method} {request.url.path}"
        if not _ASKING.search(asked):
            if self.dies_at == len(self.made):
                self.is_dead = True
                raise Killed
            self.made.append(asked)


@contextmanager
def requests(*, dies_at: int | None = None) -> Iterator[Requests]:
    """Note the changing requests of the block. A `Killed` that comes out of it ends here."""
    noted, hooks = Requests(dies_at), get_session().event_hooks
    get_session().event_hooks = {**hooks, "request": [*hooks["request"], noted.take]}
    try:
        yield noted
    except Killed:
        pass
    finally:
        get_session().event_hooks = hooks


class _From:
    """What stands for a pattern: it is found in the changing request number `number`, and each time that is repeated."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._again = ""
        self._lock = Lock()

    def search(self, asked: str) -> bool:
        with self._lock:
            if _ASKING.search(asked):
                return False
            self._left -= 1
            if self._left == -1:
                self._again = asked
            return asked == self._again


def failing_for_good(hub: InHouse, number: int, status: int = 500) -> AbstractContextManager[None]:
    """Have the Hub refuse changing request number `number` of the block, as often as it is repeated."""
    pattern: Any = _From(number)
    return hub.failing(Fault("status", status, pattern))
