"""What a visitor orders is what they ticked and nothing else: asked of the rooms in this process."""

from collections.abc import Iterator
from typing import Any

import gradio as gr
import pytest

from sharding.core.limits import ROUNDS
from sharding.page.form import PRIVATE, PUBLIC, Shown
from sharding.page.jobs import Pushing
from sharding.page.planning import Planning
from sharding.planning.plan import identify_plan
from tests.conftest import random_tensors
from tests.hubs import exists, shard
from tests.page.rooms import Rooms, asks, login, told
from tests.promises import promise

MODEL, OTHER, HIDDEN, GATED = "bob/model", "bob/other", "alice/hidden", "alice/gated"
TAKEN, SECOND = "alice/taken", "alice/second"


@pytest.fixture(scope="module", autouse=True)
def repos(rooms: Rooms) -> None:
    for name in (MODEL, OTHER):
        rooms.push(name, random_tensors(3))
    rooms.push(HIDDEN, random_tensors(3), private=True)
    rooms.push(GATED, random_tensors(3), gated=True)
    for name in (TAKEN, SECOND):
        shard(rooms.hub, OTHER, name)


@pytest.fixture
def pushing(rooms: Rooms) -> Iterator[Pushing]:
    yield Pushing(rooms.desk, rooms.site, rooms.form)
    rooms.cancel_all()


def order(rooms: Rooms, source: str, destination: str, **values: object) -> dict[Any, Any]:
    """The form with `source` and `destination` filled in, with its plan, and else as it comes but for `values`."""
    namespace, _, name = destination.partition("/")
    given = rooms.given(repo=source, size="60kB", namespace=namespace, name=name, **values)
    plan_id = identify_plan(rooms.desk.models.plan(source, rooms.form.options_in(given), "hf_alice")[1])
    return {**given, rooms.form.shown: Shown(plan_id=plan_id)}


# --- Replacing a copy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ticked", "said_of"), [(True, ("", "")), (True, (MODEL, SECOND)), (True, (OTHER, TAKEN)), (False, (MODEL, TAKEN))]
)
def test_another_models_copy_is_not_replaced_by_a_tick_for_something_else(
    rooms: Rooms, pushing: Pushing, ticked: bool, said_of: tuple[str, str]
) -> None:
    form = rooms.form
    update = pushing.start(order(rooms, MODEL, TAKEN, replace=ticked, replaced=said_of), asks("alice"), None)
    assert rooms.waiting("alice") == []
    box = told(update, form.replace)
    assert (box["value"], box["visible"]) == (False, True)
    assert box["label"] == f"Replace the copy of {OTHER} in {TAKEN} with this copy of {MODEL}"
    assert update[form.replaced] == (MODEL, TAKEN)
    assert f"{TAKEN} holds a copy of {OTHER}" in update[form.start_message]


def test_another_models_copy_is_replaced_by_a_tick_for_it_and_no_other(rooms: Rooms, pushing: Pushing) -> None:
    form = rooms.form
    update = pushing.start(order(rooms, MODEL, TAKEN), asks("alice"), None)
    said = {"replace": True, "replaced": update[form.replaced]}
    refused = pushing.start(order(rooms, MODEL, SECOND, **said), asks("alice"), None)
    assert told(refused, form.replace)["value"] is False and rooms.waiting("alice") == []
    started = pushing.start(order(rooms, MODEL, TAKEN, **said), asks("alice"), None)
    (waits,) = rooms.waiting("alice")
    assert (waits.destination, waits.overwrite) == (TAKEN, True)
    assert waits.source.startswith(f"{MODEL}@") and started[form.job].endswith(f"/{TAKEN}")


def test_what_is_free_is_not_written_over_though_a_tick_is_left(rooms: Rooms, pushing: Pushing) -> None:
    pushing.start(order(rooms, MODEL, "alice/new", replace=True, replaced=(MODEL, TAKEN)), asks("alice"), None)
    (waits,) = rooms.waiting("alice")
    assert (waits.destination, waits.overwrite) == ("alice/new", False)


def test_a_new_plan_starts_nothing_under_a_name_that_is_none(rooms: Rooms, pushing: Pushing) -> None:
    form = rooms.form
    unnamed = {**order(rooms, MODEL, "alice/"), form.name: ""}
    proposed = told(pushing.propose(unnamed, asks("alice"), None), form.proposed)
    for name, can_start in (("mine", True), ("", False), ("a--b", False), ("x.git", False)):
        given = {**unnamed, form.name: name, form.proposed: proposed["value"]}
        assert told(pushing.propose(given, asks("alice"), None), form.start)["interactive"] is can_start, name


# --- What nobody has ticked ---------------------------------------------------------------------------------


def test_a_form_that_nobody_touched_asks_for_no_more_than_a_copy(rooms: Rooms, pushing: Pushing) -> None:
    form = rooms.form
    boxes = {name for name, part in form.by_name.items() if isinstance(part, gr.Checkbox)}
    assert boxes == {"dequantize", "overflow", "permitted", "measure", "replace"}
    assert not any(form.by_name[name].value for name in boxes)
    pushing.start(order(rooms, MODEL, "alice/plain"), asks("alice"), None)
    (waits,) = rooms.waiting("alice")
    assert not (waits.compare_rounds or waits.confirmed or waits.overwrite or waits.restart or waits.private)
    assert (waits.options.dtype, waits.options.allow_overflow, waits.options.dequantize) == ("keep", False, False)
    assert waits.proof == "read"
    rooms.cancel_all()
    given = {"measure": True, "visibility": PRIVATE, "proof": "stated"}
    pushing.start(order(rooms, MODEL, "alice/plain", **given), asks("alice"), None)
    (waits,) = rooms.waiting("alice")
    assert (waits.compare_rounds, waits.private, waits.proof) == (ROUNDS, True, "stated")


def test_loading_is_offered_for_each_model_without_a_tick_of_its_own(rooms: Rooms) -> None:
    planning = Planning(rooms.desk, rooms.site, rooms.form)
    box = told(planning.see(order(rooms, MODEL, "alice/x", measure=True), asks("alice"), None), rooms.form.measure)
    assert box.get("value") is not True


SAID = {
    HIDDEN: (True, "The copy may be public, although the original is private"),
    GATED: (True, "The terms of the model allow a public copy"),
    MODEL: (False, None),
}


@pytest.mark.parametrize("source", SAID)
def test_what_was_said_of_one_model_is_not_said_of_the_next(rooms: Rooms, source: str) -> None:
    """Its tick that a public copy is allowed is taken away, whether the next one asks for such a word or not."""
    form, planning = rooms.form, Planning(rooms.desk, rooms.site, rooms.form)
    for before in (True, False):
        update = planning.see(order(rooms, source, "alice/x", permitted=before), asks("alice"), None)
        box, (asked, label) = told(update, form.permitted), SAID[source]
        assert (box["value"], box["visible"]) == (False, asked)
        assert box["label"] == label or not asked
        assert told(update, form.visibility).get("value") == (PRIVATE if asked else None)


@pytest.mark.parametrize("source", [HIDDEN, GATED])
def test_a_public_copy_of_what_is_not_public_is_ordered_with_a_tick_only(
    rooms: Rooms, pushing: Pushing, source: str
) -> None:
    update = pushing.start(order(rooms, source, "alice/shown", visibility=PUBLIC), asks("alice"), None)
    assert rooms.waiting("alice") == [] and "public" in update[rooms.form.start_message]
    assert told(update, rooms.form.replace)["visible"] is False
    pushing.start(order(rooms, source, "alice/shown", visibility=PUBLIC, permitted=True), asks("alice"), None)
    (waits,) = rooms.waiting("alice")
    assert (waits.private, waits.confirmed) == (False, True)
    assert not exists(rooms.hub, "alice/shown")


# --- Whose namespace ----------------------------------------------------------------------------------------


@promise("docs/security.md#who-can-do-what")
def test_a_visitor_writes_where_they_name_and_nobody_without_a_login(rooms: Rooms, pushing: Pushing) -> None:
    on_space = Pushing(rooms.desk, rooms.space, rooms.form)
    for destination in ("alice/x", "acme/x", "bob/x"):  # whether bob lets them, the Hub says
        on_space.start(order(rooms, MODEL, destination), asks(), login("alice"))
        assert [request.destination for request in rooms.waiting("alice")] == [destination]
        rooms.cancel_all()
    update = on_space.start(order(rooms, MODEL, "alice/x"), asks(), None)
    assert rooms.form.job not in update and update[rooms.form.start_message]
    assert rooms.waiting("alice") == rooms.waiting("bob") == []
