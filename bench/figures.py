"""Print what was measured as a Markdown table: median, smallest and largest of all rounds."""

import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from machine import describe_machine
from processes import Cost
from rich import box
from rich.console import Console
from rich.table import Table

_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: a value for every round, how it is written, and what it is meant to be."""

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


def costs_of(title: str, costs: Sequence[Cost]) -> list[Figure]:
    """Return the figures of one contender: time, processor time, peaks of memory."""
    figures = [
        Figure(f"{title}: time", seconds(costs), "{:.3f} s"),
        Figure(f"{title}: processor time", tuple(cost.cpu_seconds for cost in costs), "{:.3f} s"),
        Figure(f"{title}: peak anonymous memory", anon_megabytes(costs), "{:.1f} MB"),
    ]
    charged = tuple(cost.peak_cgroup_bytes / _MB for cost in costs if cost.peak_cgroup_bytes is not None)
    if charged:
        figures.append(Figure(f"{title}: peak of its cgroup, page cache included", charged, "{:.1f} MB"))
    return figures


def seconds(costs: Iterable[Cost]) -> tuple[float, ...]:
    """Return the wall time of every run."""
    return tuple(cost.seconds for cost in costs)


def anon_megabytes(costs: Iterable[Cost]) -> tuple[float, ...]:
    """Return the peak anonymous memory of every run, in units of 10⁶ bytes."""
    return tuple(cost.peak_anon_bytes / _MB for cost in costs)


def print_figures(
    title: str, facts: Iterable[str], figures: Iterable[Figure], folder: Path, libraries: tuple[str, ...]
) -> None:
    """Print title, table, facts, machine (with the file system of `folder`) and command line, as Markdown."""
    table = Table("figure", "median", "min..max", "rounds", "target", box=box.MARKDOWN)
    for figure in figures:
        spread = f"{figure.form.format(min(figure.values))}..{figure.form.format(max(figure.values))}"
        middle = figure.form.format(median(figure.values))
        table.add_row(figure.title, middle, spread, str(len(figure.values)), figure.target)
    console = Console(width=200, highlight=False, markup=False, emoji=False)
    console.print(f"## {title}")
    console.print(table)
    for fact in (*facts, f"Machine: {describe_machine(folder, libraries)}", f"Command: {_command_line()}"):
        console.print(f"- {fact}", soft_wrap=True)


def sampling_rate(costs: Iterable[Sequence[Cost]]) -> str:
    """Return how often memory was sampled, in the run in which it was least often."""
    lowest_hertz = min(cost.samples / cost.seconds for runs in costs for cost in runs)
    return (
        f"Anonymous memory was sampled at least {lowest_hertz:.0f} times a second, summed over all processes of a run."
    )


def _command_line() -> str:
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *sys.argv[1:]])
