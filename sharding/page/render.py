"""Fill the page's templates, whose values are all escaped, and put remedies into the page's words."""

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from sharding.core import text as words
from sharding.core.errors import Remedy, RemedyKind
from sharding.core.values import Finding
from sharding.drawing.map_svg import NAMES, components, files_caption, outline
from sharding.drawing.model_map import HEIGHT, WIDTH, Box
from sharding.loading.measure import BASE_ANON_BYTES
from sharding.page.links import Wish, query_of

MOST_NAMED = 12  # The most findings, names or differences that a page lists. It counts the rest.
MOST_ROWS = 200  # The most rows of a table. Nobody reads more, and every row costs the browser time.
MOST_STAGES = 64  # The most rows of a table of stages.
MOST_TENSORS, MOST_SHOWN = 400, 100  # The most rows of a list of tensors, and of tensors that differ.
_CODE = re.compile("`([^`]*)`")
_AFTER_SEPARATOR = re.compile(r"(?<=\w[/_@-])(?=\w)|(?<=\w[.])(?=[^\W\d])")


def render(template: str, **values: Any) -> str:
    """Return the HTML of a file in `templates`, without its ending, with `values`. All of them are escaped."""
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
    templates.filters |= {"breakable": lambda name: Markup("<wbr>").join(_AFTER_SEPARATOR.split(name))}
    templates.filters |= {"coded": lambda text: Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))}
    templates.filters |= {"unpinned": words.without_revision}
    templates.filters |= {"utc": lambda seconds: datetime.fromtimestamp(seconds, UTC)}
    templates.filters |= {"percent": lambda length: f"{100 * length / WIDTH:.2f}%"}
    templates.globals |= {"ends": words.ends, "duration": words.duration, "format_bytes": words.format_bytes}
    templates.globals |= {"time_range": words.time_range, "BASE_ANON_BYTES": BASE_ANON_BYTES}
    templates.globals |= {name: value for name, value in globals().items() if name.startswith("MOST_")}
    templates.globals |= {"WIDTH": f"{WIDTH:.0f}", "HEIGHT": f"{HEIGHT:.0f}", "files_caption": files_caption}
    templates.globals |= {"KINDS": NAMES, "place": _place, "outline": outline, "components": components}
    templates.globals |= {"corners": lambda box: " ".join(f"{round(side, 1):g}" for side in box)}
    return templates


def _place(box: Box) -> Markup:
    sides = zip(("x", "y", "width", "height"), box, strict=True)
    return Markup(" ".join(f'{name}="{round(side, 1):g}"' for name, side in sides if name not in "xy" or side))


@dataclass(frozen=True, slots=True)
class Help:
    """A remedy: a button called `label` if the `control` (a CSS selector) is on the page, else `words`; or a link."""

    words: str = ""
    label: str = ""
    control: str = ""
    link: str = ""


SIGN_IN = Remedy("sign_in")
HOME = Help(label="Go home", link="./")

_OF_THE_TERMINAL = re.compile(r"(?<![\w-])--[a-z]|hf auth login|HF_TOKEN|HF_ENDPOINT|[Rr]un again")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) ")

# For a kind that is not here, the hint alone is enough on the page.
_HELP: dict[RemedyKind, Help] = {
    "sign_in": Help(
        "Run hf auth login on the machine that serves this page, then reload the page.", "Sign in", "#sign-in"
    ),
    "make_private": Help("Both are below the plan.", "Make it private", "#visibility input[value=Private]"),
    "allow_public_copy": Help("If everybody may see the copy, choose Public below the plan."),
    "choose_variant": Help("Choose one under Advanced."),
    "choose_dtype": Help("", "Keep the number format", "#dtype input[value=keep]"),
    "choose_order": Help("", "Order them by layer", "#order input[value=natural]"),
    "cut_between_layers": Help(
        "Choose Between layers under Advanced.", "Cut between layers", "#strategy input[value=blocks]"
    ),
    "dequantize": Help("Or tick Dequantize, which computes ordinary weights.", "Dequantize", "#dequantize input"),
    "allow_overflow": Help(
        "Or tick Allow overflow under Advanced. The report then counts them.", "Allow overflow", "#overflow input"
    ),
    "leave_base_out": Help('Leave the field "The model that was trained" empty.'),
    "overwrite": Help("", "Replace it", "#replace input"),
    "discard_unfinished": Help("To give it up, cancel the unfinished job."),
    "leave_comparison_out": Help('Untick "Measure loading too" below the plan.'),
    "use_stream_engine": Help("", "Move its bytes", "#engine input[value=stream]"),
    "by_hand": Help("The command line has options for that."),
    "use_classic_engine": Help("The command line can do it: it loads the model in its own process and saves it again."),
}
_OF_FINDINGS = {
    "variants": "To copy one of them instead, choose it above.",
    "run-lora": "The command line can be told what its alpha was.",
    "no-base": 'Name it in the field "The model that was trained".',
    "ranks-uneven": 'To check that, fill in "The model that was trained".',
    "base-dtype": "To convert them, choose a number format under Advanced.",
    "quantized": "For training, and for tools that cannot read such weights, choose ordinary weights.",
    "wrapped-names": 'Choose "Make it load again" above.',
    "like-dropped": "The command line can keep them.",
    "adapter-alone": 'To merge it into its base, choose "Merge my LoRA" above.',
    "quantization-left-over": "If you choose a number format under Advanced, the copy's does not say it.",
    "no-known-loader": 'If your loader reads only one file, write "one file" as the size.',
}
"""By the code of a finding: the page's words instead of the sentences of its hint for the command line."""


def help_with(remedy: Remedy | None) -> Help:
    """Return the help to show beside the hint, from which `without_options` has removed sentences."""
    if remedy and remedy.kind == "open_job":
        return Help(label="Open it", link=query_of(Wish(job=remedy.value)))
    if remedy and remedy.kind == "plan_repo":
        return Help(label="Plan this model", link=query_of(Wish(remedy.value, sized=False)))
    return _HELP.get(remedy.kind, Help()) if remedy else Help()


def in_page_words(finding: Finding) -> Finding:
    """Return a finding with its hint in the words of the page."""
    words = _OF_FINDINGS.get(finding.code, "")
    return replace(finding, hint=f"{without_options(finding.hint)} {words}".strip())


def without_options(hint: str) -> str:
    """Return a hint without its sentences for the command line.

    >>> without_options("Choose another name. Or add --overwrite to replace it.")
    'Choose another name.'
    """
    sentences = _BETWEEN_SENTENCES.split(hint)
    return " ".join(sentence for sentence in sentences if not _OF_THE_TERMINAL.search(sentence))
