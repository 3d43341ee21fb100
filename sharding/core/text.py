"""Read and write sizes, counts, times and lists for people. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from sharding.core.errors import UsageError
from sharding.core.limits import MAX_NAME_CHARACTERS


def values_in(json_text: bytes) -> int:
    """Return the number of values in a JSON text, or more. Each takes memory, even if the text is short."""
    return sum(map(json_text.count, (b",", b"[", b"{")))


def parsed_json(text: str | bytes) -> Any:
    """Return the content of a JSON text, or None if it is not valid JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def as_object(value: Any) -> dict[str, Any]:
    """Return `value` if it is a JSON object, else {}."""
    return value if isinstance(value, dict) else {}


def objects_in(document: Any) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a document, at any depth, the outermost first."""
    waiting = [document]
    for value in waiting:
        if isinstance(value, dict):
            yield value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def json_file(document: Mapping[str, Any]) -> bytes:
    """Return a JSON file for people and programs: indented, with one newline at the end."""
    # A config.json may hold half a surrogate pair. It becomes the escape that JSON has for it.
    return json.dumps(document, indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


MOST_NAMES = 3  # Most names in a phrase.


def name_some(names: Sequence[str], most: int = MOST_NAMES, *, total: int = 0) -> str:
    """Return the first few of `names` as a phrase. `total` is the number of all names, if `names` does not hold all.

    >>> name_some(["a", "b", "c", "d"]), name_some(["a", "b", "c"], total=90)
    ('a, b, c and 1 more', 'a, b, c and 87 more')
    """
    more = (total or len(names)) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def nearest(word: str, choices: Sequence[str]) -> str:
    """Return the one of `choices` that is most similar to `word`, or "" if none is similar."""
    return next(iter(get_close_matches(word.strip().lower(), choices, 1)), "")


def printable(text: str) -> str:
    r"""Return `text` with an escape for all that UTF-8 cannot encode: halves of surrogate pairs, bytes of names.

    >>> printable("caf\xe9"), printable("caf\udce9")
    ('café', 'caf\\udce9')
    """
    return text.encode(errors="backslashreplace").decode()


def shown_name(name: str) -> str:
    """Return the start of a name that somebody else chose, for a message."""
    return printable(name[:100])


def name_problem(name: str) -> str:
    """Return why `name` is not allowed for a file or a tensor, or "" if it is allowed."""
    if len(name) > MAX_NAME_CHARACTERS:
        return f"has {len(name):,} characters, but at most {MAX_NAME_CHARACTERS:,} are allowed"
    return "" if name.isascii() or printable(name) == name else "is not UTF-8"


def unchecked_sentence(things: Sequence[str]) -> str:
    """Return the sentence that names what a comparison did not check."""
    return f"Not checked: {', '.join(things[:-1])} and {things[-1]}."


def within_words(tensors: int, within: int) -> str:
    """Return how a merged copy compares. `within` of its tensors have other bits, within the tolerance of a merge."""
    return f"equal within the tolerance of a merge: {count(tensors - within, 'tensor')} bit-equal, {within:,} within it"


def undecided_sentence(undecided: int) -> str:
    """Return the sentence about merged tensors that cannot be called right or wrong."""
    are, their = ("is", "its") if undecided == 1 else ("are", "their")
    return (
        f"It cannot be told whether {count(undecided, 'merged tensor')} {are} right: {their} bits differ, and {their} "
        "terms cancel so much that another order of summation may give any such numbers."
    )


def unread_sentence(files: Sequence[str]) -> str:
    """Return the sentence about weight files of a copy that are not part of a comparison.

    >>> unread_sentence(["other"])
    'The copy holds 1 more weight file, which was not compared: other.'
    """
    which = "which was" if len(files) == 1 else "which were"
    return f"The copy holds {count(len(files), 'more weight file')}, {which} not compared: {name_some(files)}."


def without_revision(place: str) -> str:
    """Return the name of a place without its revision.

    >>> without_revision("owner/name@v2/sub"), without_revision("owner/name")
    ('owner/name/sub', 'owner/name')
    """
    return re.sub("@[^/]*", "", place, count=1)


def unreached_sentence(place: str) -> str:
    """Return the sentence about a commit, "owner/name@commit", that may not belong to its repo."""
    repo_id, _, commit = place.partition("@")
    return (
        f"No known branch or tag of {repo_id} contains commit {commit[:12]}. It may belong to a pull request, which "
        "anybody can open, so it does not count as the model of that repo."
    )


_UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)},
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)", re.ASCII)


_LEAST_BARE_BYTES = 10**6


def parse_bytes(text: str | int, of: str = "a shard") -> int:
    """Return the number of bytes in a size such as "200MB", "2 gb", "1GiB" or "300000000". An int is bytes.

    >>> parse_bytes("1.5GB"), parse_bytes("1GiB"), parse_bytes(200)
    (1500000000, 1073741824, 200)

    Raises UsageError for anything else, for less than one byte, and for a text without a unit that is below a million:
    whoever writes "200" means megabytes. `of` names what has this size, for the message.
    """
    text = f"{text}B" if isinstance(text, int) else text
    match = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        hint = "Write it as 200MB, 2GB or 1GiB."
        if match and f"{match[2].upper()}B" in _UNITS:
            hint = f"Did you mean {match[1][:50]}{match[2].upper()}B?"
        raise UsageError(f"{text[:50]!r} is not a size for {of}.", hint)
    size = Decimal(match[1]) * unit
    if not match[2] and 1 <= size < _LEAST_BARE_BYTES:
        hint = f"Did you mean {match[1]}MB or {match[1]}GB? For bytes, write {match[1]}B."
        raise UsageError(f"The size {text[:50]!r} for {of} has no unit.", hint)
    if not 1 <= size < 2**63:
        problem = "cannot hold anything" if size < 1 else "fits on no machine"
        raise UsageError(f"{of[0].upper()}{of[1:]} of {text[:50]!r} {problem}.", "Give a size such as 200MB.")
    return int(size)


def format_bytes(count: float) -> str:
    """Return `count` bytes in the decimal unit that leaves one to three digits before the point.

    >>> format_bytes(199_500_000), format_bytes(512)
    ('199.5 MB', '512 B')
    """
    units = ["TB", "GB", "MB", "kB"]
    if count < 1000:
        return f"{count:.0f} B"
    while (count := count / 1000) >= 999.95 and len(units) > 1:
        units.pop()
    return f"{count:.1f} {units[-1]}"


def count(number: int, singular: str = "", plural: str = "") -> str:
    """Return a number with its noun.

    >>> count(1, "shard"), count(1200, "shard"), count(2, "entry", "entries")
    ('1 shard', '1,200 shards', '2 entries')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}".strip() if singular else f"{number:,}"


def parameters(number: int) -> str:
    """Return a number of parameters in the style of model names.

    >>> parameters(7_241_732_096), parameters(124_439_808), parameters(900)
    ('7.24 B', '124 M', '900')
    """
    for unit, size in (("T", 10**12), ("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g} {unit}" if number < 999.5 * size else f"{number / size:.0f} {unit}"
    return str(number)


def ends(names: Sequence[str]) -> str:
    """Return the first and the last of `names`.

    >>> ends(["h.0", "h.1", "h.2"]), ends(["h.0"]), ends([])
    ('h.0 to h.2', 'h.0', 'none')
    """
    return " to ".join(dict.fromkeys([*names[:1], *names[-1:]])) or "none"


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

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


def time_range(lower: float, upper: float) -> str:
    """Return the range between two times, each in seconds, in one unit if that is clear.

    >>> time_range(70, 140), time_range(152, 300), time_range(660, 1260), time_range(4200, 8400), time_range(7, 7)
    ('70 to 140 s', '2.5 to 5 min', '11 to 21 min', '1 h 10 min to 2 h 20 min', '7 s')
    """
    if upper >= 7200:
        ends = [duration(lower), duration(upper)]
    elif upper >= 240:
        lower_minutes, upper_minutes = (round(end / 60, 1 if end < 600 else None) for end in (lower, upper))
        ends = [f"{lower_minutes:g}", f"{upper_minutes:g} min"]
    else:
        ends = [f"{lower:.0f}", f"{upper:.0f} s"]
    return ends[1] if lower == upper else " to ".join(ends)


def share(part: float, total: float) -> str:
    """Return a share in per cent.

    >>> share(1, 8), share(1, 0)
    ('12.5%', '0.0%')
    """
    return f"{100 * part / total if total else 0:.1f}%"
