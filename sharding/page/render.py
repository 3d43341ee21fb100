"""Fill the page's templates. Everything that is put into them is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sharding.core import text as words

MOST_NAMED = 12
"""Remarks, names and differences that a page lists; the rest is counted. Nobody reads three thousand of them."""

MOST_STAGES = 64
"""Rows of a table of stages."""


def render(template: str, **values: Any) -> str:
    """Return the HTML of `template` (a name in the folder `templates`, without its ending) with `values` in it.

    Autoescape is on for every template, so that nothing that comes from a repo, an event or a visitor is markup.
    """
    return _templates().get_template(f"{template}.html").render(values)


@cache
def _templates() -> Environment:
    templates = Environment(
        loader=PackageLoader("sharding.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {
        "bytes": words.format_bytes,
        "number": words.count,
        "parameters": words.parameters,
        "duration": words.duration,
        "some": lambda names: words.name_some(list(names), MOST_NAMED),
    }
    templates.globals["share"] = words.share
    templates.globals["ends"] = words.ends
    templates.globals |= {"MOST_NAMED": MOST_NAMED, "MOST_STAGES": MOST_STAGES}
    return templates
