"""Let commands take turns, each from the same state, and collect what every run cost."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from harness.processes import Cost, Surroundings, run
from harness.state import State


@dataclass(frozen=True, slots=True)
class Contender:
    """A command that takes part; with `limit_bytes`, inside a memory cgroup of that size.

    `within` makes what the command needs around it, anew for every run.
    """

    title: str
    command: tuple[str, ...]
    limit_bytes: int | None = None
    within: Callable[[], AbstractContextManager[Surroundings | None]] = nullcontext


def take_turns(contenders: Iterable[Contender], rounds: int, state: State) -> dict[str, list[Cost]]:
    """Run every contender once a round, each from `state`; return the costs in the order of the rounds, by title.

    Every second round goes backwards, so that a machine that grows slower favours nobody.
    """
    order = list(contenders)
    costs: dict[str, list[Cost]] = {contender.title: [] for contender in order}
    for number in range(1, rounds + 1):
        for contender in order:
            state.restore()
            with contender.within() as surroundings:
                cost = run(contender.command, limit_bytes=contender.limit_bytes, surroundings=surroundings)
            costs[contender.title].append(cost)
            ended = f" (ended with {cost.exit_status})" if cost.exit_status else ""
            print(f"round {number}: {contender.title}: {cost.seconds:.2f} s{ended}", file=sys.stderr, flush=True)
        order.reverse()
    return costs
