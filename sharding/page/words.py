"""Put numbers and moments into words for a reader. Pure."""

from collections.abc import Sequence

from sharding.limits import format_bytes


def count(number: int, one: str = "", many: str = "") -> str:
    """Return a number with its noun.

    >>> count(1, "shard"), count(1200, "shard"), count(2, "entry", "entries")
    ('1 shard', '1,200 shards', '2 entries')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}".strip() if one else f"{number:,}"


def parameters(number: int) -> str:
    """Return a count of parameters as model names have it.

    >>> parameters(7_241_732_096), parameters(124_439_808), parameters(900)
    ('7.24 B', '124 M', '900')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return str(number)


def ends(names: Sequence[str]) -> str:
    """Return the first and the last of a run of names.

    >>> ends(["h.0", "h.1", "h.2"]), ends(["h.0"]), ends([])
    ('h.0 to h.2', 'h.0', 'none')
    """
    return " to ".join(dict.fromkeys([*names[:1], *names[-1:]])) or "none"


def duration(seconds: float) -> str:
    """Return a time in the two largest units.

    >>> duration(0.42), duration(8), duration(75), duration(7300)
    ('0.4 s', '8 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 3:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def share(part: float, total: float) -> str:
    """Return a share in per cent.

    >>> share(1, 8), share(1, 0)
    ('12.5%', '0.0%')
    """
    return f"{100 * part / total if total else 0:.1f}%"


__all__ = ["count", "duration", "ends", "format_bytes", "parameters", "share"]
