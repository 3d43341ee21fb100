"""A short soak of the page, and some fuzzing of its routes; `make soak` does both for long."""

from collections.abc import Iterator

import pytest

from sharding.desk.questions import QUESTIONS_WAITING
from tests.promises import promise
from tests.scenarios.crowd import RUSH, rush
from tests.scenarios.fuzzed_routes import fuzz
from tests.scenarios.served import Page, served_page
from tests.scenarios.soak import LONGEST_SECONDS, allowed, soak

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with served_page(users=3) as page:
        yield page


def test_a_crowd_gets_an_answer_to_all_that_makes_sense_and_leaves_nothing_behind(page: Page) -> None:
    outcome = soak(page, visitors=10, seconds=15, seed=0)
    assert not outcome.notes.faults
    assert outcome.end.is_within(allowed(outcome.start))


@promise("docs/security.md#block-the-page-or-a-plan")
def test_who_asks_what_takes_long_keeps_nobody_else_waiting(page: Page) -> None:
    """While the few that are taken are answered, others see the page and plan by size, again and again."""
    notes, others = rush(page)
    assert 0 < notes.outcomes["question"]["busy"] <= RUSH - 1 - QUESTIONS_WAITING
    assert all(len(others.seconds[kind]) > 1 for kind in LONGEST_SECONDS)
    assert not notes.faults and not others.faults


def test_no_route_answers_anything_with_a_status_of_500(page: Page) -> None:
    fuzzed = fuzz(page, seconds=15, first_seed=0)
    assert fuzzed.conversations
    assert fuzzed.broken == []
