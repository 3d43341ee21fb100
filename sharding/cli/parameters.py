"""Give a command the options that are declared for it."""

import inspect
from collections.abc import Callable, Container, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, TypeVar

import typer

from sharding.core.errors import UsageError
from sharding.core.options import OPTIONS, Option, chosen, of_command

_Command = TypeVar("_Command", bound=Callable[..., None])


def taking_options(command: str) -> Callable[[_Command], Callable[..., None]]:
    """Have a function take every option of `command`: it gets them by their names, as keywords."""

    def give(function: _Command) -> Callable[..., None]:
        own = inspect.signature(function).parameters.values()
        named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        must = [parameter for parameter in named if parameter.default is inspect.Parameter.empty]
        taken = of_command(command)
        options = [made for option in taken for made in _parameters(option)]
        every = [*must, *options, *(parameter for parameter in named if parameter not in must)]
        short = {_shorthand_name(option) for option in taken}

        @wraps(function)
        def run(**values: Any) -> None:
            function(**{name: value for name, value in values.items() if name not in short})

        keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD
        run.__signature__ = inspect.Signature([one.replace(kind=keyword) for one in every])  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in every} | {"return": None}
        return run

    return give


def without_shorthands(values: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
    """Return the `values` of a command with what a shorthand, such as --single-file, stands for in its place.

    Raises UsageError where what it stands for is `given` as well.
    """
    left = dict(values)
    for option in OPTIONS.values():
        if option.declared.shorthand and left.pop(_shorthand_name(option), False):
            short, value, _ = option.declared.shorthand
            if option.name in given:
                usual = option.declared.flags[0]
                raise UsageError(f"{short} stands in the place of {usual}.", f"Leave out {usual} or {short}.")
            left[option.name] = value
        if option.declared.on is not None and option.name in left:
            left[option.name] = option.declared.on if left[option.name] else option.default
    return left


def parsed_choice(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Return what reads one of `choices`; what is empty is refused with all else that is."""
    return lambda text: chosen(what, text, choices) if text.strip() else text


def _shorthand_name(option: Option) -> str:
    return option.declared.shorthand[0].removeprefix("--").replace("-", "_") if option.declared.shorthand else ""


def _parameters(option: Option) -> list[inspect.Parameter]:
    default = option.default if option.declared.on is None else False
    made = [_parameter(option.name, _kind(option), default, _told(option))]
    if option.declared.shorthand:
        flag, _, words = option.declared.shorthand
        made.append(_parameter(_shorthand_name(option), bool, False, typer.Option(flag, help=words)))
    return made


def _parameter(name: str, kind: Any, default: Any, told: Any) -> inspect.Parameter:
    annotation = Annotated[kind, told]
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


def _kind(option: Option) -> Any:
    return bool if option.declared.on is not None else str if option.name == "max_shard_size" else option.kind


def _told(option: Option) -> Any:
    flags, more = list(option.declared.flags), dict[str, Any]()
    if option.choices:
        more["parser"] = parsed_choice(option.declared.called or option.name, option.choices)
    if option.default in (None, "") and not option.is_switch:
        more["show_default"] = False
    return typer.Option(*flags, help=option.declared.help, metavar=option.declared.metavar, **more)
