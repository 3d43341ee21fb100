"""Whatever fails and whenever a job dies, a folder shows a whole result or none, and the next run finishes it."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sharding.core.errors import DestinationError
from tests.storage.publications import BEFORE, Scene
from tests.storage.recorder import Step, recorded

EVERY = 4
"""Of how many steps one is tried where all are not; each test tries others."""


def usually(*names: str, in_the_long_run: Iterable[str] = BEFORE) -> list[object]:
    """What is there before, and of how many steps one is tried: some with `names`, all in the long run."""
    marks = pytest.mark.thorough
    thorough = [pytest.param((name, 1), marks=marks, id=f"{name}, every step") for name in in_the_long_run]
    return [*(pytest.param((name, EVERY), id=name) for name in names), *thorough]


@pytest.fixture(params=usually("nothing", "shards", "one file"))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    """A folder that holds what the parameter says."""
    before, every = request.param
    place = BEFORE[before](tmp_path)
    place.every = every
    return place


of_shards = pytest.mark.parametrize("place", usually("shards", in_the_long_run=["shards", "a pipeline"]), indirect=True)


def some(place: Scene, first: int, work: Callable[[], object]) -> list[tuple[int, Step]]:
    """The steps that something takes from here, with their numbers; all of them or every few from `first`."""
    return list(enumerate(steps_of(work)))[first % place.every :: place.every]


def steps_of(work: Callable[[], object]) -> list[Step]:
    """The steps that something takes from here."""
    with recorded() as recorder:
        work()
    assert recorder.steps
    return recorder.steps


@contextmanager
def naming(number: int, step: Step) -> Iterator[None]:
    """Say of what goes wrong in the block at which step it was."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at step {number}: {step}")
        raise


def kill(work: Callable[[], object], number: int) -> None:
    """Have something killed before a step."""
    with recorded(dies_at=number) as recorder:
        work()
    assert recorder.is_reached


def die(place: Scene, number: int) -> None:
    """Run the job from the beginning until it is killed before a step."""
    place.again()
    kill(place.publish, number)


def test_a_job_that_dies_before_any_step_is_finished_by_the_next(place: Scene) -> None:
    place.again()
    for number, step in some(place, 0, place.publish):
        with naming(number, step):
            die(place, number)
            place.assert_whole_or_unfinished()
            place.publish()
            place.assert_finished()


@of_shards
def test_a_job_that_dies_before_any_step_is_discarded_without_a_trace(place: Scene) -> None:
    place.again()
    for number, step in some(place, 1, place.publish):
        with naming(number, step):
            die(place, number)
            place.discard()
            place.assert_discarded()


def half_published(place: Scene) -> int:
    """The step before which the last of the shards gets its name: most of the result is there then, and not shown."""
    place.again()
    named = [(number, step.to) for number, step in enumerate(steps_of(place.publish)) if step.kind == "rename"]
    return max(number for number, to in named if to and to.suffix == ".safetensors")


@of_shards
def test_a_job_that_dies_again_while_it_ends_what_was_half_published_is_finished_by_the_next(place: Scene) -> None:
    middle = half_published(place)
    die(place, middle)
    for number, step in some(place, 0, place.publish):
        with naming(number, step):
            die(place, middle)
            kill(place.publish, number)
            place.assert_whole_or_unfinished()
            place.publish()
            place.assert_finished()


@of_shards
def test_a_discard_that_dies_before_any_step_is_ended_by_the_next_or_made_up_for(place: Scene) -> None:
    middle = half_published(place)
    die(place, middle)
    for number, step in some(place, 0, place.discard):
        for go_on, assert_ended in ((place.discard, place.assert_discarded), (place.publish, place.assert_finished)):
            with naming(number, step):
                die(place, middle)
                kill(place.discard, number)
                place.assert_whole_or_unfinished()
                go_on()
                assert_ended()


@of_shards
def test_a_step_that_fails_ends_the_job_in_words_and_the_next_run_finishes_it(place: Scene) -> None:
    place.again()
    said = []
    for number, step in some(place, 2, place.publish):
        with naming(number, step):
            place.again()
            with recorded(fails_at=number) as recorder:
                try:
                    place.publish()
                except DestinationError as error:
                    said.append(error)
            assert recorder.is_reached
            place.assert_whole_or_unfinished()
            place.publish()
            place.assert_finished()
    assert said
    assert all("cannot be written: a fault on purpose" in error.message and error.hint for error in said)
