"""Say what models are and how they would be cut, for all visitors together."""

import ctypes
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from uuid import uuid4

from sharding import job
from sharding.core.hints import Hints
from sharding.core.limits import LARGE_PLAN_TENSORS, QUESTION_SECONDS
from sharding.core.options import Options
from sharding.core.values import Checkpoint, Plan
from sharding.desk.header_cache import Headers, fingerprint
from sharding.desk.overview import Overview, Question, ask_overview
from sharding.desk.questions import Questions
from sharding.model_class.architecture import hints_for
from sharding.planning.devices import DevicePlan
from sharding.planning.planned import planned
from sharding.storage.hub.lookup import Lookup


class Models:
    """Reads headers once in a while, and asks transformers one question at a time."""

    def __init__(self, endpoint: str) -> None:
        """Read from the Hub at `endpoint`."""
        self._endpoint = endpoint
        self._link: Callable[[str], str] = Lookup(endpoint).link
        self._headers = Headers(endpoint)
        self._questions = Questions()
        self._large = Questions()
        """What reads or plans much, and asks transformers nothing: it waits for no such question."""

    def tidy(self) -> None:
        """Drop what nobody has asked for in a while, and give freed memory back to the system."""
        self._headers.forget()
        self._questions.forget()
        self._large.forget()
        with suppress(AttributeError):  # musl and macOS give it back by themselves
            ctypes.CDLL(None).malloc_trim(0)

    def close(self) -> None:
        """Answer no question any more."""
        self._questions.close()
        self._large.close()

    def inspect(self, source: str, variant: str, token: str | None, base: str) -> Checkpoint:
        """Return what is in `source`, as `job.inspect` does, for repos only. Raises UsageError, SourceError."""
        return self._headers.read(self._link(source), token, variant, self._link(base) if base else "")

    def plan(self, source: str, options: Options, token: str | None, session: str | None) -> tuple[Checkpoint, Plan]:
        """Return what is in `source` and which shards it would be cut into, as `job.plan` does, for a repo only.

        Planning anew with another size reads nothing. Who bears no `token` is known by their `session`. Raises
        UsageError, SourceError, and Refused where too many ask what takes long.
        """
        checkpoint = self.inspect(source, options.variant, token, options.base)
        caller = _caller(token, session)
        key = "plan", checkpoint.source, checkpoint.base, _variants(checkpoint), options

        def run(make: Callable[[], Plan]) -> Plan:
            is_large = len(checkpoint.tensors) >= LARGE_PLAN_TENSORS
            return self._large.ask(key, caller, make, weight=None) if is_large else make()

        return checkpoint, planned(checkpoint, options, partial(self.hints, caller=caller), run)

    def hints(self, checkpoint: Checkpoint, options: Options, caller: str) -> Hints:
        """Return what `hints_for` does, asked once for weights, a dtype and ranks. Raises as `plan` does."""
        if not options.asks_class:
            return {}
        weights = checkpoint.source, checkpoint.base, _variants(checkpoint)
        key = "hints", *weights, options.dtype, options.ranks, options.dequantize
        ask = partial(hints_for, checkpoint, options, limit_seconds=QUESTION_SECONDS)
        return self._questions.ask(key, caller, ask, len(checkpoint.tensors))

    def overview(self, source: str, variant: str, token: str | None, base: str, session: str | None) -> Overview:
        """Return the counts of a checkpoint for which `inspect` raises TooManyTensors. Raises as `plan` does."""
        link = self._link(source), variant, self._link(base) if base else ""
        ask = partial(ask_overview, Question(*link, self._endpoint, token))
        return self._large.ask(("overview", *link, fingerprint(token)), _caller(token, session), ask)

    def devices(self, source: str, budget: str, token: str | None, session: str | None) -> DevicePlan:
        """Return which block of `source` goes on which device, as `job.devices` does, for a repo only.

        Raises as `plan` does.
        """
        self.inspect(source, "", token, "")  # so that one that cannot be read, or is too large, keeps nobody waiting
        place = partial(job.devices, endpoint=self._endpoint, token=token, limit_seconds=QUESTION_SECONDS)
        link = self._link(source)
        key = "devices", link, budget, fingerprint(token)
        return self._questions.ask(key, _caller(token, session), partial(place, link, budget))


def _variants(checkpoint: Checkpoint) -> tuple[str, ...]:
    return tuple(component.variant for component in checkpoint.components)


def _caller(token: str | None, session: str | None) -> str:
    """Return who asks: a login, else a session, else somebody of their own.

    Never an address: behind the proxy of a Space all visitors have the same.
    """
    return fingerprint(token) or session or uuid4().hex
