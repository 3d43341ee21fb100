"""What visitors ask of models: who waits for whom, who may see the answer, and how long it is kept."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import Refused, SourceError, TooManyTensors, UsageError
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Content
from sharding.desk.desk import Desk
from sharding.desk.jobs import Settings
from sharding.desk.models import Models
from sharding.desk.overview import Question
from sharding.desk.questions import Later, patient
from tests.conftest import in_a_loop, random_tensors, write_checkpoint
from tests.desk.actors import until
from tests.desk.conftest import ALICE, BOB
from tests.hubs import push
from tests.inhouse import InHouse


class Held:
    """Stands in for what takes long: transformers, and the process that counts. It answers when it may."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.go = {name: Event() for name in ("hints", "devices", "overview")}
        self.asked: list[str] = []
        patch.setattr("sharding.desk.models.hints_for", lambda *_, **__: self._answer("hints", {}))
        patch.setattr(job, "devices", lambda source, budget, **_: self._answer("devices", budget))
        patch.setattr("sharding.desk.models.ask_overview", lambda asked: self._answer("overview", asked[1]))

    def let_go(self) -> None:
        for event in self.go.values():
            event.set()

    def _answer(self, name: str, answer: object) -> object:
        self.asked.append(name)
        assert self.go[name].wait(60)
        return answer


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> Iterator[Held]:
    """As late as the desk that asks: it is closed when all is answered."""
    held = Held(monkeypatch)
    yield held
    held.let_go()


def ask(question: Callable[[], Any]) -> Any:
    """Ask, and wait for nobody: return the answer, or why there is none, or `Later` where it is to come."""

    async def run() -> Any:
        coming: list[Later] = []

        def once() -> Any:
            try:
                return question()
            except Later as later:
                coming.append(later)
                raise

        task = asyncio.create_task(patient(once)())
        while not (coming or task.done()):
            await asyncio.sleep(0.001)
        return coming[0] if coming else task.exception() or task.result()

    return in_a_loop(run())


def answer_of(asked: Any) -> Any:
    """Return the answer to what `ask` has asked. It may be there at once."""
    return asked.answer.result(60) if isinstance(asked, Later) else asked


@pytest.fixture(scope="module")
def hidden(hub: InHouse, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A private source of alice."""
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "in", {"model.safetensors": random_tensors(3)}, False)
    return push(hub, folder, "alice/hidden", private=True)


def of_class(desk: Desk, source: str, number: int, token: str | None, session: str | None) -> Any:
    return desk.models.plan(source, Options("60kB", f"pp:{number + 2}"), token, session)


def of_devices(desk: Desk, source: str, number: int, token: str | None, session: str | None) -> Any:
    return desk.models.devices(source, f"cpu={number + 1}GB", token, session)


def of_counts(desk: Desk, source: str, number: int, token: str | None, session: str | None) -> Any:
    return desk.models.overview(source, Options(variant=f"v{number}"), token, session)


@pytest.mark.parametrize("question", [of_class, of_devices, of_counts])
def test_who_asks_is_known_by_a_login_else_by_a_session(
    desk: Desk, held: Held, small: str, question: Callable[..., Any]
) -> None:
    """Each waits for one answer at most; nobody is taken for somebody else, however alike they look from outside."""
    numbers = count()

    def asks(token: str | None, session: str | None) -> Any:
        return ask(lambda: question(desk, small, next(numbers), token, session))

    def is_refused(token: str | None, session: str | None) -> bool:
        answer = asks(token, session)
        return isinstance(answer, Refused) and "still being answered" in answer.message

    waiting = [asks(ALICE, "one")]
    assert is_refused(ALICE, "two") and is_refused(ALICE, None) and is_refused(ALICE, "one")
    waiting += [asks(None, "one")]
    assert is_refused(None, "one")
    waiting += [asks(BOB, "one"), asks(None, "two"), asks(None, None), asks(None, None)]
    assert [type(answer) for answer in waiting] == [Later] * 6
    assert is_refused(BOB, "three") and is_refused(None, "two")
    held.let_go()
    assert [answer.answer.exception(60) for answer in waiting] == [None] * 6
    assert not isinstance(asks(ALICE, "one"), Refused)


def test_what_reads_or_plans_much_waits_for_no_class_and_no_class_for_it(
    desk: Desk, held: Held, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = ask(lambda: of_devices(desk, small, 0, None, "a"))
    until(lambda: held.asked == ["devices"])
    held.go["overview"].set()
    assert answer_of(ask(lambda: of_counts(desk, small, 1, None, "b"))) == "v1"
    monkeypatch.setattr("sharding.desk.models.LARGE_PLAN_TENSORS", 1)
    assert answer_of(ask(lambda: desk.models.plan(small, Options("60kB"), None, "c"))).shards
    assert not waits.answer.done()
    held.go["overview"].clear()
    counts = ask(lambda: of_counts(desk, small, 2, None, "b"))
    until(lambda: held.asked == ["devices", "overview", "overview"])
    held.go["devices"].set()
    assert waits.answer.result(60) == "cpu=1GB"
    assert answer_of(ask(lambda: of_devices(desk, small, 1, None, "c"))) == "cpu=2GB"
    assert not counts.answer.done()
    held.go["overview"].set()
    assert counts.answer.result(60) == "v2"


def test_counts_are_for_those_only_who_may_read_the_repo(
    desk: Desk, hidden: str, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody gets the answer to another login's question; the same login is answered once."""
    asked: list[str | None] = []

    def count_tensors(question: Question) -> int:
        source, variant, _, endpoint, token = question
        asked.append(token)
        found = job.inspect(source, variant=variant, endpoint=endpoint, token=token)
        return len(found.tensors)

    monkeypatch.setattr("sharding.desk.models.ask_overview", count_tensors)
    for _ in range(2):
        assert desk.models.overview(hidden, Options(), ALICE) == 5
        for token in (BOB, None):
            with pytest.raises(SourceError) as refusal:
                desk.models.overview(hidden, Options(), token)
            with pytest.raises(SourceError) as usual:
                desk.models.inspect(hidden, token=token)
            assert str(refusal.value) == str(usual.value)
    assert asked == [ALICE, BOB, None]
    assert desk.models.overview(small, Options(), BOB) == 14
    for wrong in ("./small", "/etc", "~", "--help"):
        with pytest.raises(SourceError):
            desk.models.overview(wrong, Options(), None)


def test_devices_are_refused_as_plans_are_before_anybody_waits(
    desk: Desk, held: Held, hidden: str, small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while another question is in work, and while too many wait."""
    waiting = [ask(lambda n=n: of_devices(desk, small, n, None, f"{n}")) for n in range(6)]
    until(lambda: held.asked)
    late = ask(lambda: of_devices(desk, small, 9, None, "late"))
    assert isinstance(late, Refused) and "too many visitors" in late.message
    for source, token in ((hidden, BOB), (hidden, None), ("alice/none", ALICE), ("./small", None), ("/etc", None)):
        refused = ask(lambda source=source, token=token: desk.models.devices(source, "cpu=1GB", token))
        usual = ask(lambda source=source, token=token: desk.models.plan(source, Options("60kB"), token))
        assert isinstance(refused, SourceError) and str(refused) == str(usual)
    with monkeypatch.context() as context:
        context.setattr("sharding.core.limits.MAX_PAGE_TENSORS", 3)
        assert isinstance(ask(lambda: desk.models.devices(hidden, "cpu=1GB", ALICE)), TooManyTensors)
    assert held.asked == ["devices"]
    held.let_go()
    assert [answer.answer.result(60) for answer in waiting] == [f"cpu={number}GB" for number in range(1, 7)]
    held.asked.clear()
    for _ in range(2):  # the answer is for those only who may read the repo
        assert desk.models.devices(hidden, "cpu=1GB", ALICE) == "cpu=1GB"
        for token in (BOB, None):
            with pytest.raises(SourceError, match="does not exist"):
                desk.models.devices(hidden, "cpu=1GB", token)
    assert held.asked == ["devices"]


class Read(Content):
    """Something large of which can be told whether anybody still holds it."""

    __slots__ = ("__weakref__",)


def test_tidying_drops_all_that_nobody_has_asked_for_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers, classes and counts; what is new stays."""
    made: list[weakref.ref[object]] = []

    def make(*_: object, **__: object) -> Read:
        found = Read(Place("hub", "a/b", "0" * 40), (), (), (), (), ())
        made.append(weakref.ref(found))
        return found

    for place in ("sharding.job.inspect_inputs", "sharding.job.devices", "sharding.desk.models.ask_overview"):
        monkeypatch.setattr(place, make)
    models = Models("http://hub")
    models.devices("a/b", "cpu=1GB", None, None)
    models.overview("a/b", Options(), None)
    models.tidy()
    gc.collect()
    assert len(made) == 3 and all(ref() for ref in made)
    monkeypatch.setattr("sharding.desk.questions.CACHED_SECONDS", -1)
    models.tidy()

    def is_dropped() -> bool:
        gc.collect()
        return not any(ref() for ref in made)

    until(is_dropped)
    models.close()


def test_a_desk_sweeps_and_tidies_now_and_then(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    swept, tidied = Event(), Event()
    monkeypatch.setattr("sharding.desk.desk.SWEEP_SECONDS", 0.01)
    monkeypatch.setattr("sharding.desk.desk.TIDY_SECONDS", 0.01)
    monkeypatch.setattr(Desk, "sweep", lambda _: swept.set())
    monkeypatch.setattr(Models, "tidy", lambda _: tidied.set())
    with Desk(settings):
        assert swept.wait(60) and tidied.wait(60)


def test_a_base_that_makes_no_sense_is_refused_wherever_it_is_given(desk: Desk, small: str) -> None:
    with pytest.raises(UsageError, match="configuration of its own"):
        desk.models.inspect(small, Options(base=small))
    with pytest.raises(UsageError, match="configuration of its own"):
        desk.models.plan(small, Options(base=small))
    with pytest.raises(SourceError):
        desk.models.inspect(small, Options(base="./small"))


def test_a_folder_of_this_machine_is_read_by_no_question(
    desk: Desk, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkpoint(tmp_path / small, {"model.safetensors": random_tensors(3)}, False)
    monkeypatch.chdir(tmp_path)
    assert len(desk.models.inspect(small).tensors) == len(desk.models.plan(small, Options("60kB"))[0].tensors) == 14
