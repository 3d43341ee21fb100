"""Say where the weights of a copy fit: a small card, a large one, a notebook's memory, several machines. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sharding.core.text import format_bytes
from sharding.planning.devices import parse_budgets

_PLACES = (
    ("CPU memory of free Colab", "colab-t4", "cpu"),
    ("T4", "colab-t4", "cuda:0"),
    ("24 GB card", "24gb", "cuda:0"),
)
"""The name of a place, and the preset and the device that say how much memory it has for weights."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How much of a copy a place holds. Each of its devices has `room_bytes` for its part of `part_bytes`."""

    place: str
    room_bytes: int
    part_bytes: tuple[int, ...]

    @property
    def spare_bytes(self) -> int:
        """What the fullest device has left. It is negative if its part does not fit."""
        return self.room_bytes - max(self.part_bytes)

    @property
    def spans(self) -> Iterator[tuple[int, int]]:
        """First byte and end of what each device holds, in the order of the copy's files."""
        start = 0
        for part in self.part_bytes:
            yield start, start + min(part, self.room_bytes)
            start += part

    @property
    def words(self) -> str:
        """The answer.

        >>> Fit("T4", 15_000_000_000, (14_500_000_000,)).words
        'fits, 500.0 MB to spare'
        >>> Fit("Two T4s", 15_000_000_000, (70_500_000_000, 70_500_000_000)).words
        'too small: holds 30.0 GB of 141.0 GB'
        """
        if self.spare_bytes >= 0:
            each = " on the fullest" if len(self.part_bytes) > 1 else ""
            return f"fits, {format_bytes(self.spare_bytes)} to spare{each}"
        held = sum(end - start for start, end in self.spans)
        return f"too small: holds {format_bytes(held)} of {format_bytes(sum(self.part_bytes))}"


def where_it_fits(total_bytes: int, stages: Sequence[int] = ()) -> tuple[Fit, ...]:
    """Return how much of `total_bytes` of weights fits into each place, the place with the least room first.

    The last place is several machines with a T4 each. They hold the `stages` of a pipeline, given in bytes, or a half
    each if there are none. Activations are not counted.
    """
    fits = [Fit(name, parse_budgets(preset)[device], (total_bytes,)) for name, preset, device in _PLACES]
    parts = tuple(stages) or (total_bytes - total_bytes // 2, total_bytes // 2)
    name = "Two T4s" if len(parts) == 2 else f"{len(parts)} machines with a T4"
    return (*fits, Fit(name, parse_budgets("kaggle-2xt4")["cuda:0"], parts))
