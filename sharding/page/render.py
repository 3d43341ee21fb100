"""Fill the page's templates. Everything that is put into them is escaped."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from sharding.core import text as words


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
    }
    templates.globals["share"] = words.share
    templates.globals["ends"] = words.ends
    return templates
