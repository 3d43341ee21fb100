"""The options of a command: declared once, taken by its function, listed in its help."""

import inspect
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any, get_args

import typer

from sharding.core.errors import UsageError
from sharding.core.option import Group, Option, chosen
from sharding.core.options import OPTIONS, of_command

_KEYWORD = inspect.Parameter.POSITIONAL_OR_KEYWORD


def with_options(
    function: Callable[..., Any], run: Callable[..., None], command: str, group: Group | None, last: Mapping[str, Any]
) -> Callable[..., None]:
    """Return `run` as a command with the name and the parameters of `function`, every option of `command` (under the
    heading `group` if there is one), and last the switches `last`, all as keywords."""
    own = inspect.signature(function).parameters.values()
    named = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    must = [parameter for parameter in named if parameter.default is inspect.Parameter.empty]
    taken = of_command(command)
    options = [made for option in taken for made in _parameters(option, group or option.group)]
    switches = [inspect.Parameter(name, _KEYWORD, default=False, annotation=kind) for name, kind in last.items()]
    every = [*must, *options, *(parameter for parameter in named if parameter not in must), *switches]
    short = {_shorthand_name(option) for option in taken}

    @wraps(function)
    def called(**values: Any) -> None:
        lists = {option.name: ",".join(values[option.name] or ()) for option in taken if option.is_list}
        run(**{name: value for name, value in {**values, **lists}.items() if name not in short})

    called.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in every} | {"return": None}
    return called


def in_groups(parameters: Iterable[Any], context: Any) -> dict[str, list[tuple[str, str]]]:
    """Return what the help lists under each heading: (name, text) of each argument and option."""
    groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in ("Arguments", *get_args(Group), "Other")}
    for parameter in parameters:
        if parameter.param_type_name == "argument":
            groups["Arguments"].append((parameter.metavar, parameter.help))
        else:
            groups[parameter.rich_help_panel or "Other"].append(parameter.get_help_record(context))
    return {heading: rows for heading, rows in groups.items() if rows}


def without_shorthands(values: Mapping[str, Any], given: Container[str]) -> dict[str, Any]:
    """Return `values` with shorthands as options. Raises UsageError for one whose option is `given` too."""
    left = dict(values)
    for option in OPTIONS.values():
        if option.shorthand and left.pop(_shorthand_name(option), False):
            short, value, _ = option.shorthand
            if option.name in given:
                usual = option.flags[0]
                raise UsageError(f"{short} and {usual} cannot be used together.", "Leave out one of them.")
            left[option.name] = value
        if option.on is not None and option.name in left:
            left[option.name] = option.on if left[option.name] else option.default
    return left


def parsed_choice(what: str, choices: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for one of `choices`. An empty value passes, because the command refuses it by its name."""
    return lambda text: chosen(what, text, choices) if text.strip() else text


def _shorthand_name(option: Option) -> str:
    return option.shorthand[0].removeprefix("--").replace("-", "_") if option.shorthand else ""


def _parameters(option: Option, group: Group) -> list[inspect.Parameter]:
    more = dict[str, Any]()
    if option.choices:
        more["parser"] = parsed_choice(option.called, option.choices)
    if option.default in (None, "") and not option.is_switch:
        more["show_default"] = False
    told = typer.Option(*option.flags, help=option.help, metavar=option.metavar, rich_help_panel=group, **more)
    kind = list[str] if option.is_list else str if option.name == "max_shard_size" else option.kind
    kind, default = (kind, [] if option.is_list else option.default) if option.on is None else (bool, False)
    parameters = [(option.name, Annotated[kind, told], default)]
    if option.shorthand:
        flag, _, words = option.shorthand
        told = typer.Option(flag, help=words, rich_help_panel=group)
        parameters.append((_shorthand_name(option), Annotated[bool, told], False))
    return [inspect.Parameter(name, _KEYWORD, default=value, annotation=kind) for name, kind, value in parameters]
