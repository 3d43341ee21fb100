"""Find which weight of one checkpoint is which of another, by names and shapes. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from sharding.planning.alike.units import Unit

_DEEPEST = 5
"""The most parts of a name that a prefix has: "base_model.model.model.language_model." has four."""

_OFTEN = 10
"""A prefix that this part of all weights change is one. Any other must be of containers."""

_CONTAINERS = frozenset(["model", "thinker", "transformer", "base_model", "language_model", "module"])
"""Modules that hold the parts of a model: its text model, its towers, its MTP head."""

_SMALL_PARTS = (
    "projector",
    "connector",
    "merger",
    "mtp",
    "embed_vision",
    "embed_audio",
    "adapter",
    "resampler",
    "newline",
)
"""What parts without layers of their own are called, beside towers."""

Prefix = tuple[str, str]  # What names begin with here, and in the original.


@dataclass(frozen=True, slots=True)
class Match:
    """How two checkpoints belong together.

    - `of`: the name of the unit here, by the unit's name in the original.
    - `prefixes`: which prefix became which, and how many units have it.
    - `twice`: pairs of names that both fit one unit of the original; `unclear`: a unit here with two names there.
    - `misfits`: units of the same name and another shape: (here, there).
    - `absent`: units of the original that are not here. `extra`: units that the original does not have.
    """

    of: Mapping[str, str]
    prefixes: Mapping[Prefix, int]
    twice: tuple[tuple[str, str, str], ...] = ()
    unclear: tuple[tuple[str, str, str], ...] = ()
    misfits: tuple[tuple[str, str], ...] = ()
    absent: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fits:
    """Whether shapes fit: they are equal, but for the rows of words, of which each model has its own number."""

    words: tuple[int | None, int | None] = (None, None)

    def __call__(self, mine: tuple[int, ...], theirs: tuple[int, ...]) -> bool:
        """Return whether a tensor of shape `mine` may take the place of one of shape `theirs`."""
        if mine == theirs:
            return True
        is_words = bool(mine and theirs) and mine[1:] == theirs[1:] and None not in self.words
        return is_words and (mine[0], theirs[0]) == self.words


def matched(mine: Mapping[str, Unit], theirs: Mapping[str, Unit], fits: Fits) -> Match:
    """Return which unit of `mine` is which of `theirs`: by name, or as most neighbours change their prefix."""
    exact = {name for name in mine.keys() & theirs.keys() if fits(mine[name].shape, theirs[name].shape)}
    found, votes = _candidates(mine, theirs, fits, exact)
    of, prefixes = {name: name for name in exact}, Counter[Prefix]({("", ""): len(exact)} if exact else {})
    twice, unclear = list[tuple[str, str, str]](), list[tuple[str, str, str]]()
    for name, candidates in found.items():
        best, *more = sorted(candidates, key=lambda prefix: (-votes[prefix], prefix))
        if more and votes[more[0]] == votes[best]:
            unclear.append((name, _moved(name, best), _moved(name, more[0])))
            continue
        target = _moved(name, best)
        if target in exact and votes[best] <= votes[("", "")]:
            continue
        if target in of:
            twice.append((target, of[target], name))
            continue
        of[target] = name
        prefixes[best] += 1
    taken = {*of.values(), *(name for name, *_ in unclear), *(name for *_, name in twice)}
    misfits = [(name, name) for name in sorted(mine.keys() & theirs.keys() - of.keys() - taken)]
    misfits += _misfits(mine, theirs, of, prefixes, taken)
    wrong = {there for _, there in misfits}
    return Match(
        of,
        prefixes,
        tuple(twice),
        tuple(unclear),
        tuple(dict.fromkeys(misfits)),
        tuple(name for name in theirs if name not in of and name not in wrong),
        tuple(name for name in mine if name not in taken and name not in {here for here, _ in misfits}),
    )


def _candidates(
    mine: Mapping[str, Unit], theirs: Mapping[str, Unit], fits: Fits, exact: Collection[str]
) -> tuple[dict[str, list[Prefix]], Counter[Prefix]]:
    """Return the prefixes that each name of `mine` may change, and how many names would find their place by each."""
    endings = dict[str, list[str]]()
    for name in theirs:
        for prefix in prefixes_of(name):
            endings.setdefault(name[len(prefix) :], []).append(prefix)
    found, votes = dict[str, list[Prefix]](), Counter[Prefix]()
    for name, unit in mine.items():
        for prefix in prefixes_of(name):
            ending = name[len(prefix) :]
            targets = [there for there in endings.get(ending, ()) if fits(unit.shape, theirs[there + ending].shape)]
            votes.update((prefix, there) for there in targets)
            if targets and name not in exact:
                found[name] = [(prefix, there) for there in targets]
            if targets:
                break
    usual = [prefix for prefix, times in votes.items() if _OFTEN * times >= len(mine)]
    held = {prefix for prefix in votes if all(_is_usual(prefix[side], side, usual) for side in (0, 1))}
    found = {name: [one for one in prefixes if one in held] for name, prefixes in found.items()}
    return {name: prefixes for name, prefixes in found.items() if prefixes}, votes


def _is_usual(start: str, side: int, usual: Iterable[Prefix]) -> bool:
    """Return whether names begin with `start` because a model is inside another, and not by chance."""
    return all(step in _CONTAINERS for step in start.split(".") if step) or any(
        prefix[side].startswith(start) for prefix in usual
    )


def _misfits(
    mine: Mapping[str, Unit],
    theirs: Mapping[str, Unit],
    of: Mapping[str, str],
    prefixes: Iterable[Prefix],
    taken: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield what has its place by a prefix that others changed, and another shape there."""
    for name in mine:
        if name not in taken:
            moved = (there + name[len(here) :] for here, there in prefixes if name.startswith(here))
            if target := next((one for one in moved if one in theirs and one not in of), None):
                yield name, target


def prefixes_of(name: str) -> Iterator[str]:
    """Yield what a name may begin with: nothing, its first module, its first two. The last one stays, if it tells more.

    >>> list(prefixes_of("model.layers.weight")), list(prefixes_of("module.logit_scale"))
    (['', 'model.'], ['', 'module.'])
    """
    yield ""
    at, steps = 0, name.split(".")
    has_own_name = steps[-1] not in ("weight", "bias") and not any(step.isdecimal() for step in steps)
    for step in steps[: min(len(steps) - 2 + has_own_name, _DEEPEST)]:
        if at and step.isdecimal():  # a layer, and not a model inside another
            return
        at = name.index(".", at) + 1
        yield name[:at]


def _moved(name: str, prefix: Prefix) -> str:
    return prefix[1] + name[len(prefix[0]) :]


@dataclass(frozen=True, slots=True)
class Lack:
    """Units of the original that are not here: whole parts, by name, and holes in parts that are here."""

    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    holes: tuple[str, ...] = ()


def lacking(match: Match, theirs: Iterable[str], layers: int | None) -> Lack:
    """Return what is not here as parts, of which nothing is here (a tower, an MTP head behind `layers`), and holes."""
    here = set[str]()
    for name in theirs:
        if name in match.of:
            here.update(_modules(name))
    inside = dict[str, list[str]]()
    for name in match.absent:
        inside.setdefault(next(one for one in (*_modules(name), name) if one not in here), []).append(name)
    parts = {module: tuple(names) for module, names in inside.items() if _is_part(module, names, layers)}
    return Lack(parts, tuple(name for module, names in inside.items() if module not in parts for name in names))


def _modules(name: str) -> list[str]:
    """Return the modules around a weight, the outermost first."""
    steps = name.split(".")
    return [".".join(steps[:count]) for count in range(1, len(steps))]


def _is_part(module: str, inside: Collection[str], layers: int | None) -> bool:
    """Return whether a module, of which nothing is here, is a whole part of a model and not a hole in one."""
    around, _, last = module.rpartition(".")
    if last.isdecimal():
        return layers is not None and int(last) >= layers and around.endswith("layers")
    if not all(step in _CONTAINERS for step in around.split(".") if step):
        return False
    if any(word in last for word in _SMALL_PARTS):
        return True
    steps = [name[len(module) + 1 :].split(".") for name in inside]
    has_layers = any(step.isdecimal() for names in steps for step in names)
    return has_layers and not any(names[0].isdecimal() for names in steps) and last not in _CONTAINERS
