"""Suggest shard sizes for a model, with reasons. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from sharding.core.options import SINGLE_FILE
from sharding.core.text import duration, parse_bytes

_COLAB_BYTES = 12_000_000_000  # Memory for weights on a free Colab machine: see `planning.devices.PRESETS`.


@dataclass(frozen=True, slots=True)
class SizeStop:
    """A size as you write it ("200MB", SINGLE_FILE), and what it means. It `stands_out` for a special reason."""

    size: str
    reason: str = ""
    stands_out: bool = False


def size_stops(total_bytes: int, largest_bytes: int = 0, *, single_file: bool = True) -> tuple[SizeStop, ...]:
    """Return sizes for a model of `total_bytes`, the smallest first and a single file last, if that is possible.

    None is below `largest_bytes`, the size of the largest tensor: a file would be larger than its limit.

    >>> [stop.size for stop in size_stops(14_500_000_000) if stop.stands_out]
    ['200MB', '4GB', 'single-file']
    """
    usual, colab = usual_size(total_bytes, largest_bytes), colab_size(total_bytes, largest_bytes)
    reasons = {SINGLE_FILE: _lost_at_most(SINGLE_FILE)} if single_file else {}
    if colab:
        reasons[colab] = "Free Colab has about 12 GB for weights. Without memory mapping, as on mounted drives, "
        reasons[colab] += "loading needs memory for the model and its largest file."
    if total_bytes >= 2**32:
        reasons["4GB"] = "USB sticks and cards formatted as FAT32 cannot hold a file above 4.29 GB."
    if usual != SINGLE_FILE:
        reasons[usual] = _lost_at_most(usual)
    sizes = {size for size in (*_nice(total_bytes), *reasons) if _bytes_of(size) >= largest_bytes} or {SINGLE_FILE}
    ordered = sorted(sizes, key=_bytes_of)
    return tuple(SizeStop(size, reasons.get(size) or _lost_at_most(size), size in reasons) for size in ordered)


def stop_for(stops: Sequence[SizeStop], size: str) -> int:
    """Return the index of the slider stop for `size`: the first of `stops` that is at least as large, or the last.

    >>> stop_for([SizeStop("100MB"), SizeStop("200MB"), SizeStop("single-file")], "150MB")
    1
    """
    return next((index for index, stop in enumerate(stops) if _bytes_of(stop.size) >= _bytes_of(size)), len(stops) - 1)


def usual_size(total_bytes: int, largest_bytes: int = 0) -> str:
    """Return the size for a model of `total_bytes` if nobody has chosen one. It cuts small models too.

    >>> usual_size(14_500_000_000), usual_size(64_800_000), usual_size(240_000)
    ('200MB', '10MB', '50kB')
    >>> usual_size(14_500_000_000, 262_144_000), usual_size(10_000_000, 9_900_000)
    ('300MB', 'single-file')
    """
    nice = _nice(total_bytes, largest_bytes)
    fitting = [size for size in nice if parse_bytes(size) * 4 <= total_bytes]  # if nobody has chosen, 4 shards or more
    if not fitting:
        return nice[0] if nice and largest_bytes else SINGLE_FILE
    return min(fitting[-1], max("200MB", fitting[0], key=_bytes_of), key=_bytes_of)


def kept_size(file_bytes: int) -> str:
    """Return a round size that a file of `file_bytes` does not exceed: files that are in such files stay so.

    >>> kept_size(39_339_000), kept_size(6_040_000), kept_size(9_900_000_000), kept_size(240_000)
    ('40MB', '6.1MB', '9.9GB', '240kB')
    """
    unit, name = next(
        ((1000**power, name) for power, name in ((3, "GB"), (2, "MB")) if file_bytes >= 1000**power), (1000, "kB")
    )
    step = unit // 10 if file_bytes < 10 * unit else unit if file_bytes < 100 * unit else 10 * unit
    return f"{-(-file_bytes // step) * step / unit or 1:g}{name}"


def _lost_at_most(size: str) -> str:
    if size == SINGLE_FILE:
        return "One file. If a download breaks, it may begin again."
    again = duration(parse_bytes(size) * 8 / 10_000_000)
    return f"If a download breaks, you lose at most one file ({again} at 10 Mbit/s)."


def _nice(total_bytes: int, largest_bytes: int = 0) -> list[str]:
    """Return round sizes that cut `total_bytes` into 2 to 1000 shards, the smallest first."""
    sizes = [f"{step * 10**power}{unit}" for unit in ("kB", "MB", "GB") for power in range(3) for step in (1, 2, 3, 5)]
    least = max(total_bytes / 1000, largest_bytes)
    return [size for size in sizes if least <= parse_bytes(size) < total_bytes]


def colab_size(total_bytes: int, largest_bytes: int = 0) -> str:
    """Return the largest size that leaves room for the model in the memory of free Colab, "" if there is none.

    >>> colab_size(11_000_000_000), colab_size(14_500_000_000)
    ('1GB', '')
    """
    nice = _nice(total_bytes, largest_bytes)
    fitting = [size for size in nice if parse_bytes(size) + total_bytes <= _COLAB_BYTES]
    return fitting[-1] if fitting and total_bytes > _COLAB_BYTES / 4 else ""


def _bytes_of(size: str) -> float:
    return float("inf") if size == SINGLE_FILE else parse_bytes(size)
