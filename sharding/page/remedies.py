"""Say in the words of the page what helps, with a button where the page has the control for it. Pure."""

import re
from dataclasses import dataclass, replace

from sharding.core.errors import Remedy, RemedyKind
from sharding.core.values import Finding


@dataclass(frozen=True, slots=True)
class Help:
    """What helps: a button called `label` where the `control` that it works is on the page, else `words`.

    `control` is a selector of CSS. Whether it is there, the script of the page finds out.
    """

    words: str = ""
    label: str = ""
    control: str = ""


SIGN_IN = Remedy("sign_in")

_OF_THE_TERMINAL = re.compile(r"(?<![\w-])--[a-z]|hf auth login|HF_TOKEN")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?]) ")
_NOTHING = Help()

# Of a kind that is not here, the hint says all that helps on the page.
_HELP: dict[RemedyKind, Help] = {
    "sign_in": Help("On the machine that serves this page, run hf auth login; then reload it.", "Sign in", "#sign-in"),
    "make_private": Help("Both are under Advanced.", "Make it private", "#visibility input[value=Private]"),
    "allow_public_copy": Help("If everybody may see the copy, choose Public under Advanced."),
    "choose_variant": Help("Choose one under Advanced."),
    "choose_dtype": Help("", "Keep the number format", "#dtype input[value=keep]"),
    "choose_order": Help("", "Order them by layer", "#order input[value=natural]"),
    "cut_between_layers": Help(
        "Choose Between layers under Advanced.", "Cut between layers", "#strategy input[value=blocks]"
    ),
    "dequantize": Help(
        "Or tick Dequantize to compute ordinary weights with their scales.", "Dequantize", "#dequantize input"
    ),
    "allow_overflow": Help(
        "Or tick Allow overflow under Advanced, and the report counts them.", "Allow overflow", "#overflow input"
    ),
    "leave_base_out": Help("Leave the model that was trained empty."),
    "overwrite": Help("", "Replace it", "#replace input"),
    "discard_unfinished": Help("To give it up, cancel the job that is unfinished."),
    "leave_comparison_out": Help("Untick under Advanced that the original and the copy are loaded."),
    "use_classic_engine": Help("The command line can: it loads the model in a process of its own and saves it again."),
}
_OF_FINDINGS = {
    "variants": "To have one of them instead, choose it under Advanced.",
    "no-base": "Name it below the model.",
    "base-dtype": "To convert them, choose a number format under Advanced.",
    "quantized": "Tick Dequantize to train the model, or for tools that do not know these weights.",
    "no-known-loader": "If your loader reads only one file, write one file as the size.",
}
"""By the code of a finding: what stands for the sentences of its hint that are for the command line."""


def help_with(remedy: Remedy | None) -> Help:
    """Return what helps besides what `without_options` leaves of the hint."""
    return _HELP.get(remedy.kind, _NOTHING) if remedy else _NOTHING


def in_page_words(finding: Finding) -> Finding:
    """Return a finding with a hint for the page."""
    words = _OF_FINDINGS.get(finding.code, "")
    return replace(finding, hint=f"{without_options(finding.hint)} {words}".strip())


def without_options(hint: str) -> str:
    """Return a hint without its sentences for the command line.

    >>> without_options("Choose another name. Or add --overwrite to replace it.")
    'Choose another name.'
    """
    sentences = _BETWEEN_SENTENCES.split(hint)
    return " ".join(sentence for sentence in sentences if not _OF_THE_TERMINAL.search(sentence))
