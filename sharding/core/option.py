"""What an option is, and how the fields of a dataclass declare options. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from sharding.core.errors import RemedyKind, UsageError
from sharding.core.origin import Role
from sharding.core.text import nearest

Group = Literal["What to write", "Where", "How to check", "For machines"]
"""The headings of a command's help. The help lists them in this order."""

_ALSO_CALLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_Choice = TypeVar("_Choice", bound=str)


def chosen(what: str, choice: _Choice, choices: Sequence[str]) -> _Choice:
    """Return `choice` if it is one of `choices`. If not, raise UsageError: it names `what` and the nearest choice.

    >>> chosen("dtype", "bf16", ["fp16", "bf16"])
    'bf16'
    """
    if choice not in choices:
        raise no_such(what, choice, choices)
    return choice


def no_such(what: str, choice: str, choices: Sequence[str], more: str = "") -> UsageError:
    """Return the error for a `choice` that is none of `choices`. `more` is a further sentence of its hint."""
    meant = _ALSO_CALLED.get(str(choice).lower(), "")
    meant = meant if meant in choices else nearest(str(choice), choices)
    guess = f"Did you mean {meant}? " if meant else ""
    return UsageError(f"There is no {what} {choice!r}.", f"{guess}Choose from {', '.join(choices)}.{more}")


@dataclass(frozen=True, slots=True)
class Option:
    """What the front ends need to know about an option. Its dataclass field gives the name, the type and the default.

    - `commands` take it, and those of `tools` that have the name of one of these.
    - `on`: the value that a switch sets. `shorthand` is another switch (flag, value, help) for one value.
    - `called`: its name in messages, and `tool_name` over HTTP.
    - `excludes`: options that contradict this one, each with the reason. `remedy` is to leave this option out.
    - `needs`: for a choice ("" for any), the extra of this package that it needs.
    - `again`: the hint if it is given twice. `is_list`: it may be, and its value is a list with commas.
    - `since`: sorts the parameters of an endpoint. New options come last, so that callers need no change.
    """

    default: Any
    help: str
    flags: tuple[str, ...] = ()
    name: str = ""
    kind: Any = None
    group: Group = "What to write"
    commands: tuple[str, ...] = ("plan", "shard")
    tools: tuple[str, ...] = ("inspect", "plan", "shard")
    tool_name: str = ""
    called: str = ""
    metavar: str = ""
    on: Any = None
    shorthand: tuple[str, Any, str] | None = None
    title: str = ""
    info: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str] = field(default_factory=dict)
    remedy: RemedyKind | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    computes: bool = False
    again: str = "Give it once."
    role: Role | None = None
    is_list: bool = False
    since: int = 0

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value."""
        return self.kind is bool or self.on is not None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that the option takes; () if it takes others too."""
        kinds = (self.kind, *get_args(self.kind))
        return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())

    def words(self, value: Any) -> list[str]:
        """Return the words that set the option to `value`, which is not the default, on the command line."""
        flag = self.flags[0]
        if "/" in flag:  # --private/--public
            return [flag.split("/")[0 if value else 1]]
        if self.shorthand and value == self.shorthand[1]:
            return [self.shorthand[0]]
        is_bytes = self.metavar == "SIZE" and isinstance(value, int)
        return [flag] if self.is_switch else [flag, f"{value}B" if is_bytes else str(value)]


def declare(default: Any, help: str, flags: str = "", **more: Any) -> Any:
    """Return the field of a dataclass that declares an option. `more` are fields of `Option`."""
    return field(default=default, metadata={"option": Option(default, help, tuple(flags.split()), **more)})


@cache
def declared(kind: type[Any]) -> Mapping[str, Option]:
    """Return the options that the dataclass `kind` declares, by name, with all that follows from the name."""
    hints, options = get_type_hints(kind), dict[str, Option]()
    for one in fields(kind):
        if option := one.metadata.get("option"):
            name = one.name
            options[name] = replace(
                option,
                name=name,
                kind=hints[name],
                flags=option.flags or (f"--{name.replace('_', '-')}",),
                metavar=option.metavar or name.upper(),
                tool_name=option.tool_name or name,
                called=option.called or name,
            )
    return options


def refuse_no_choice(values: Any) -> None:
    """Raise UsageError if a field of the dataclass `values` is no choice of its option."""
    for name, option in declared(values.__class__).items():
        value = getattr(values, name)
        if option.kind is str and not isinstance(value, str):
            raise UsageError(f"The {name} is not a text.", "Give it one value.")
        if option.choices and value is not None:
            chosen(option.called, value, option.choices)


def clash(one: Option, other: Option) -> str:
    """Return why two options cannot be given together, "" if they can."""
    return one.excludes.get(other.name, "") or other.excludes.get(one.name, "")


def given(values: Any) -> list[tuple[Option, Any]]:
    """Return the options that the dataclass `values` sets to another value than the default, each with its value."""
    all_ = ((option, getattr(values, name)) for name, option in declared(values.__class__).items())
    return [(option, value) for option, value in all_ if value != option.default]
