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
from sharding.core import options
from sharding.core.environment import hub_token
from sharding.core.errors import Cancelled, Refused, ShardingError, UsageError, unforeseen
from sharding.core.extras import require
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE, ROUNDS
from sharding.core.options import SINGLE_FILE, Options

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


def _choice(what: str, choices: Any, *names: str, **more: Any) -> Any:
    """Return an option that takes one of `choices`; what is empty is refused with all else that is."""

    def parse(text: str) -> str:
        return options.chosen(what, text, get_args(choices)) if text.strip() else text

    return typer.Option(*names, parser=parse, **more)


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
        for parameter in self.params:
            value, source = ctx.params.get(parameter.name), ctx.get_parameter_source(parameter.name)
            if isinstance(value, str) and not value.strip() and source.name == "COMMANDLINE":
                is_option = parameter.opts[0].startswith("-")
                name = parameter.opts[0] if is_option else parameter.opts[0].upper()
                with _outcome(any(ctx.params.get(machine) for machine in ("as_json", "as_events"))):
                    raise UsageError(f"{name} is empty.", f"Give it a value{', or leave it out' * is_option}.")
        return super().invoke(ctx)


_command = partial(app.command, cls=_Command)

Source = Annotated[str, typer.Argument(metavar="SOURCE", help="A folder, or owner/name[@revision] on the Hub.")]
Destination = Annotated[str, typer.Argument(metavar="DESTINATION", help="A folder, or owner/name on the Hub.")]
Private = Annotated[
    bool | None, typer.Option("--private/--public", help="Who may see a new repo; default: as the source.")
]
Size = Annotated[
    str | None,
    typer.Option(
        "--max-shard-size", "-s", help="Largest shard: 200MB, 2GB, 1GiB, or bytes.", show_default=DEFAULT_MAX_SHARD_SIZE
    ),
]
SingleFile = Annotated[
    bool, typer.Option("--single-file", help="One model.safetensors, whatever its size, as ComfyUI and kohya want it.")
]
Strategy = Annotated[
    str,
    typer.Option(
        help="size fills each shard; blocks cuts no decoder block; pp:N cuts as transformers loads a pipeline of N "
        "ranks."
    ),
]
Rank = Annotated[
    int | None, typer.Option(help="Only what this rank of pp:N loads, from 0 as torchrun counts.", show_default=False)
]
Order = Annotated[
    options.Order,
    _choice(
        "order",
        options.Order,
        help="natural: layer 2 before layer 10. stored: as in the source. transformers: asks the model class, and cuts "
        "as save_pretrained does where weights are renamed or fused in memory.",
    ),
]
Variant = Annotated[str, typer.Option(help="Which weights, where a repo has several: fp16 for model.fp16.safetensors.")]
Base = Annotated[
    str,
    typer.Option(
        metavar="SOURCE",
        help="The model that was trained, for what a training run has saved: its config.json, tokenizer and the like.",
    ),
]
_dtype = partial(_choice, "dtype", options.TargetDtype)
Dtype = Annotated[options.TargetDtype, _dtype(help="What to load as; keep: as it is stored.")]
Cast = Annotated[options.TargetDtype, _dtype("--dtype", help="What to cast to; keep: every bit as it is.")]
Dequantize = Annotated[
    bool,
    typer.Option("--dequantize", help="Make ordinary weights of quantized ones, in --dtype (bf16): FP8, MXFP4."),
]
Method = Literal["from_pretrained", "load_checkpoint_and_dispatch", "offload", "load_sharded_checkpoint", "torch_load"]
AsJson = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
AsEvents = Annotated[
    bool, typer.Option("--events", help="Print one JSON object a line as things happen, the result last.")
]


@_command()
def inspect(source: Source, variant: Variant = "", base: Base = "", as_json: AsJson = False) -> None:
    """Show what a checkpoint holds, from its headers only."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.report import report, schema

        checkpoint = job.inspect(source, variant=variant, base=base, token=hub_token())
        if as_json:
            _print_json(schema.to_json(report.summarize_source(checkpoint)))
        else:
            terminal.checkpoint(checkpoint)


@_command()
def plan(
    source: Source,
    max_shard_size: Size = None,
    single_file: SingleFile = False,
    strategy: Strategy = "size",
    order: Order = "natural",
    dtype: Cast = "keep",
    variant: Variant = "",
    rank: Rank = None,
    base: Base = "",
    dequantize: Dequantize = False,
    picture: Annotated[str, typer.Option(metavar="FILE", help="Draw today's files and the shards into this SVG.")] = "",
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="GLOB", help="Show how the tensors of these names are made: '*.q_proj.*'.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which shards a checkpoint would be cut into. Moves no weights."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.drawing import map_svg
        from sharding.drawing.picture import save_picture
        from sharding.planning.explain import explained
        from sharding.report import report, schema

        size = _size(max_shard_size, single_file)
        chosen = Options(size, strategy, order, dtype, variant, rank=rank, base=base, dequantize=dequantize)
        checkpoint, plan = job.plan(source, chosen, token=hub_token())
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
def shard(
    source: Source,
    destination: Destination,
    max_shard_size: Size = None,
    single_file: SingleFile = False,
    strategy: Strategy = "size",
    order: Order = "natural",
    variant: Variant = "",
    rank: Rank = None,
    base: Base = "",
    private: Private = None,
    confirmed: Annotated[
        bool, typer.Option("--yes", help="A copy of a private or gated source may be public.")
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace another model's copy; in a folder also what others wrote."),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Forget an interrupted run instead of resuming it.")
    ] = False,
    engine: Annotated[
        options.Engine,
        _choice(
            "engine",
            options.Engine,
            help="stream moves bytes; classic loads the whole model and saves it, as the tutorials do.",
        ),
    ] = "stream",
    dtype: Cast = "keep",
    dequantize: Dequantize = False,
    allow_overflow: Annotated[
        bool, typer.Option("--allow-overflow", help="Cast numbers that become infinite; they are counted.")
    ] = False,
    comparing: Annotated[
        bool, typer.Option("--compare", help="Load original and result in turn first; the card shows what it cost.")
    ] = False,
    workers: Annotated[
        options.WorkersOf | None,
        _choice(
            "kind of workers",
            options.WorkersOf,
            help="Have many machines do it: ray, the cluster at RAY_ADDRESS.",
            show_default=False,
        ),
    ] = None,
    expect: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN_ID", help="Refuse any other plan than this one of `plan --json`.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
    as_events: AsEvents = False,
) -> None:
    """Re-shard a checkpoint, verify the result, then publish it. Run it again to resume."""
    with _outcome(as_json or as_events, resumable=True) as terminal:
        from sharding import job
        from sharding.report.schema import Report

        size = _size(max_shard_size, single_file)
        events = job.shard(
            source,
            destination,
            Options(size, strategy, order, dtype, variant, allow_overflow, rank, base, dequantize),
            private=private,
            confirmed=confirmed,
            overwrite=overwrite,
            restart=restart,
            engine=engine,
            compare_rounds=ROUNDS if comparing else 0,
            workers=workers,
            expect=expect or "",
            token=hub_token(),
        )
        last = _follow(events, terminal, as_json, as_events)
        if isinstance(last, Report) and not last.verification.identical:
            raise typer.Exit(1)


@_command()
def verify(
    source: Source,
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="The copy to compare with it.")],
    quick: Annotated[bool, typer.Option("--quick", help="Compare stored digests only; read no weights.")] = False,
    dtype: Annotated[options.TargetDtype, _dtype(help="Compare with SOURCE cast to this.")] = "keep",
    dequantize: Annotated[bool, typer.Option("--dequantize", help="Compare with SOURCE dequantized to it.")] = False,
    variant: Variant = "",
    base: Base = "",
    as_json: AsJson = False,
    as_events: AsEvents = False,
) -> None:
    """Compare two checkpoints tensor by tensor. Exit status 1 if they differ."""
    with _outcome(as_json or as_events) as terminal:
        from sharding import job
        from sharding.core.events import Verified

        events = job.verify(
            source,
            destination,
            quick=quick,
            dtype=dtype,
            variant=variant,
            base=base,
            dequantize=dequantize,
            token=hub_token(),
        )
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
def compare(
    original: Annotated[str, typer.Argument(metavar="ORIGINAL", help="A folder, or owner/name[@revision].")],
    sharded: Annotated[str, typer.Argument(metavar="SHARDED", help="The copy to compare it with.")],
    dtype: Dtype = "keep",
    method: Annotated[
        Method, _choice("method", Method, metavar="METHOD", help=f"How to load: {', '.join(get_args(Method))}.")
    ] = "from_pretrained",
    memory_limit: Annotated[str, typer.Option(help="Hold every load to this: 4GB. Would it load there?")] = "",
    no_mmap: Annotated[bool, typer.Option("--no-mmap", help="Load without memory mapping.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Loads of each, after a warm-up.")] = ROUNDS,
    picture: Annotated[str, typer.Option(metavar="FILE", help="Draw memory over time into this SVG file.")] = "",
    as_json: AsJson = False,
    as_events: AsEvents = False,
) -> None:
    """Load both in turn: time, memory, what makes the difference. Each load has a process of its own."""
    with _outcome(as_json or as_events) as terminal:
        from sharding import job

        load = job.how_to_load(method, dtype, memory_limit, with_mapping=not no_mmap)
        events = job.compare(original, sharded, load=load, rounds=rounds, picture=picture, token=hub_token())
        _follow(events, terminal, as_json, as_events)


@_command()
def devices(
    source: Source,
    budget: Annotated[
        str,
        typer.Option("--budget", help="cuda:0=16GB,cpu=12GB, or a preset: colab-t4, kaggle-2xt4, 24gb, laptop-16gb."),
    ],
    dtype: Dtype = "keep",
    as_json: AsJson = False,
) -> None:
    """Show which block of a model goes on which device. Lists the shard files of each; loads no weights."""
    with _outcome(as_json) as terminal:
        from sharding import job
        from sharding.planning.devices import device_plan_json

        plan = job.devices(source, budget, dtype=dtype, token=hub_token())
        if as_json:
            _print_json(device_plan_json(plan))
        else:
            terminal.devices(plan)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []})
def localhub(context: typer.Context) -> None:
    """Serve a Hub on this machine, to try everything offline. See `localhub --help` for its options."""
    with _outcome(machine=False):
        require("The loopback Hub", ["starlette", "uvicorn", "joserfc"], "localhub")
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


def _size(size: str | None, single_file: bool) -> str:
    """Return the size that was asked for. Raises UsageError for two answers to one question."""
    if size is not None and single_file:
        raise UsageError("--single-file takes no size.", "Leave out --max-shard-size or --single-file.")
    return SINGLE_FILE if single_file else DEFAULT_MAX_SHARD_SIZE if size is None else size


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
