"""What programs may do with whose token, and what the endpoints answer them: asked of the rooms in this process."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from sharding.core.errors import SourceError
from sharding.core.limits import MAX_SHOWN_REPORT_VALUES, QUESTION_SECONDS
from sharding.desk.questions import Later, patient
from sharding.page.api import Endpoints
from sharding.page.site import Site
from tests.conftest import LONGEST_SECONDS, in_a_loop, random_tensors
from tests.hubs import download, push, shard
from tests.page.rooms import Rooms, asks, login
from tests.page.sources import save_fp8, save_one
from tests.promises import promise

SMALL, HIDDEN, GATED = "bob/small", "alice/hidden", "alice/gated"


@pytest.fixture(scope="module", autouse=True)
def repos(rooms: Rooms) -> None:
    rooms.push(SMALL)
    rooms.push(HIDDEN, private=True)
    rooms.push(GATED, gated=True)


@pytest.fixture
def at_home(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoints]:
    """The endpoints on the machine of alice."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    yield Endpoints(rooms.desk, rooms.site)
    rooms.cancel_all()


@pytest.fixture
def on_space(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> Endpoints:
    """The endpoints on a Space with a secret HF_TOKEN of alice."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    return Endpoints(rooms.desk, rooms.space)


# --- Whose token counts -----------------------------------------------------------------------------------

SENT = {
    **dict.fromkeys(("Bearer hf_bob", "bearer  hf_bob ", "BEARER hf_bob"), "hf_bob"),
    **dict.fromkeys(("Bearer", "Bearer ", "Basic YTpi", "hf_bob", "Token hf_bob", "")),
    "Bearer hf_nobody": "hf_nobody",
}


def test_a_token_that_is_sent_is_all_that_counts_wherever_the_page_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    for site in (Site("http://127.0.0.1:9"), Site("http://127.0.0.1:9", "carol/space")):
        for signed_in in (None, login("alice")):
            for sent, token in SENT.items():
                assert site.token(gr.Request(headers={"authorization": sent}), signed_in) == token, sent


@promise("docs/security.md#who-can-do-what")
def test_without_one_the_login_of_the_machine_counts_at_home_and_that_of_the_visitor_on_a_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home, space = Site("http://127.0.0.1:9"), Site("http://127.0.0.1:9", "carol/space")
    for secret in ("hf_alice", "hf_carol"):
        monkeypatch.setenv("HF_TOKEN", secret)
        assert home.token(asks()) == secret
        assert space.token(asks()) is None
        assert space.token(asks(), login("bob")) == "hf_bob"


def test_a_program_sees_and_writes_what_its_token_allows_and_no_more(
    at_home: Endpoints, on_space: Endpoints, rooms: Rooms
) -> None:
    for endpoints in (at_home, on_space):
        assert endpoints.inspect(SMALL, asks())["tensors"] == 14
        assert endpoints.inspect(HIDDEN, asks("alice"))["tensors"] == 14
        assert endpoints.compare(SMALL, HIDDEN, asks("alice"))["tensors"] == 14
        for sent in ("Bearer hf_bob", "Bearer hf_nobody", "Bearer", "Basic YTpi", ""):
            with pytest.raises(gr.Error):
                endpoints.inspect(HIDDEN, asks(authorization=sent))
            with pytest.raises(gr.Error):
                endpoints.compare(SMALL, HIDDEN, asks(authorization=sent))
            if sent != "Bearer hf_bob":
                with pytest.raises(gr.Error):
                    endpoints.shard(SMALL, "alice/not-theirs", asks(authorization=sent))
    assert at_home.inspect(HIDDEN, asks())["tensors"] == 14
    with pytest.raises(gr.Error):
        on_space.inspect(HIDDEN, asks())
    with pytest.raises(gr.Error, match="Jobs need a login"):
        on_space.shard(SMALL, "alice/not-theirs", asks())
    assert rooms.waiting("alice") == rooms.waiting("bob") == []


# --- What is not public -------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [HIDDEN, GATED])
def test_a_public_copy_of_what_is_not_public_needs_a_word_to_that(
    at_home: Endpoints, rooms: Rooms, source: str
) -> None:
    name = f"alice/{source.partition('/')[2]}-copy"
    with pytest.raises(gr.Error, match="public"):
        at_home.shard(source, name, asks(), private=False)
    assert rooms.waiting("alice") == []
    taken = at_home.shard(source, name, asks(), private=False, public_copy_allowed=True)
    (waits,) = rooms.waiting("alice")
    assert (waits.private, waits.confirmed) == (False, True)
    assert taken["link"] == f"http://127.0.0.1:7860/?job={taken['job']}"


def test_a_private_copy_needs_no_word_and_none_is_put_into_anybodys_mouth(at_home: Endpoints, rooms: Rooms) -> None:
    for source, private in ((HIDDEN, True), (HIDDEN, None), (SMALL, None), (SMALL, True), (SMALL, False)):
        at_home.shard(source, "alice/some-copy", asks(), private=private)
        (waits,) = rooms.waiting("alice")
        assert (waits.private, waits.confirmed, waits.overwrite, waits.compare_rounds) == (private, False, False, 0)
        rooms.cancel_all()


def test_another_models_copy_is_replaced_with_a_word_only(at_home: Endpoints, rooms: Rooms) -> None:
    shard(rooms.hub, HIDDEN, "alice/taken")
    with pytest.raises(gr.Error, match="alice/taken holds a copy of alice/hidden"):
        at_home.shard(SMALL, "alice/taken", asks())
    at_home.shard(SMALL, "alice/taken", asks(), overwrite=True)
    (waits,) = rooms.waiting("alice")
    assert (waits.destination, waits.overwrite) == ("alice/taken", True)


def test_a_program_asks_for_ordinary_weights(at_home: Endpoints, rooms: Rooms, tmp_path: Path) -> None:
    push(rooms.hub, save_fp8(tmp_path / "fp8"), "bob/fp8", "hf_bob")
    assert "quantized" in [finding["code"] for finding in at_home.inspect("bob/fp8", asks())["findings"]]
    plan = at_home.plan("bob/fp8", asks(), dequantize=True)
    assert plan["asked"] == {"dequantize": True}
    assert [change["done"] for change in plan["made"]] == ["dequantized to bf16 (fp8, one scale for each 128 x 128)"]
    at_home.shard("bob/fp8", "alice/plain", asks(), dequantize=True, dtype="fp32")
    (waits,) = rooms.waiting("alice")
    assert (waits.options.dequantize, waits.options.dtype) == (True, "fp32")
    with pytest.raises(gr.Error, match="not quantized"):
        at_home.plan(SMALL, asks(), dequantize=True)


# --- Who asks -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llamas(rooms: Rooms, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Models of which transformers is asked, as the table does not have them."""
    folder = save_one(tmp_path_factory.mktemp("in") / "llama", random_tensors(1))
    (folder / "config.json").write_text('{"model_type": "mine"}')
    return [push(rooms.hub, folder, f"alice/llama-{number}") for number in range(10)]


def outcomes(endpoints: Endpoints, requests: list[gr.Request], sources: list[str], answers: Any) -> list[str]:
    """Ask for a plan of each source while the first is held up: "answered", or in which words it was refused."""

    async def ask() -> list[str]:
        go, asked = asyncio.Event(), list[str]()
        loop = asyncio.get_running_loop()

        def held(*question: Any, **more: Any) -> Any:
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(LONGEST_SECONDS)
            raise SourceError("There is no class for it.")

        def plan(source: str, request: gr.Request) -> str:
            try:
                endpoints.plan(source, request, "100kB", "blocks")
                return "answered"
            except Later:
                asked.append(source)
                raise
            except gr.Error as error:
                return str(error.message)

        answers(held)
        tasks = []
        for source, request in zip(sources, requests, strict=True):
            tasks.append(asyncio.create_task(patient(plan)(source, request)))
            while source not in asked and not tasks[-1].done():
                await asyncio.sleep(0.005)
        go.set()
        return list(await asyncio.gather(*tasks))

    return in_a_loop(ask())  # type: ignore[no-any-return]


def test_callers_without_a_login_are_their_sessions_and_those_of_tools_have_none(
    on_space: Endpoints, llamas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(held: Any) -> None:
        monkeypatch.setattr("sharding.model_class.architecture.ask_meta_model", held)

    tool, bob = asks(session="all tools", x_gradio_user="mcp"), asks("bob", session="another")
    busy = "Your last question about a model is still being answered. Try again in"
    same = outcomes(on_space, [asks(session="a"), asks(session="a"), asks(session="b")], llamas[:3], answers)
    assert same[0] == same[2] == "answered" and same[1].startswith(busy)
    assert outcomes(on_space, [tool, tool, tool], llamas[3:6], answers) == ["answered"] * 3
    logins = outcomes(on_space, [bob, asks("bob", session="third"), tool], llamas[6:9], answers)
    assert logins[0] == logins[2] == "answered" and logins[1].startswith(busy)


def test_what_transformers_is_asked_has_half_a_minute(
    on_space: Endpoints, rooms: Rooms, llamas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def answer(question: Any, limit_seconds: float) -> Any:
        given.append(limit_seconds)
        raise SourceError("There is no class for it.")

    monkeypatch.setattr("sharding.model_class.architecture.ask_meta_model", answer)
    on_space.plan(llamas[9], asks(), "100kB", "blocks")
    with pytest.raises(SourceError, match="no class"):
        rooms.desk.models.devices(llamas[9], "cuda:0=1GB,cpu=1GB")
    assert QUESTION_SECONDS == 30 and len(given) == 2
    assert all(29 < seconds <= 30 for seconds in given)


# --- Results ------------------------------------------------------------------------------------------------


def test_the_report_of_a_result_is_told_unless_something_contradicts_it(
    at_home: Endpoints, rooms: Rooms, tmp_path: Path
) -> None:
    shard(rooms.hub, SMALL, "alice/result")
    commit = rooms.hub.api().model_info("alice/result").sha
    told = at_home.result("alice/result", asks())
    assert set(told) == {"repo_id", "revision", "trust", "report"}
    assert (told["repo_id"], told["revision"], told["trust"]["level"]) == ("alice/result", commit, "fits")
    assert told["report"]["verification"]["identical"] and told["trust"]["reasons"]
    report = tmp_path / "sharding_report.json"
    document = json.loads((download(rooms.hub, "alice/result", tmp_path / "result") / report.name).read_text())
    document["shards"][1]["sha256"] = "0" * 64
    report.write_text(json.dumps(document))
    rooms.hub.api().upload_file(path_or_fileobj=report, path_in_repo=report.name, repo_id="alice/result")
    told = at_home.result("alice/result", asks())
    assert (told["trust"]["level"], told["report"]) == ("contradicted", None)
    assert "another SHA-256 than the report says" in told["trust"]["reasons"][0]
    assert at_home.result(f"alice/result@{commit}", asks())["report"]


def test_a_report_of_too_many_values_is_refused_before_anything_is_made_of_it(at_home: Endpoints, rooms: Rooms) -> None:
    api, costly = rooms.hub.api(), "holds more than a page can show"
    api.create_repo("alice/costly")
    for values, says in ((MAX_SHOWN_REPORT_VALUES + 1, costly), (MAX_SHOWN_REPORT_VALUES - 2, "")):
        text = b'{"a": [' + b"0," * values
        api.upload_file(path_or_fileobj=text, path_in_repo="sharding_report.json", repo_id="alice/costly")
        with pytest.raises(gr.Error) as refusal:
            at_home.result("alice/costly", asks())
        assert (costly in str(refusal.value.message)) == bool(says)
    for wanted, says in (
        (SMALL, "has no sharding_report.json"),
        ("bob/nothing", "does not exist"),
        ("../../etc", "is not the name of a repo"),
    ):
        with pytest.raises(gr.Error, match=says):
            at_home.result(wanted, asks())
