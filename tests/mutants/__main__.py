"""Put faults into the code and ask whether a test notices: `python -m tests.mutants N`, or `all` for N.

N are drawn at random, small ones. Each is put into a copy of the tree, so that child processes have it too, and is tried
with the tests that execute its line: those of its wing, then all others, the quickest first.
"""

import argparse
import random
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from tests.conftest import ROOT
from tests.mutants.faults import Fault
from tests.mutants.trial import Refused, Rooms, Trial, Tried, faults_of, is_harmless

WINGS = ("planning", "transfer", "recipes", "verify", "storage", "desk", "fleet")
"""The wings in which faults are drawn."""
KINDS = ("noticed", "harmless", "survived")


def drawn(root: Path, wings: Sequence[str], count: int | None, seed: int) -> Iterator[tuple[str, Fault]]:
    """Yield `count` faults at random, as many of each wing, or all of them in order."""
    for number, wing in enumerate(wings):
        faults = faults_of(root, wing)
        if count is not None:
            random.Random(f"{seed} {wing}").shuffle(faults)
        share = None if count is None else (count + len(wings) - 1 - number) // len(wings)
        yield from islice(((wing, fault) for fault in faults if fault.is_one), share)


def try_faults(
    root: Path, faults: Sequence[tuple[str, Fault]], processes: int = 1, say: Callable[[str], None] = print
) -> list[Tried]:
    """Try each fault of a wing, as many at a time as `processes`. Raises Refused where tests fail without one."""
    with ExitStack() as stack, ThreadPoolExecutor(processes) as pool:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="m-"))) for _ in range(processes)]
        trials = [stack.enter_context(closing(Trial(root, folder))) for folder in folders]
        wings = sorted({Path(fault.file).parts[1] for _, fault in faults})
        rooms = Rooms(trials[0], wings, processes)
        idle = SimpleQueue[Trial]()
        for trial in trials:
            idle.put(trial)

        def attempt(wing: str, fault: Fault) -> Tried:
            trial = idle.get()  # there are as many threads
            try:
                noticed = trial.notices(fault, rooms.of(wing, fault), rooms.seconds)
            finally:
                idle.put(trial)
            outcome = "noticed" if noticed else "harmless" if is_harmless(root, fault) else "survived"
            say(f"{outcome}: {fault.file}, {fault.within}: {fault.was} → {fault.becomes}")
            return Tried(wing, fault, outcome)

        return list(pool.map(lambda given: attempt(*given), faults))


def table(tried: Sequence[Tried]) -> str:
    rows = [f"| wing | tried | {' | '.join(KINDS)} |", "|---|---|---|---|---|"]
    for wing in [*dict.fromkeys(one.wing for one in tried), "all"]:
        outcomes = Counter(one.outcome for one in tried if wing in (one.wing, "all"))
        rows.append(f"| {wing} | {outcomes.total()} | {' | '.join(str(outcomes[kind]) for kind in KINDS)} |")
    outcomes = Counter(one.outcome for one in tried)
    faults = outcomes["noticed"] + outcomes["survived"]
    share = 100 * outcomes["survived"] / faults if faults else 0
    rows += ["", f"Of {faults} faults that are not harmless {outcomes['survived']} survived: {share:.1f} %."]
    return "\n".join(rows)


_INTRODUCTION = """Small random faults in the code (mutmut's operators). Each is tried with the tests that execute its line. A fault is harmless
if nobody could notice it; `tests/mutants/harmless.toml` lists those with a reason."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", help='how many at random, spread over the wings; "all" takes hours')
    parser.add_argument("--wings", nargs="+", help="only in these")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws others")
    parser.add_argument("--processes", type=int, default=2, help="how many are tried at a time")
    parser.add_argument("--note", action="store_true", help="write the outcome into bench/RESULTS.md")
    options = parser.parse_args(arguments)
    if not re.fullmatch("all|[1-9][0-9]*", options.count):
        parser.error(f"{options.count} is neither a number nor all.")
    try:
        print(f"seed {options.seed}", flush=True)
        count = None if options.count == "all" else int(options.count)
        faults = list(drawn(ROOT, options.wings or WINGS, count, options.seed))
        tried = try_faults(ROOT, faults, options.processes, lambda line: print(line, flush=True))
    except Refused as refused:
        sys.exit(str(refused))
    survivors = [str(one.fault) for one in tried if one.outcome == "survived"]
    print(*survivors, table(tried), sep="\n\n")
    if options.note:
        from bench.harness.sections import RESULTS, replace_section

        words = [word for word in (arguments or sys.argv[1:]) if word != "--note"]
        command = f"Command: `python -m tests.mutants {' '.join(words)}`."
        replace_section(RESULTS, "## Mutants", f"{_INTRODUCTION}\n{command}\n\n{table(tried)}")


if __name__ == "__main__":
    main()
