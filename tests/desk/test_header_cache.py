"""Headers are read once for all who may see them, and for nobody else."""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from threading import Barrier, Event
from types import SimpleNamespace

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.core.origin import Place, Role
from sharding.core.values import Component, Content
from sharding.desk.desk import Desk
from sharding.desk.models import Headers, Models
from tests.localhub.conftest import Server
from tests.promises import promise
from tests.tensors import stored_tensor

TENSORS = tuple(stored_tensor(f"t.{n}", "U8", (6,), "f", 6 * n, 6 * n + 6) for n in range(10))


class Readings:
    """Stands in for `job.inspect_inputs`: notes what is read and by whom."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None]] = []
        self.go = Event()
        self.go.set()
        self.broken = False

    def __call__(self, inputs: Mapping[Role, str], *_: object, token: str | None, **__: object) -> Content:
        source = inputs["model"]
        self.seen.append((source, token))
        assert self.go.wait(60)
        if self.broken:
            raise SourceError("It is broken.", "Try later.")
        return Content(Place("hub", source, "0" * 40), TENSORS, (), (), (), ())


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Readings:
    readings = Readings()
    monkeypatch.setattr(job, "inspect_inputs", readings)
    return readings


def got(headers: Headers, source: str, token: str | None) -> Content:
    return headers.read({"model": source}, Options(), token)


def test_visitors_who_ask_at_once_cost_one_reading(readings: Readings) -> None:
    headers, start = Headers("http://hub"), Barrier(20)

    def ask() -> Content:
        start.wait()
        return got(headers, "a/b", None)

    readings.go.clear()
    with ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(ask) for _ in range(20)]
        while not readings.seen and not any(answer.done() for answer in answers):
            pass
        readings.go.set()
        assert len({id(answer.result()) for answer in answers}) == 1
    assert readings.seen == [("a/b", None)]


def test_what_one_login_read_is_for_that_login_only_and_what_anybody_may_read_for_every_login(
    readings: Readings,
) -> None:
    headers = Headers("http://hub")
    for token in ("alice", "bob", None, "alice", "bob", "carol", None):
        got(headers, "a/b", token)
    assert readings.seen == [("a/b", "alice"), ("a/b", "bob"), ("a/b", None)]
    assert "alice" not in repr(vars(headers)), "no token is held"


def test_an_answer_is_that_of_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has asked for what before, with a login or without."""

    def read(inputs: Mapping[Role, str], variant: str, *_: object, **__: object) -> Content:
        return Content(Place("hub", f"{inputs} {variant}", "0" * 40), TENSORS, (), (), (), ())

    monkeypatch.setattr(job, "inspect_inputs", read)
    beside = [{}, {"base": "c/d"}, {"adapter": "c/d"}, {"adapter": "c/d@1"}, {"base": "c/d", "adapter": "c/d@1"}]
    asked = [*product(("a/b", "a/c"), ("", "fp16"), beside)]
    for tokens in ((None, "alice"), ("alice", None), ("bob", "alice")):
        headers = Headers("http://hub")
        for wanted in (asked, asked[::-1]):
            for token in tokens:
                for source, variant, more in wanted:
                    found = headers.read({"model": source, **more}, Options(variant=variant), token)  # type: ignore[dict-item]
                    assert found.source.repo_id == f"{ {'model': source, **more} } {variant}"


def test_who_shows_a_login_waits_for_no_answer_to_who_shows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gets none of it: a repo that is not there for one may be there for the other."""
    go, began = Event(), Event()

    def read(*_: object, token: str | None, **__: object) -> Content:
        if token:
            return Content(Place("hub", token, "0" * 40), TENSORS, (), (), (), ())
        began.set()
        assert go.wait(60)
        raise SourceError("There is no such repo.")

    monkeypatch.setattr(job, "inspect_inputs", read)
    headers = Headers("http://hub")
    with ThreadPoolExecutor(4) as pool:
        nobody = pool.submit(got, headers, "a/b", None)
        began.wait(60)
        found = [pool.submit(got, headers, "a/b", token) for token in ("alice", "bob")]
        try:
            assert [answer.result(60).source.repo_id for answer in found] == ["alice", "bob"]
        finally:
            go.set()
        assert isinstance(nobody.exception(), SourceError)
    assert got(headers, "a/b", "alice").source.repo_id == "alice"


@pytest.mark.parametrize(
    ("bound", "value"),
    [("models.CACHED_CHECKPOINTS", 3), ("questions.CACHED_TENSORS", 30), ("questions.CACHED_TENSORS", 39)],
)
def test_the_newest_headers_stay_where_they_are_too_many_or_too_large(
    readings: Readings, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(f"sharding.desk.{bound}", value)
    headers, names = Headers("http://hub"), [f"a/{letter}" for letter in "abcde"]
    for name in names:
        got(headers, name, None)
    readings.seen.clear()
    for name in names[::-1]:
        got(headers, name, None)
    assert [source for source, _ in readings.seen] == ["a/b", "a/a"]


def test_a_failure_is_told_to_all_who_wait_and_not_remembered(readings: Readings) -> None:
    headers = Headers("http://hub")
    readings.broken = True
    for _ in range(2):
        with pytest.raises(SourceError, match="broken"):
            got(headers, "a/b", None)
    readings.broken = False
    got(headers, "a/b", None)
    assert len(readings.seen) == 3


def test_what_transformers_knows_is_asked_for_each_variant_and_each_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def note(checkpoint: Content, options: Options, **_: object) -> dict[str, str]:
        asked.append((checkpoint.variant, options.strategy))
        return {}

    monkeypatch.setattr("sharding.desk.models.hints_for", note)
    models = Models("http://hub")
    ranks = [Options(strategy=strategy) for strategy in ("pp:2", "blocks", "pp:3", "blocks", "pp:2")]
    for variant in ("", "fp16", "", "fp16"):
        found = Content(Place("hub", "a/b", "0" * 40), TENSORS, (Component(variant=variant),), (), (), ())
        for options in [*ranks, Options(order="transformers")]:
            models.hints(found, options, "alice")
    assert asked == [(variant, strategy) for variant in ("", "fp16") for strategy in ("pp:2", "blocks", "pp:3")]


def test_another_size_is_planned_without_reading_anything(
    desk: Desk, small: str, hub: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reads = job.inspect_inputs, list[object]()
    monkeypatch.setattr(job, "inspect_inputs", lambda inputs, *a, **b: reads.append(inputs) or real(inputs, *a, **b))
    counts = [len(desk.models.plan(small, Options(size))[1].shards) for size in ("20kB", "60kB", "1GB")]
    desk.models.plan(f"{hub.address}/{small}/tree/main", Options("60kB"))
    assert counts == [14, 5, 1]
    assert reads == [{"model": f"{hub.address}/{small}{at}"} for at in ("", "/tree/main")]


@promise("docs/security.md#stop-the-page-with-a-million")
def test_large_models_are_planned_in_turn(monkeypatch: pytest.MonkeyPatch, readings: Readings) -> None:
    monkeypatch.setattr("sharding.desk.models.LARGE_PLAN_TENSORS", len(TENSORS))
    at_work, most, made = [0], [0], SimpleNamespace(made=())

    def plan(*_: object) -> SimpleNamespace:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        time.sleep(0.05)
        at_work[0] -= 1
        return made

    monkeypatch.setattr("sharding.planning.plan._laid_out", plan)
    models = Models("http://hub")
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(models.plan, f"a/b{n}", Options(), None, f"visitor {n}") for n in range(4)]
        assert [answer.result()[1] for answer in asked] == [made] * 4
    assert most == [1]
