"""Fill the page's templates. All values are escaped."""

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sharding.core import text as words
from sharding.drawing.map_svg import NAMES, components, files_caption, outline
from sharding.drawing.model_map import HEIGHT, WIDTH, Box

MOST_NAMED = 12
"""The most findings, names or differences that a page lists. It counts the rest: nobody reads three thousand."""

MOST_STAGES = 64
"""The most rows of a table of stages."""

_COMMIT = re.compile(r"@[0-9a-f]{40}(?=/|$)", re.ASCII)
_AFTER_SEPARATOR = re.compile(r"(?<=\w[/_@-])(?=\w)|(?<=\w[.])(?=[^\W\d])")


def render(template: str, **values: Any) -> str:
    """Return the HTML of `template` with `values` in it. `template` is a file name in `templates`, without its ending.

    Autoescape is on for every template, so text from a repo, an event or a visitor cannot become markup.
    """
    return words.printable(_templates().get_template(f"{template}.html").render(values))


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
        "taken": lambda seconds: words.duration(max(seconds, 0.1)),
        "some": lambda names: words.name_some(list(names), MOST_NAMED),
    }
    templates.filters |= {"breakable": _breakable, "unpinned": lambda place: _COMMIT.sub("", place)}
    templates.filters |= {"utc": lambda seconds: datetime.fromtimestamp(seconds, UTC)}
    templates.filters |= {"percent": lambda length: f"{100 * length / WIDTH:.2f}%"}
    templates.globals |= {"ends": words.ends, "duration": words.duration, "format_bytes": words.format_bytes}
    templates.globals |= {"source_name": words.source_name, "time_range": words.time_range}
    templates.globals |= {"MOST_NAMED": MOST_NAMED, "MOST_STAGES": MOST_STAGES, "KINDS": NAMES}
    templates.globals |= {"WIDTH": f"{WIDTH:.0f}", "HEIGHT": f"{HEIGHT:.0f}", "files_caption": files_caption}
    templates.globals |= {"place": _place, "corners": _corners, "outline": outline, "components": components}
    return templates


def _breakable(text: str) -> Markup:
    """Return `text` with places where a browser may break a long name: after its separators, not within its words."""
    return Markup("<wbr>").join(_AFTER_SEPARATOR.split(text))


def _place(box: Box) -> Markup:
    sides = zip(("x", "y", "width", "height"), box, strict=True)
    return Markup(" ".join(f'{name}="{round(side, 1):g}"' for name, side in sides if name not in "xy" or side))


def _corners(box: Box) -> str:
    return " ".join(f"{round(side, 1):g}" for side in box)
