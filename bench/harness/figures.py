"""Print what was measured as a Markdown table: median, smallest and largest of all rounds."""

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from harness.machine import describe_machine
from harness.processes import Cost

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """A value for every round, how it is written, and what it is meant to be."""

    title: str
    values: tuple[float, ...]
    form: str
    target: str = ""


def ratio(title: str, of: Iterable[float], to: Iterable[float], target: str = "") -> Figure:
    """Return `of` divided by `to`, round by round.

    >>> ratio("twice", [2.0, 4.0], [1.0, 2.0]).values
    (2.0, 2.0)
    """
    return Figure(title, tuple(one / other for one, other in zip(of, to, strict=True)), "{:.3f}", target)


def seconds(costs: Iterable[Cost]) -> tuple[float, ...]:
    """Return the wall time of every run."""
    return tuple(cost.seconds for cost in costs)


def anon_megabytes(costs: Iterable[Cost]) -> tuple[float, ...]:
    """Return the peak anonymous memory of every run, in units of 10⁶ bytes."""
    return tuple(cost.peak_anon_bytes / _MB for cost in costs)


def print_figures(
    title: str,
    figures: Iterable[Figure],
    costs: Mapping[str, Sequence[Cost]],
    facts: Iterable[str],
    folder: Path,
    libraries: tuple[str, ...],
) -> None:
    """Print as Markdown: `figures`, ratios first; `costs` by contender; `facts`; the machine with the file
    system of `folder` and `libraries`; the command line."""
    summary = Table("figure", "median", "min..max", "rounds", "target", box=box.MARKDOWN)
    for figure in figures:
        summary.add_row(figure.title, *_median_and_spread(figure), str(len(figure.values)), figure.target)
    single = Table("median (min..max)", *_COLUMNS, box=box.MARKDOWN)
    for contender, runs in costs.items():
        cells = [_median_and_spread(figure) for figure in _figures_of(runs)]
        single.add_row(contender, *(f"{middle} ({spread})" for middle, spread in cells))
    rate = min(cost.samples / cost.seconds for runs in costs.values() for cost in runs)
    others = [cost.others_cpu_seconds / cost.seconds for runs in costs.values() for cost in runs]
    company = f"Everybody else on the machine used {median(others):.2f} cores (median; {max(others):.2f} at most)."
    sampling = f"Anonymous memory: summed over all processes of a run, {rate:.0f} times a second or more often."
    machine = f"Machine: {describe_machine(folder, libraries)}."
    console = Console(width=250, highlight=False, markup=False, emoji=False)
    console.print(f"## {title}")
    console.print(summary)
    console.print(single)
    for fact in (*facts, sampling, machine, company, f"Command: `{command_line()}`"):
        console.print(f"- {fact}", soft_wrap=True)


_COLUMNS = ("time", "processor time", "peak anonymous memory", "peak of its cgroup, page cache included")


def _figures_of(costs: Sequence[Cost]) -> Iterator[Figure]:
    """Yield one figure for every column; the last is left out where no cgroup can be made."""
    yield Figure("", seconds(costs), "{:.3f} s")
    yield Figure("", tuple(cost.cpu_seconds for cost in costs), "{:.3f} s")
    yield Figure("", anon_megabytes(costs), "{:.1f} MB")
    charged = tuple(cost.peak_cgroup_bytes / _MB for cost in costs if cost.peak_cgroup_bytes is not None)
    if charged:
        yield Figure("", charged, "{:.1f} MB")


def _median_and_spread(figure: Figure) -> tuple[str, str]:
    low, middle, high = (figure.form.format(pick(figure.values)) for pick in (min, median, max))
    return middle, f"{low.split()[0]}..{high}"


def command_line() -> str:
    """Return how the benchmark was started, to be copied."""
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
