"""Do a job in a notebook or at a Python prompt, and show its progress as the command line does."""

import sys
from collections.abc import Callable, Generator
from contextlib import closing
from functools import wraps
from typing import ParamSpec

from rich.console import Console

from sharding import job
from sharding.cli.terminal import Terminal
from sharding.report.schema import Report

_P = ParamSpec("_P")


def _shown(begin: Callable[_P, Generator[job.Event, None, None]]) -> Callable[_P, Report]:
    @wraps(begin)
    def run(*given: _P.args, **chosen: _P.kwargs) -> Report:
        # The output of a notebook is no terminal, but draws a bar of one line. rich's own way needs ipywidgets.
        is_notebook = "ipykernel" in sys.modules
        console = Console(force_jupyter=False, force_terminal=is_notebook or None, soft_wrap=True)
        with closing(begin(*given, **chosen)) as events, Terminal(console, console) as terminal:
            for event in events:
                terminal.event(event)
        assert isinstance(event, Report), "the report comes last"
        return event

    return run


shard, run = _shown(job.shard), _shown(job.run)
"""They do what the functions of `sharding.job` do, to the end, and return the report. They raise the same errors."""
