"""The work of planning a merge grows in step with its adapter, for every kind of name that an adapter can have."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bench.harness import hostile_adapters

LIMITED = {"ranks by expressions"}
"""Every expression is matched with every module, in a process with limits."""
HOUSE = str(Path(hostile_adapters.__file__).parents[2] / "sharding")


def work(act: Callable[[], object]) -> int:
    """How many lines of this package run, and how many functions of Python are called, by `act`."""
    done = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal done
        done += 1
        return count if frame.f_code.co_filename.startswith(HOUSE) else None

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return done


@pytest.mark.parametrize("kind", [kind for kind in hostile_adapters.KINDS if kind not in LIMITED])
def test_the_work_of_a_merge_grows_in_step_with_its_adapter(kind: str) -> None:
    small, large = (hostile_adapters.build(kind, number) for number in (100, 400))
    first, last = (work(partial(hostile_adapters.plan_merge, held)) for held in (small, large))
    assert last < 4.5 * first
