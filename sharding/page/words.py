"""Put what errors say in the words of the command line into those of the page. Pure."""

import re

_WORDS = (
    (r"sign in with `hf auth login` or set HF_TOKEN", "sign in at the top of the page"),
    (
        r"say so \(--yes\), or make the copy private \(leave --public out\)",
        "tick that under Advanced, or make it private",
    ),
    (r" \(--variant(?: [^)]*)?\)", " under Advanced"),
    (r" \(--base(?: [^)]*)?\)", " below the model"),
    (r"Leave out --base: it is", "Leave it empty: it is"),
    (r"Choose --strategy blocks, which cuts between layers", "Cut between layers"),
    (r"allow it \(--allow-overflow\)", "tick Allow overflow under Advanced"),
    (r"--dequantize computes them", "Tick Dequantize, which computes them"),
    (r"discard it with --restart", "cancel it"),
    (r"add --overwrite to replace", "tick Replace, beside the button, to replace"),
    (r"Add --engine classic, which loads the model", "The command line can: it loads the model"),
    (r"which --compare cannot load", "whose loading cannot be compared"),
    (r"--compare cannot load the original", "loading the original cannot be compared"),
    (r"Leave --compare out", "Untick the comparison under Advanced"),
    (r"Write --budget ", "Write "),
    (r"(?<![\w-])--([a-z]+)", r"\1"),
)
_PATTERNS = tuple((re.compile(pattern), words) for pattern, words in _WORDS)


def in_page_words(text: str) -> str:
    """Return a message or a hint without options of the command line.

    >>> in_page_words("Choose --strategy blocks, which cuts between layers.")
    'Cut between layers.'
    """
    for pattern, words in _PATTERNS:
        text = pattern.sub(words, text)
    return text
