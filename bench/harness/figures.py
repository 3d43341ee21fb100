"""Print what was measured as a Markdown table: median, smallest and largest of all rounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.table import Table

from harness.processes import Cost
from harness.results import tell

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
    """Tell `figures`, then what each contender cost (`costs`, by title), and `facts`: see `results.tell`."""
    table = Table("figure", "median", "smallest..largest", "wanted", box=box.MARKDOWN)
    for figure in (*figures, *_absolute(costs)):
        table.add_row(figure.title, *_median_and_spread(figure), figure.target)
    rate = min(cost.samples / cost.seconds for runs in costs.values() for cost in runs)
    others = [cost.others_cpu_seconds / cost.seconds for runs in costs.values() for cost in runs]
    rounds = max(map(len, costs.values()))
    told = (
        f"Rounds: {rounds}. All take turns in each. Anonymous memory is the sum over all processes of a run, measured "
        f"{rate:.0f} times a second or more often. Everybody else on the machine used {median(others):.2f} cores "
        f"(median; {max(others):.2f} at most).",
    )
    tell(title, table, (*facts, *told), folder, libraries)


def _absolute(costs: Mapping[str, Sequence[Cost]]) -> Iterator[Figure]:
    for contender, runs in costs.items():
        yield Figure(f"{contender}: time", seconds(runs), "{:.2f} s")
        yield Figure(f"{contender}: processor time", tuple(cost.cpu_seconds for cost in runs), "{:.2f} s")
        yield Figure(f"{contender}: peak anonymous memory", anon_megabytes(runs), "{:.1f} MB")


def _median_and_spread(figure: Figure) -> tuple[str, str]:
    low, middle, high = (figure.form.format(pick(figure.values)) for pick in (min, median, max))
    return middle, f"{low.split()[0]}..{high}"
