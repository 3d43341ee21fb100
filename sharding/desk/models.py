"""Inspect and plan models for all visitors, with shared caches."""

import ctypes
import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import uuid4

from sharding import job
from sharding.core import limits
from sharding.core.errors import SourceError, WeightsNeeded
from sharding.core.hints import Hints
from sharding.core.options import Options, Request
from sharding.core.origin import Role
from sharding.core.threads import readers
from sharding.core.values import Content, Plan
from sharding.desk.forecast import this_machine
from sharding.desk.overview import Overview, ask_overview
from sharding.desk.questions import Cache, Kept, Questions, answered, result_of
from sharding.model_class.architecture import hints_for, stored_names
from sharding.planning.devices import DevicePlan
from sharding.planning.plan import as_read, planned
from sharding.planning.steps import Asks
from sharding.storage.hub.client import Hub
from sharding.storage.hub.lookup import Lookup
from sharding.storage.locate import open_inputs
from sharding.verify.structure import Claims, Likeness, claims_of, compare_structure
from sharding.verify.verify import stored_digests

PAGE_WEIGHT_BYTES = 10_000_000  # Bytes of such weights that a page reads for anybody at once.
_TENSOR_BYTES = 500  # What a tensor takes in memory.
CACHED_CHECKPOINTS = 64  # Most checkpoints in the memory of the page.


class Headers(Cache):
    """A cache of checkpoints. One that was read with a token is only for callers with the same token."""

    def __init__(self, endpoint: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(CACHED_CHECKPOINTS, clock)
        self._endpoint = endpoint

    def read(
        self,
        inputs: Mapping[Role, str],
        options: Options,
        token: str | None,
        most_bytes: int = PAGE_WEIGHT_BYTES,
    ) -> Content:
        """Return the checkpoint in `inputs` as the owner of `token` may see it. Raises as `job.inspect`, and Later."""
        key = options.variant, options.format, *inputs.items(), fingerprint(token)
        if answer := answered(key):
            return answer.result()  # type: ignore[no-any-return]
        with self._lock:
            self.forget()
            public = self._kept.get((*key[:-1], ""))  # what was read without a login
            entry = public if public and public.answer.done() else self._kept.get(key)
            if entry is None:
                mine = self._kept[key] = Kept(self._clock())
        if entry:
            return result_of(key, entry.answer)  # type: ignore[no-any-return]
        try:
            read = partial(job.inspect_inputs, endpoint=self._endpoint, token=token)
            most = limits.MAX_PAGE_TENSORS, most_bytes
            checkpoint = read(inputs, options.variant, *most, format=options.format)
        except BaseException as error:
            with self._lock:
                self._kept.pop(key, None)
            mine.answer.set_exception(error)
            raise
        mine.weight = checkpoint.input_tensors + checkpoint.key_bytes // _TENSOR_BYTES
        mine.answer.set_result(checkpoint)
        return checkpoint


def fingerprint(token: str | None) -> str:
    """Return a hash that identifies the login of `token` without revealing it, or "" for no token."""
    return sha256(token.encode()).hexdigest() if token else ""


LARGE_PLAN_TENSORS = 20_000  # A plan from here on takes most of a second, so only one is made at a time.


class Models:
    """Caches headers and answers, and asks transformers one question at a time."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._link: Callable[[str], str] = Lookup(endpoint).link
        self._headers = Headers(endpoint)
        # To transformers; large plans, which need not wait behind those; comparisons, with two checkpoints in memory;
        # and what a plan must know of many bytes of weights.
        self._all = tuple(Questions() for _ in range(4))
        self._questions, self._large, self._comparisons, self._weights = self._all

    def tidy(self) -> None:
        """Drop what nobody has asked for in a while, and return freed memory to the system."""
        self._headers.forget()
        for questions in self._all:
            questions.forget()
        with suppress(AttributeError):  # musl and macOS return it on their own
            ctypes.CDLL(None).malloc_trim(0)

    def close(self) -> None:
        """Answer no more questions."""
        for questions in self._all:
            questions.close()

    def inspect(
        self,
        source: str,
        options: Options | None = None,
        token: str | None = None,
        session: str | None = None,
    ) -> Content:
        """Return the contents of a repo, as `job.inspect` does. Raises also Refused if too many wait for weights."""
        options = options or Options()
        inputs = {role: self._link(text) for role, text in {"model": source, **options.inputs}.items()}
        read = partial(self._headers.read, inputs, options, token)
        try:
            return read()
        except WeightsNeeded:
            origin = open_inputs(inputs, Hub(self._endpoint, token))
            owner = "" if origin.is_private is False else fingerprint(token)
            key = "weights", options.variant, origin.places, owner
            ask = partial(read, most_bytes=limits.MAX_PAGE_WEIGHT_BYTES)
            return self._weights.ask(key, _caller(token, session), ask, weight=None)

    def plan(
        self, source: str, options: Options, token: str | None = None, session: str | None = None
    ) -> tuple[Content, Plan]:
        """Return contents and plan, as `job.plan` does. `session` is a caller's without `token`. Raises Refused too."""
        Request(source, "", options).refuse_contradictions()
        this_machine()  # is measured while the headers are read
        checkpoint = self.inspect(source, options, token, session)
        caller = _caller(token, session)
        is_large = bool(checkpoint.others) or checkpoint.input_tensors >= LARGE_PLAN_TENSORS

        def run(what: str, make: Callable[[], Any]) -> Any:
            key = what, *_weights(checkpoint), options
            return self.in_turn(key, caller, make) if is_large else make()

        names = partial(self.names, caller=caller)
        plan = planned(checkpoint, options, Asks(partial(self.hints, caller=caller), names, run))
        return as_read(checkpoint, plan), plan

    def in_turn(self, key: Hashable, caller: str, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, which nobody else's runs beside. Raises Refused if too many wait."""
        return self._large.ask(key, caller, make, weight=None)

    def compare(
        self, original: str, copy: str, variant: str, token: str | None, session: str | None = None
    ) -> Likeness:
        """Return how alike two repos are, without reading weights, and what digests claim. Raises as `plan` does."""
        key = "compare", self._link(original), self._link(copy), variant, fingerprint(token)
        ask = partial(self._compared, original, copy, variant, token)
        return self._comparisons.ask(key, _caller(token, session), ask, weight=None)

    def _compared(self, original: str, copy: str, variant: str, token: str | None) -> Likeness:
        with readers(1) as pool:
            beside = pool.submit(self.inspect, copy, token=token)
            sides = self.inspect(original, Options(variant=variant), token), pool.result(beside)
        likeness = compare_structure(*sides)
        if likeness.verdict != "same-structure":
            return likeness
        return replace(likeness, claims=self._claims(sides, token))

    def _claims(self, sides: tuple[Content, Content], token: str | None) -> Claims | None:
        """Return how the digests compare that both repos store, None if one stores none that can be used."""
        found = []
        try:
            for side in sides:
                source = open_inputs({"model": self._link(side.source.text)}, Hub(self._endpoint, token))
                most = limits.MAX_SHOWN_REPORT_BYTES, limits.MAX_SHOWN_DIGESTS_VALUES
                found.append(stored_digests(source, side, *most))
        except SourceError:
            return None
        return claims_of(*found)

    def hints(self, checkpoint: Content, options: Options, caller: str) -> Hints:
        """Return the result of `hints_for`, cached by weights, dtype and ranks. Raises as `plan` does."""
        if not options.asks_class:
            return {}
        key = "hints", *_weights(checkpoint), options.dtype, options.ranks, options.dequantize
        ask = partial(hints_for, checkpoint, options, limit_seconds=limits.QUESTION_SECONDS)
        return self._questions.ask(key, caller, ask, len(checkpoint.tensors))

    def names(self, checkpoint: Content, caller: str) -> Mapping[str, str]:
        """Return the result of `stored_names`, cached by weights. Raises as `plan` does."""
        ask = partial(stored_names, checkpoint, limit_seconds=limits.QUESTION_SECONDS)
        key = "names", checkpoint.configs.get("", ""), *_weights(checkpoint)
        return self._questions.ask(key, caller, ask, len(checkpoint.tensors))

    def overview(self, source: str, options: Options, token: str | None, session: str | None = None) -> Overview:
        """Return the counts of a checkpoint for which `inspect` raises TooManyTensors. Raises as `plan` does."""
        link = self._link(source), options.variant, self._link(options.base) if options.base else ""
        ask = partial(ask_overview, (*link, self._endpoint, token))
        return self._large.ask(("overview", *link, fingerprint(token)), _caller(token, session), ask)

    def devices(self, source: str, budget: str, token: str | None = None, session: str | None = None) -> DevicePlan:
        """Return which block of `source` goes on which device, as `job.devices` does. Raises as `plan` does."""
        self.inspect(source, token=token)  # first, so that a model that cannot be read keeps nobody waiting
        place = partial(job.devices, endpoint=self._endpoint, token=token, limit_seconds=limits.QUESTION_SECONDS)
        link = self._link(source)
        key = "devices", link, budget, fingerprint(token)
        return self._questions.ask(key, _caller(token, session), partial(place, link, budget))


def _weights(checkpoint: Content) -> tuple[Hashable, ...]:
    return (checkpoint.inputs, tuple(part.variant for part in checkpoint.components))


def _caller(token: str | None, session: str | None) -> str:
    """Return an id of the caller. Not an address: all visitors of a Space have that of its proxy."""
    return fingerprint(token) or session or uuid4().hex
