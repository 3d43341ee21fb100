"""Arguments in; a job's events out, as a table and a bar, as `--json` or as `--events`."""

import dataclasses
import gc
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from sharding import __version__
from sharding.cli.outlet import Outlet
from sharding.cli.parameters import parsed_choice, taking_options, without_shorthands
from sharding.core.environment import hub_token
from sharding.core.errors import Cancelled, Refused, ShardingError, UsageError, unforeseen
from sharding.core.extras import require
from sharding.core.limits import ROUNDS
from sharding.core.options import Options, Request

if TYPE_CHECKING:
    from sharding.cli.terminal import Terminal
    from sharding.job import Event

_TO_COME = ("--experts", "--only", "--drop", "--rename", "--fill", "--pull-request")
"""Options that other versions may have: nothing that is there now does the same."""


class _Group(TyperGroup):
    """The commands: words that none of them takes are an error of ours, which programs can read as well."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        words = sys.argv[1:] if args is None else list(args)
        try:
            sys.exit(super().main(list(words), *more, **{**extra, "standalone_mode": False}))
        except (typer.TyperException, UsageError) as error:
            if not words:
                print(error, file=sys.stderr)  # the help
                sys.exit(UsageError.exit_status)
            try:
                with _outcome(bool({"--json", "--events"} & {*words})):
                    raise error if isinstance(error, UsageError) else _wrong_words(error) from error
            except typer.Exit as end:
                sys.exit(end.exit_code)


def _wrong_words(error: typer.TyperException) -> UsageError:
    """Return what typer says of words that no command takes as an error of ours."""
    name, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    see = f"See {context.command_path if context else 'shard-my-repo'} --help."
    if name in _TO_COME:
        return UsageError(f"This version has no {name}.", see)
    if meant := getattr(error, "possibilities", None):
        return UsageError(f"{error.message}.", f"Did you mean {' or '.join(meant)}? {see}")
    message = error.format_message()
    return UsageError(message if message.endswith((".", "?")) else f"{message}.", see)


app = typer.Typer(
    name="shard-my-repo",
    cls=_Group,
    help="Re-shard a model checkpoint by streaming its bytes: flat memory, every tensor proved identical.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command that takes nothing empty: as a folder it would mean the current one, as an option its default."""

    def invoke(self, ctx: Any) -> Any:
        given = [one for one in self.params if ctx.get_parameter_source(one.name).name == "COMMANDLINE"]
        try:
            for parameter in given:
                value = ctx.params.get(parameter.name)
                if isinstance(value, str) and not value.strip():
                    is_option = parameter.opts[0].startswith("-")
                    name = parameter.opts[0] if is_option else parameter.opts[0].upper()
                    raise UsageError(f"{name} is empty.", f"Give it a value{', or leave it out' * is_option}.")
            ctx.params = without_shorthands(ctx.params, {str(parameter.name) for parameter in given})
        except UsageError as error:
            with _outcome(any(ctx.params.get(machine) for machine in ("as_json", "as_events"))):
                raise error
        return super().invoke(ctx)


_command = partial(app.command, cls=_Command)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, or owner/name[@revision] on the Hub.")]
Destination = Annotated[str, typer.Argument(metavar="DESTINATION", help="A folder, or owner/name on the Hub.")]
Method = Literal["from_pretrained", "load_checkpoint_and_dispatch", "offload", "load_sharded_checkpoint", "torch_load"]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
AsEvents = Annotated[
    bool, typer.Option("--events", help="Print one JSON object a line as things happen, the result last.")
]


@_command()
@taking_options("inspect")
def inspect(source: Source, as_json: AsJson = False, **chosen: Any) -> None:
    """Show what a checkpoint holds, from its headers only."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.report import report, schema

        checkpoint = job.inspect(source, **chosen, token=hub_token())
        if as_json:
            _print_json(schema.to_json(report.summarize_source(checkpoint)))
        else:
            terminal.checkpoint(checkpoint)


@_command()
@taking_options("plan")
def plan(
    source: Source,
    picture: Annotated[str, typer.Option(metavar="FILE", help="Draw today's files and the shards into this SVG.")] = "",
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Show how the tensors of these names are made: '*.q_proj.*'.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    **chosen: Any,
) -> None:
    """Show which shards a checkpoint would be cut into. Moves no weights."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.drawing import map_svg
        from sharding.drawing.picture import save_picture
        from sharding.planning.explain import explained
        from sharding.report import report, schema

        checkpoint, plan = job.plan(source, Options(**chosen), token=hub_token())
        if picture:
            save_picture(picture, map_svg.draw_plan(checkpoint, plan))
        recipes = explained(plan, explain) if explain else {}
        if as_json:
            document = schema.to_json(report.summarize_plan(plan, checkpoint.findings))
            _print_json(document | ({"recipes": recipes} if explain else {}))
        elif explain:
            terminal.recipes(recipes)
        else:
            terminal.findings(checkpoint.findings)
            terminal.plan(plan)


@_command()
@taking_options("shard")
def shard(
    source: Source, destination: Destination, as_json: AsJson = False, as_events: AsEvents = False, **chosen: Any
) -> None:
    """Re-shard a checkpoint, verify the result, then publish it. Run it again to resume."""
    with _outcome(as_json or as_events, resumable=True) as terminal:
        from sharding import job
        from sharding.report.schema import Report

        events = job.run(Request.of(source, destination, chosen), token=hub_token())
        last = _follow(events, terminal, as_json, as_events)
        if isinstance(last, Report) and not last.verification.identical:
            raise typer.Exit(1)


@_command()
@taking_options("verify")
def verify(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The copy to compare with it.")],
    quick: Annotated[bool, typer.Option("--quick", help="Compare stored digests only; read no weights.")] = False,
    as_json: AsJson = False,
    as_events: AsEvents = False,
    **chosen: Any,
) -> None:
    """Compare two checkpoints tensor by tensor. Exit status 1 if they differ."""
    with _outcome(as_json or as_events) as terminal:
        from sharding import job
        from sharding.core.events import Verified

        events = job.verify(source, destination, quick=quick, **chosen, token=hub_token())
        last = _follow(events, terminal, as_json, as_events)
        if isinstance(last, Verified) and not last.verification.identical:
            raise typer.Exit(1)


@_command()
def discard(
    destination: Destination,
    as_json: AsJson = False,
) -> None:
    """Remove what an unfinished job has staged. A repo that the job made goes too."""
    with _outcome(as_json) as terminal:
        from sharding import job

        discarded = job.discard(destination, token=hub_token())
        if as_json:
            _print_json(dataclasses.asdict(discarded))
        else:
            terminal.discarded(discarded)


@_command()
@taking_options("compare")
def compare(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="A folder, or owner/name[@revision].")],
    sharded: Annotated[str, typer.Argument(metavar="SHARDED", help="The copy to compare it with.")],
    method: Annotated[
        Method,
        typer.Option(
            parser=parsed_choice("method", get_args(Method)),
            metavar="METHOD",
            help=f"How to load: {', '.join(get_args(Method))}.",
        ),
    ] = "from_pretrained",
    memory_limit: Annotated[str, typer.Option(help="Hold every load to this: 4GB. Would it load there?")] = "",
    no_mmap: Annotated[bool, typer.Option("--no-mmap", help="Load without memory mapping.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Loads of each, after a warm-up.")] = ROUNDS,
    picture: Annotated[str, typer.Option(metavar="FILE", help="Draw memory over time into this SVG file.")] = "",
    as_json: AsJson = False,
    as_events: AsEvents = False,
    **chosen: Any,
) -> None:
    """Load both in turn: time, memory, what makes the difference. Each load has a process of its own."""
    with _outcome(as_json or as_events) as terminal:
        from sharding import job

        load = job.how_to_load(method, chosen["dtype"], memory_limit, with_mapping=not no_mmap)
        events = job.compare(original, sharded, load=load, rounds=rounds, picture=picture, token=hub_token())
        _follow(events, terminal, as_json, as_events)


@_command()
@taking_options("devices")
def devices(
    source: Source,
    budget: Annotated[
        str,
        typer.Option("--budget", help="cuda:0=16GB,cpu=12GB, or a preset: colab-t4, kaggle-2xt4, 24gb, laptop-16gb."),
    ],
    as_json: AsJson = False,
    **chosen: Any,
) -> None:
    """Show which block of a model goes on which device. Lists the shard files of each; loads no weights."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.planning.devices import device_plan_json

        plan = job.devices(source, budget, **chosen, token=hub_token())
        if as_json:
            _print_json(device_plan_json(plan))
        else:
            terminal.devices(plan)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def localhub(context: typer.Context) -> None:
    """Serve a Hub on this machine, to try everything offline. See `localhub --help` for its options."""
    with _outcome(machine=False):
        require("The loopback Hub", "localhub")
        if "--samples" in context.args:
            require("The samples of the loopback Hub")
    from sharding.demo.seeding import seed
    from sharding.localhub.__main__ import main

    main(context.args, add_samples=partial(seed, log=sys.stderr))


def main() -> None:
    """Run the command line and exit: 0 done, 1 a "no", 2 wrong usage, 3 refused or failed, 130 cancelled."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _interrupt)
    # A header makes hundreds of thousands of small values that stay: looking through them less often saves a sixth.
    gc.set_threshold(100_000, 50, 100)
    try:
        app(prog_name="shard-my-repo")
    except SystemExit as end:
        if end.code == Cancelled.exit_status:
            # A thread may still be waiting for a network that stalls, with nothing left to spoil.
            sys.stdout.flush()
            os._exit(Cancelled.exit_status)
        raise


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"shard-my-repo {__version__}")
        raise typer.Exit


def _interrupt(number: int, _: object) -> NoReturn:
    if number == signal.SIGHUP:  # of a closed terminal the shell tells as well as the system
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _outcome(machine: bool, resumable: bool = False) -> Iterator["Terminal"]:
    """Show what the command does and turn how it ends into an exit status."""
    from rich.console import Console

    from sharding.cli.terminal import Terminal

    passing = Console(stderr=True, soft_wrap=True)
    results = passing if machine else Console(soft_wrap=True)
    with Terminal(results, passing) as terminal:
        try:
            with _last_resort():
                try:
                    yield terminal
                except KeyboardInterrupt as error:
                    hint = "What is finished is kept: run the same command again to go on. Add --restart to begin anew."
                    raise Cancelled(str(error) or "Cancelled.", hint if resumable else "") from error
        except ShardingError as error:
            _strike_out_token(error)
            terminal.error(error)
            if machine:
                _print_json({"error": error.document()})
            raise typer.Exit(error.exit_status) from error


def _strike_out_token(error: ShardingError) -> None:
    """Take the login out of what an error says: what others put into theirs, nobody can know."""
    with suppress(Refused):  # one that cannot be read is in no message
        if token := hub_token():
            error.message, error.hint = (text.replace(token, "[token]") for text in (error.message, error.hint))


@contextmanager
def _last_resort() -> Iterator[None]:
    """Turn what nobody foresaw into a sentence: a traceback would end with status 1, which means that copies differ."""
    try:
        yield
    except (ShardingError, typer.Exit, typer.Abort):
        raise
    except Exception as error:
        raise unforeseen(error) from error


def _follow(
    events: "Generator[Event, None, None]", terminal: "Terminal", as_json: bool, as_events: bool
) -> "Event | None":
    from sharding.core.events import Progress
    from sharding.report.events import event_json

    event = None
    with closing(events):
        for event in events:
            if as_events:
                _print_json(event_json(event))
                if isinstance(event, Progress) and isinstance(sys.stdout, Outlet) and sys.stdout.is_unread:
                    raise KeyboardInterrupt("Cancelled: nobody reads the events any more.")
            else:
                terminal.event(event)
    if as_json and event:
        document = event_json(event)
        del document["event"]
        _print_json(document)
    return event


def _print_json(document: dict[str, Any]) -> None:
    # Names come from files of strangers, and a terminal obeys more than control characters: DEL alone is ASCII.
    sys.stdout.write(json.dumps(document).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()
