"""Progress is said rarely, at the end always, with the rate of the last while. The clock is the test's."""

import pytest

from sharding.core.events import Progress
from sharding.core.limits import PROGRESS_SECONDS
from sharding.transfer.lanes import _SAMPLES, Pace


def test_progress_has_bytes_rate_and_time_left() -> None:
    pace = Pace("transfer", 1000, now=50.0)
    assert pace.add(200, 52.0, "f") == Progress("transfer", 200, 1000, "f", 100.0, 8.0)
    assert pace.add(400, 54.0, "g") == Progress("transfer", 600, 1000, "g", 150.0, 400 / 150)
    assert Pace("transfer", 10, now=0.0).add(1, 4.0) == Progress("transfer", 1, 10, "", 0.25, 36.0)


def test_what_comes_too_soon_is_counted_and_said_with_the_next() -> None:
    pace = Pace("verify", 1000, now=0.0)
    assert pace.add(100, PROGRESS_SECONDS / 2) is None
    assert pace.add(100, PROGRESS_SECONDS) == Progress(
        "verify", 200, 1000, "", 200 / PROGRESS_SECONDS, 4 * PROGRESS_SECONDS
    )


def test_the_end_is_said_however_soon_it_comes() -> None:
    end = Pace("check", 10, now=3.0).add(10, 3.0)
    assert end == Progress("check", 10, 10, "", 0.0, None)
    assert Pace("check", 0, now=3.0).add(0, 4.0) == Progress("check", 0, 0, "", 0.0, None)


def test_the_rate_is_that_of_the_last_while() -> None:
    pace = Pace("transfer", 10**9, now=0.0)
    pace.add(10**6, 1.0)
    said = [pace.add(10, second) for second in range(2, _SAMPLES + 3)]
    assert said[-1] is not None
    assert said[-1].bytes_per_second == pytest.approx(10)
