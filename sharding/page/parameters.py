"""Add the declared options to an endpoint, as parameters with a line each in its docstring."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

from sharding.core.options import Option, of_tool


def taking_options(tool: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds every option of `tool` to a method as a parameter.

    The method gets them as keyword arguments, under their names in `Options`.
    """
    options = of_tool(tool)

    def give(method: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(method)
        own = inspect.signature(method).parameters.values()
        named = [
            one.replace(annotation=hints.get(one.name, one.empty)) for one in own if one.kind is not one.VAR_KEYWORD
        ]
        signature = inspect.Signature([*named, *map(_parameter, options)], return_annotation=hints["return"])

        @wraps(method)
        def answer(*values: Any, **more: Any) -> Any:
            given = signature.bind(*values, **more)
            given.apply_defaults()
            taken = {option.name: _value(option, given.arguments.pop(option.tool_name)) for option in options}
            return method(**given.arguments, **taken)

        lines = [f"            {option.tool_name}: {option.declared.help}" for option in options]
        answer.__signature__ = signature  # type: ignore[attr-defined]
        answer.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()} | {
            "return": signature.return_annotation
        }
        answer.__doc__ = "\n".join([(method.__doc__ or "").rstrip(), *lines]) + "\n"
        return answer

    return give


def _parameter(option: Option) -> inspect.Parameter:
    kind = str if option.name == "max_shard_size" else option.kind
    default = option.default
    if option.declared.on is not None:
        kind, default = bool, False
    return inspect.Parameter(
        option.tool_name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=kind
    )


def _value(option: Option, given: Any) -> Any:
    """Return the value of an option for the `given` argument. An invalid one stays as it is and is refused later."""
    return given if option.declared.on is None else option.declared.on if given else option.default
