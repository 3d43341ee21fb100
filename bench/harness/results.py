"""A section of bench/RESULTS.md: one sentence, one table, what else is to be known, the machine and the command."""

import shlex
import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.machine import describe_machine
from harness.sections import RESULTS, replace_section

_NOTE = "--note"


def tell(title: str, table: Table, facts: Iterable[str], folder: Path, libraries: tuple[str, ...]) -> None:
    """Print the section `title` of the benchmark that runs; with `--note` put it into RESULTS.md, in place of its last.

    `folder` is where the data lay, which says what file system that is.
    """
    machine = f"Machine: {describe_machine(folder, libraries)}."
    rows = StringIO()
    Console(file=rows, width=250, highlight=False, markup=False, emoji=False).print(table)
    lines = [line.rstrip() for line in rows.getvalue().strip().splitlines()]
    sentence = (sys.modules["__main__"].__doc__ or "").partition("\n\n")[0]
    points = [f"- {fact}" for fact in (*facts, machine, f"Command: `{_command_line()}`")]
    content = "\n".join([sentence, "", *lines, "", *points])
    print(f"## {title}\n\n{content}")
    if _NOTE in sys.argv:
        replace_section(RESULTS, f"## {title}", content)


def _command_line() -> str:
    """Return how the benchmark was started, to be copied."""
    words = [word for word in sys.argv[1:] if word != _NOTE]
    return shlex.join(["python", f"bench/{Path(sys.argv[0]).name}", *words])
