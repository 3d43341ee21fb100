"""What the page keeps of answers that nobody fetches, exactly; and of what went into calls, nothing."""

import asyncio
from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest
from gradio.server_messages import ProcessCompletedMessage
from gradio.state_holder import SessionState

from sharding.core.limits import MAX_SESSIONS_KEPT
from sharding.page.serving.answers import UNFETCHED_BYTES, UNFETCHED_SECONDS, Sessions, bound_answers
from tests.conftest import in_a_loop
from tests.promises import promise


class Clocked:
    """Sessions over a queue whose clock stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queue: Any = SimpleNamespace(pending_event_ids_session={})
        self.sessions = Sessions(self.queue, clock=lambda: self.now)

    def begin(self, name: str, size: int = 0) -> None:
        """Begin a session, with an answer of about `size` bytes."""
        self.queue.pending_event_ids_session[name] = {"event"}
        self.sessions[name] = asyncio.Queue()
        if size:
            self.answer(name, size)

    def answer(self, name: str, size: int) -> None:
        answer = {"data": ["x" * size]}
        self.sessions[name].put_nowait(ProcessCompletedMessage(output=answer, success=True))

    @property
    def kept(self) -> list[str]:
        assert set(self.queue.pending_event_ids_session) == set(self.sessions)
        return list(self.sessions)


@pytest.fixture
def clocked() -> Clocked:
    return Clocked()


@promise("docs/security.md#fill-the-memory-with-answers-that")
def test_as_many_of_the_newest_answers_are_kept_as_fit(clocked: Clocked) -> None:
    assert (UNFETCHED_BYTES, UNFETCHED_SECONDS) == (32_000_000, 120)
    for number in range(20):
        clocked.begin(f"s{number}", UNFETCHED_BYTES // 4 - 1000)
        assert clocked.kept == [f"s{n}" for n in range(max(0, number - 3), number + 1)]


def test_one_large_answer_takes_the_place_of_no_more_than_it_needs(clocked: Clocked) -> None:
    for number in range(9):
        clocked.begin(f"s{number}", UNFETCHED_BYTES // 10)
    clocked.begin("large", UNFETCHED_BYTES // 3)
    assert clocked.kept == [*(f"s{n}" for n in range(3, 9)), "large"]


def test_an_answer_waits_for_two_minutes_and_no_longer(clocked: Clocked) -> None:
    clocked.begin("old", 10)
    for now, name in ((UNFETCHED_SECONDS / 2, "middle"), (UNFETCHED_SECONDS, "new")):
        clocked.now = now
        clocked.begin(name, 10)
    assert clocked.kept == ["old", "middle", "new"]
    clocked.now = UNFETCHED_SECONDS + 1
    clocked.begin("newer")
    assert clocked.kept == ["middle", "new", "newer"]


def test_sessions_have_a_bound_as_well_and_the_oldest_go_first(clocked: Clocked) -> None:
    for number in range(MAX_SESSIONS_KEPT + 3):
        clocked.begin(f"s{number}")
    assert clocked.kept == [f"s{n}" for n in range(3, MAX_SESSIONS_KEPT + 3)]


@pytest.mark.parametrize("burden", ["old", "many", "large"])
def test_who_waits_for_an_answer_is_kept_whatever_else_there_is(clocked: Clocked, burden: str) -> None:
    async def listen() -> None:
        clocked.begin("listens")
        waiting = asyncio.create_task(clocked.sessions["listens"].get())
        await asyncio.sleep(0)
        clocked.now = 10 * UNFETCHED_SECONDS if burden == "old" else 0
        for number in range(2 * MAX_SESSIONS_KEPT if burden == "many" else 12):
            clocked.begin(f"s{number}", UNFETCHED_BYTES // 3 if burden == "large" else 0)
            assert "listens" in clocked.kept
        clocked.answer("listens", 10)
        assert (await waiting).success
        clocked.now = 20 * UNFETCHED_SECONDS
        clocked.begin("last")
        assert clocked.kept == ["last"]

    in_a_loop(listen())


def test_what_was_fetched_makes_room(clocked: Clocked) -> None:
    async def fetch() -> None:
        for number in range(6):
            clocked.begin(f"s{number}", UNFETCHED_BYTES // 2 - 1000)
            if number != 2:
                await clocked.sessions[f"s{number}"].get()
        assert clocked.kept == [f"s{number}" for number in range(6)]
        clocked.begin("half", UNFETCHED_BYTES // 2 - 1000)
        assert clocked.kept[-2:] == ["s5", "half"] and "s2" in clocked.kept
        clocked.answer("half", 5000)
        assert "half" in clocked.kept and "s2" not in clocked.kept

    in_a_loop(fetch())


def test_an_answer_larger_than_all_that_is_kept_waits_for_its_reader(clocked: Clocked) -> None:
    clocked.begin("large", 2 * UNFETCHED_BYTES)
    assert in_a_loop(clocked.sessions["large"].get()).success


def test_a_call_whose_session_is_forgotten_ends_all_the_same_and_a_long_error_is_cut(clocked: Clocked) -> None:
    clocked.answer("gone", 5)
    clocked.begin("s")
    error = ProcessCompletedMessage(output={"error": "x" * 900_000}, success=False)
    clocked.sessions["s"].put_nowait(error)
    assert len(in_a_loop(clocked.sessions["s"].get()).output["error"]) < 1500


@pytest.mark.parametrize("kind", ["plain", "update", "both"])
def test_a_session_keeps_nothing_of_what_went_into_a_call_or_came_out_of_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio keeps a megabyte of each for links to a state of the page, which this page does not make."""
    monkeypatch.setattr(SessionState, "_update_value_in_config", SessionState._update_value_in_config)
    given, answered = "given " * 1000, "answered " * 1000

    def answer(text: str) -> Any:
        assert text == given
        return {"plain": answered, "update": gr.update(value=answered), "both": gr.Textbox(value=answered)}[kind]

    async def call() -> tuple[str, str]:
        with gr.Blocks() as page:
            into, out = gr.Textbox(), gr.Textbox()
            page.load(answer, into, out)
        page.queue()
        bound_answers(page._queue)
        state = SessionState(page)
        done = await page.process_api(0, [given], state=state, request=gr.Request())
        return str(done["data"]), str(state.config_values) + str(state.state_data)

    said, kept = in_a_loop(call())
    assert answered in said
    assert given not in kept
    assert answered not in kept
