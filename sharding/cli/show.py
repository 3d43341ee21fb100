"""Do a job in a notebook or at a Python prompt, and show its progress as the command line does."""

import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any

from rich.console import Console

from sharding import job
from sharding.cli.terminal import Terminal
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE
from sharding.core.options import Options, Request
from sharding.report.schema import Report


def shard(
    source: str,
    destination: str,
    options: Options | str = DEFAULT_MAX_SHARD_SIZE,
    *,
    endpoint: str | None = None,
    token: str | None = None,
    **chosen: Any,
) -> Report:
    """Do what `sharding.job.shard` does to the end, and return its report. Raises the same errors."""
    return _shown(job.shard(source, destination, options, endpoint=endpoint, token=token, **chosen))


def run(request: Request, *, endpoint: str | None = None, token: str | None = None) -> Report:
    """Do what `sharding.job.run` does to the end, and return its report. Raises the same errors."""
    return _shown(job.run(request, endpoint=endpoint, token=token))


def _shown(events: Generator[job.Event, None, None]) -> Report:
    # The output of a notebook is no terminal, but draws a bar of one line. rich's own way needs ipywidgets.
    is_notebook = "ipykernel" in sys.modules
    console = Console(force_jupyter=False, force_terminal=is_notebook or None, soft_wrap=True)
    with closing(events), Terminal(console, console) as terminal:
        for event in events:
            terminal.event(event)
    assert isinstance(event, Report), "the report comes last"
    return event
