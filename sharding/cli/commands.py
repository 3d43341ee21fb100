"""The commands: arguments in, a job's events out, as tables for people or JSON for programs."""

import dataclasses
import gc
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_args

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from sharding import __version__
from sharding.cli.parameters import in_groups, parsed_choice, with_options, without_shorthands
from sharding.core.environment import as_called, called, hub_endpoint, hub_token, is_extension, proxy_logins
from sharding.core.errors import Cancelled, Refused, ShardingError, UsageError, unforeseen
from sharding.core.extras import require
from sharding.core.limits import ROUNDS
from sharding.core.option import Group
from sharding.core.options import OPTIONS, Options, Request

if TYPE_CHECKING:
    from sharding.cli.terminal import Terminal
    from sharding.job import Event

    Events = Generator[Event, None, None]
    Result = tuple[Any, Callable[[Any], dict[str, Any]]]
_TO_COME = ("--pull-request",)
"""Options of later versions. This version has no similar ones, so it suggests none."""


class _Group(TyperGroup):
    """The commands. Wrong words end in a UsageError, which programs can read too."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self.format_commands(ctx, formatter)
        with formatter.section("Options"):
            formatter.write_dl([parameter.get_help_record(ctx) for parameter in self.get_params(ctx)])

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        try:
            return super().parse_args(ctx, args)
        except typer.Exit as end:
            if not end.exit_code:  # after the help
                raise
            # Else completion does not know the shell. Its own status is 1, which means that copies differ.
            hint = "Run it from bash, zsh, fish or PowerShell."
            raise UsageError("Completion works only in shells that it knows.", hint) from end
        except OSError as error:
            hint = "Run --show-completion, and add what it prints to your shell's configuration."
            raise UsageError(f"Completion could not be installed: {error}.", hint) from error

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
    name, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    see = f"See {context.command_path if context else called()} --help."
    if name in _TO_COME:
        return UsageError(f"This version has no {name}.", see)
    if meant := getattr(error, "possibilities", None):
        return UsageError(f"{error.message}.", f"Did you mean {' or '.join(meant)}? {see}")
    message = error.format_message()
    return UsageError(message if message.endswith((".", "?")) else f"{message}.", see)


app = typer.Typer(
    name=called(),
    cls=_Group,
    help="Re-shard a model checkpoint by streaming its bytes. Every tensor is proved identical.",
    epilog=f"Example: {called()} shard owner/name ./folder -s 200MB",
    add_completion=not is_extension(),  # a shell would ask `hf`
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class _Command(TyperCommand):
    """A command that refuses empty values: an empty folder would be the current one, an empty option the default."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return ["[OPTIONS]", *(str(one.metavar) for one in self.params if one.param_type_name == "argument")]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups = in_groups(self.get_params(ctx), ctx)
        width = max(len(name) for rows in groups.values() for name, _ in rows)
        for heading, rows in groups.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in rows], col_max=width)

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(one for one in order if isinstance(one, TyperOption)).items():
            # A switch may be repeated, unless it has an opposite: --private --public.
            may_repeat = option.multiple or (option.is_flag and not option.secondary_opts)
            if times > 1 and not ctx.resilient_parsing and not may_repeat:
                flag = option.opts[0]
                again = OPTIONS[option.name].again if option.name in OPTIONS else "Give it once."
                message = f"{'/'.join([flag, *option.secondary_opts])} is given {times} times."
                raise UsageError(message, f"{again} See {ctx.command_path} --help.")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        given = [one for one in self.params if ctx.get_parameter_source(one.name).name == "COMMANDLINE"]
        try:
            for parameter in given:
                value = ctx.params.get(parameter.name)
                values = value if isinstance(value, (list, tuple)) else [value]
                if any(isinstance(one, str) and not one.strip() for one in values):
                    is_option = parameter.opts[0].startswith("-")
                    name = parameter.opts[0] if is_option else parameter.opts[0].upper()
                    raise UsageError(f"{name} is empty.", f"Give it a value{', or leave it out' * is_option}.")
            ctx.params = without_shorthands(ctx.params, {str(parameter.name) for parameter in given})
        except UsageError as error:
            with _outcome(any(ctx.params.get(machine) for machine in ("as_json", "as_events"))):
                raise error
        return super().invoke(ctx)


def _command(
    example: str, takes: str = "", group: Group | None = None, *, has_events: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a command of a function that returns the events of a job, or its result and how that becomes JSON. It takes
    the options of the command `takes`, else of its own name."""

    def add(function: Callable[..., Any]) -> Callable[..., None]:
        def run(as_json: bool, as_events: bool = False, **values: Any) -> None:
            with _outcome(as_json or as_events, resumable=function.__name__ == "shard") as terminal:
                hub_endpoint()  # before the first import of huggingface_hub, which reads it too
                result = function(**values)
                if has_events:
                    _follow(result, terminal, as_json, as_events)
                elif as_json:
                    _print_json(result[1](result[0]))
                else:
                    terminal.event(result[0])

        switches = {"as_json": AsJson, **({"as_events": AsEvents} if has_events else {})}
        command = with_options(function, run, takes or function.__name__, group, switches)
        return app.command(cls=_Command, epilog=f"Example: {called()} {example}")(command)

    return add


_own = partial(typer.Option, show_default=False)
_to_write = partial(_own, rich_help_panel="What to write")
_where = partial(_own, rich_help_panel="Where")
_to_check = partial(_own, rich_help_panel="How to check")
_for_machines = partial(_own, rich_help_panel="For machines")

_checkpoint = partial(typer.Argument, help="A folder, or owner/name[@revision][/folder] on the Hub")
_copy = partial(typer.Argument, help="The copy to compare with it")
Source = Annotated[str, _checkpoint(metavar="SOURCE")]
Destination = Annotated[str, typer.Argument(metavar="DESTINATION", help="A folder, or owner/name on the Hub")]
Copy = Annotated[str, _copy(metavar="DESTINATION")]
Method = Literal["from_pretrained", "load_checkpoint_and_dispatch", "offload", "load_sharded_checkpoint", "torch_load"]
_how = partial(_to_check, metavar="METHOD", help=f"How to load: {', '.join(get_args(Method))}", show_default=True)
How = Annotated[Method, _how(parser=parsed_choice("method", get_args(Method)))]
_BUDGET = "Free for weights: cuda:0=16GB,cpu=12GB or a preset (colab-t4, kaggle-2xt4, 24gb, laptop-16gb)"
Budget = Annotated[str, _where("--budget", metavar="BUDGET", help=_BUDGET)]
AsJson = Annotated[bool, _for_machines("--json", help="Print one JSON object")]
AsEvents = Annotated[bool, _for_machines("--events", help="Print one JSON object a line as things happen")]


@_command("inspect owner/name")
def inspect(source: Source, **chosen: Any) -> "Result":
    """Show what a checkpoint holds, from its headers only."""
    from sharding import job
    from sharding.report.report import inspection_json

    return job.inspect(source, **chosen, token=hub_token()), inspection_json


@_command("plan owner/name -s 200MB --dtype bf16")
def plan(
    source: Source,
    picture: Annotated[str, _to_write(metavar="FILE", help="Draw today's files and the shards into this SVG")] = "",
    explain: Annotated[str, _to_check(metavar="GLOB", help="Show how these tensors are made: '*.q_proj.*'")] = "",
    **chosen: Any,
) -> "Result":
    """Show which shards a checkpoint would be cut into. Moves no weights."""
    from sharding import job
    from sharding.drawing.map_svg import draw_plan, save_picture
    from sharding.planning.plan import explained
    from sharding.report import report, schema

    checkpoint, plan = job.plan(source, Options(**chosen), token=hub_token())
    if picture:
        save_picture(picture, draw_plan(checkpoint, plan))
    recipes = explained(plan, explain) if explain else None

    def to_json(_: Any) -> dict[str, Any]:
        document = schema.to_json(report.summarize_plan(plan, checkpoint.findings))
        return document if recipes is None else document | {"recipes": recipes}

    return (checkpoint.findings, plan, recipes), to_json


@_command("shard owner/name you/name-sharded -s 200MB", has_events=True)
def shard(source: Source, destination: Destination, **chosen: Any) -> "Events":
    """Re-shard a checkpoint, verify the result, then publish it. Run it again to resume."""
    from sharding import job

    return job.run(Request.of(source, destination, chosen), token=hub_token())


@_command("verify owner/name you/name-sharded", group="How to check", has_events=True)
def verify(
    source: Source,
    destination: Copy,
    quick: Annotated[bool, _to_check("--quick", help="Compare stored digests, read no weights")] = False,
    numeric: Annotated[bool, _to_check("--numeric", help="Say by how much tensors differ")] = False,
    **chosen: Any,
) -> "Events":
    """Compare two checkpoints tensor by tensor. Status 1 means that they differ."""
    from sharding import job

    return job.verify(source, destination, quick=quick, numeric=numeric, **chosen, token=hub_token())


@_command("diff owner/name owner/fine-tuned", "verify", "How to check", has_events=True)
def diff(source: Source, destination: Copy, **chosen: Any) -> "Events":
    """Say how two checkpoints differ, and how to mend that."""
    from sharding import job

    return job.verify(source, destination, numeric=True, **chosen, token=hub_token())


@_command("discard you/name-sharded")
def discard(destination: Destination) -> "Result":
    """Remove the staged files of an unfinished job. A repo that it made goes too."""
    from sharding import job

    return job.discard(destination, token=hub_token()), dataclasses.asdict


@_command("compare ./folder ./folder-sharded", group="How to check", has_events=True)
def compare(
    original: Annotated[str, _checkpoint(metavar="ORIGINAL")],
    sharded: Annotated[str, _copy(metavar="SHARDED")],
    method: How = "from_pretrained",
    memory_limit: Annotated[str, _to_check(metavar="SIZE", help="Limit the memory of every load, such as 4GB")] = "",
    no_mmap: Annotated[bool, _to_check("--no-mmap", help="Load without memory mapping")] = False,
    rounds: Annotated[
        int, _to_check(metavar="N", min=1, help="Loads of each, after a warm-up", show_default=True)
    ] = ROUNDS,
    picture: Annotated[str, _to_write(metavar="FILE", help="Draw memory over time into this SVG")] = "",
    **chosen: Any,
) -> "Events":
    """Load both checkpoints in turn, and compare time and memory."""
    from sharding import job

    load = job.how_to_load(method, chosen["dtype"], memory_limit, with_mapping=not no_mmap)
    return job.compare(original, sharded, load=load, rounds=rounds, picture=picture, token=hub_token())


@_command("devices owner/name --budget cuda:0=16GB,cpu=12GB", group="Where")
def devices(source: Source, budget: Budget, **chosen: Any) -> "Result":
    """Show which block of a model goes on which device. Loads no weights."""
    from sharding import job
    from sharding.planning.devices import device_plan_json

    return job.devices(source, budget, **chosen, token=hub_token()), device_plan_json


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def localhub(context: typer.Context) -> None:
    """Serve a Hub on this machine, to try everything offline."""
    with _outcome(machine=False):
        require("The loopback Hub", "localhub")
        if "--samples" in context.args:
            require("The samples of the loopback Hub")
    from sharding.demo.seeding import seed
    from sharding.localhub.__main__ import main

    main(context.args, add_samples=partial(seed, log=sys.stderr), program=f"{called()} localhub")


def main() -> None:
    """Run the command line and exit: 0 done, 1 a "no", 2 wrong usage, 3 refused or failed, 130 cancelled."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _interrupt)
    # A header makes hundreds of thousands of small values that stay. Collecting less often saves a sixth of the time.
    gc.set_threshold(100_000, 50, 100)
    try:
        app(prog_name=called())
    except SystemExit as end:
        if end.code == Cancelled.exit_status:
            # A thread may still wait for a network that stalls. Ending it now spoils nothing.
            sys.stdout.flush()
            os._exit(Cancelled.exit_status)
        raise


@app.callback(invoke_without_command=True)
def _top(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"shard-my-repo {__version__}")
        raise typer.Exit


def _interrupt(number: int, _: object) -> NoReturn:
    if number == signal.SIGHUP:  # the shell and the system both send one if a terminal closes
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextmanager
def _outcome(machine: bool, resumable: bool = False) -> Iterator["Terminal"]:
    """Yield the terminal. Turn an error into words and a status: a traceback's 1 would mean "they differ"."""
    from rich.console import Console

    from sharding.cli.terminal import Terminal

    passing = Console(stderr=True, soft_wrap=True)
    results = passing if machine else Console(soft_wrap=True)
    with Terminal(results, passing) as terminal:
        try:
            yield terminal
        except (typer.Exit, typer.Abort):
            raise
        except (Exception, KeyboardInterrupt) as cause:
            error = _for_people(cause, resumable)
            terminal.error(error)
            if machine:
                _print_json({"error": error.document()})
            raise typer.Exit(error.exit_status) from cause


def _for_people(cause: Exception | KeyboardInterrupt, resumable: bool) -> ShardingError:
    if isinstance(cause, KeyboardInterrupt):
        hint = "What is finished is kept. To go on, run the same command again. To start over, add --restart."
        cause = Cancelled(str(cause) or "Cancelled.", hint if resumable else "")
    error = cause if isinstance(cause, ShardingError) else unforeseen(cause)
    secrets = dict.fromkeys(proxy_logins(), "[login]@")
    with suppress(Refused, ValueError):  # a token that cannot be read is in no message
        secrets |= {token: "[token]"} if (token := hub_token()) else {}
    for secret, shown in secrets.items():  # messages of other libraries may contain them
        error.message, error.hint = (text.replace(secret, shown) for text in (error.message, error.hint))
    error.hint = as_called(error.hint)
    return error


def _follow(events: "Events", terminal: "Terminal", as_json: bool, as_events: bool) -> None:
    from sharding.core.events import Progress
    from sharding.report.report import event_json

    event = None
    with closing(events):
        for event in events:
            if as_events:
                _print_json(event_json(event))
                if isinstance(event, Progress) and getattr(sys.stdout, "is_unread", False):
                    raise KeyboardInterrupt("Cancelled: nobody reads the events any more.")
            else:
                terminal.event(event)
    if as_json and event:
        document = event_json(event)
        del document["event"]
        _print_json(document)
    if (proof := getattr(event, "verification", None)) and not proof.holds:
        raise typer.Exit(1)


def _print_json(document: dict[str, Any]) -> None:
    # Names come from files of strangers, and json escapes every character that a terminal obeys except DEL.
    sys.stdout.write(json.dumps(document).replace("\x7f", "\\u007f") + "\n")
    sys.stdout.flush()
