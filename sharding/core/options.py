"""What somebody may choose of a copy and of a job: each option is declared once, for every front end. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from types import UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from sharding.core.errors import Remedy, RemedyKind, UsageError
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE, ROUNDS
from sharding.core.text import nearest, parse_bytes

Strategy = str
"""`size`, `blocks`, or `pp:N` with a number of ranks."""

Order = Literal["natural", "stored", "transformers"]
TargetDtype = Literal["keep", "fp32", "fp16", "bf16"]
Engine = Literal["stream", "classic"]
WorkersOf = Literal["ray"]
"""What runs a job on many machines."""
Group = Literal["What to write", "Where", "How to check", "For machines"]
"""Under which heading an option stands in the help."""

SINGLE_FILE = "single-file"
"""In the place of a size: one file, however large."""

_LARGEST_BYTES = 2**63 - 1
_STRATEGY = re.compile(r"size|blocks|pp:(?P<ranks>[2-9]|[1-9]\d{1,3})", re.ASCII)
_STRATEGIES = ("size", "blocks", "pp:N")
_ALSO_CALLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""What torch calls our dtypes."""
_Choice = TypeVar("_Choice", bound=str)


def chosen(what: str, choice: _Choice, choices: Sequence[str]) -> _Choice:
    """Return `choice`, which is one of `choices` of a `what`. Raises UsageError, which names the nearest of them.

    >>> chosen("dtype", "bf16", ["fp16", "bf16"])
    'bf16'
    """
    if choice not in choices:
        raise _no_such(what, choice, choices)
    return choice


def _no_such(what: str, choice: str, choices: Sequence[str], more: str = "") -> UsageError:
    meant = _ALSO_CALLED.get(str(choice).lower(), "")
    meant = meant if meant in choices else nearest(str(choice), choices)
    guess = f"Did you mean {meant}? " if meant else ""
    return UsageError(f"There is no {what} {choice!r}.", f"{guess}Choose from {', '.join(choices)}.{more}")


@dataclass(frozen=True, slots=True)
class Declared:
    """What every front end knows of an option. Its name, type and default are those of the field.

    - `flags`, `help`, `group`: the command line's words. `metavar` names the value.
    - `commands`, `tools`: which commands and which endpoints take it. `tool_name` is its name over HTTP.
    - `on`: the value that a switch sets. `shorthand` is a switch (flag, value, help) for one value.
    - `called`: what a message calls it, if that is not its name.
    - `title`, `info`, `words`: the page's label, a line below it, and words for its choices.
    - `excludes`: options that make no sense beside it, each with the reason. `remedy` is to leave this one out.
    - `needs`: which choice ("" for any) needs which extra of this package.
    - `since`: the position among the parameters of an endpoint. New ones stand last, so that callers need no change.
    """

    flags: tuple[str, ...]
    help: str
    group: Group = "What to write"
    commands: tuple[str, ...] = ("plan", "shard")
    tools: tuple[str, ...] = ("plan", "shard")
    tool_name: str = ""
    called: str = ""
    metavar: str | None = None
    on: Any = None
    shorthand: tuple[str, Any, str] | None = None
    title: str = ""
    info: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str] = field(default_factory=dict)
    remedy: RemedyKind | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    since: int = 0


def _option(default: Any, flags: str, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"declared": Declared(tuple(flags.split()), help, **more)})


@dataclass(frozen=True, slots=True)
class Option:
    """An option as a front end meets it."""

    name: str
    kind: Any
    default: Any
    declared: Declared

    @property
    def is_switch(self) -> bool:
        """Whether it is given or not, without a value."""
        return self.kind is bool or self.declared.on is not None

    @property
    def choices(self) -> tuple[str, ...]:
        """What there is to choose from, () where that is open."""
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())

    @property
    def is_text(self) -> bool:
        """Whether it takes text alone."""
        return self.kind is str or bool(self.choices)

    @property
    def tool_name(self) -> str:
        """What programs call it."""
        return self.declared.tool_name or self.name

    def extras(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield what needs an extra of this package, and which, if the option is set to `value`.

        >>> list(OPTIONS["strategy"].extras("pp:4")), list(OPTIONS["strategy"].extras("blocks"))
        ([('The strategy pp:4', 'load')], [])
        """
        name, choice = self.declared.called or self.name, str(value).partition(":")[0]
        if value != self.default and "" in self.declared.needs:
            yield f"The {name}", self.declared.needs[""]
        elif value != self.default and choice in self.declared.needs:
            yield f"The {name} {value}", self.declared.needs[choice]

    def words(self, value: Any) -> list[str]:
        """Return the words of the command line that set it to `value`."""
        if value == self.default:
            return []
        flag = self.declared.flags[0]
        if "/" in flag:  # --private/--public
            return [flag.split("/")[0 if value else 1]]
        if self.declared.shorthand and value == self.declared.shorthand[1]:
            return [self.declared.shorthand[0]]
        return [flag] if self.is_switch else [flag, str(value)]


@dataclass(frozen=True, slots=True)
class Options:
    """What a copy shall be like: the same options and the same source give the same files, byte for byte.

    `max_shard_size` is a size such as "200MB", a number of bytes, or SINGLE_FILE. `strategy` says where to cut,
    `order` in which order tensors stand, `dtype` what they are cast to ("keep": not at all). `variant` is such as
    "fp16", where a repo has several; "" takes the plain weights. A cast that makes a finite number infinite is refused,
    unless `allow_overflow`. `rank` takes only what that rank of a pipeline `pp:N` loads, from 0. `base` is the model
    that was trained, a folder or a repo: what a training run has saved has no configuration beside it. With
    `dequantize` quantized weights become ordinary ones of `dtype`, and "keep" becomes "bf16". Raises UsageError for
    what is no choice.

    >>> options = Options("200MB", strategy="pp:4")
    >>> options.max_shard_bytes, options.ranks
    (200000000, 4)
    """

    max_shard_size: str | int = _option(
        DEFAULT_MAX_SHARD_SIZE,
        "--max-shard-size -s",
        "The largest file: 200MB, 2GB, 1GiB, or a number of bytes.",
        shorthand=("--single-file", SINGLE_FILE, "One file, whatever its size, as ComfyUI and kohya want it."),
    )
    strategy: Strategy = _option(
        "size",
        "--strategy",
        "size fills each file. blocks cuts no decoder block. pp:N cuts as transformers loads a pipeline of N ranks.",
        title="Where to cut",
        info="Between layers, where you load layer by layer. For several machines, where torchrun and transformers "
        "cut: each loads its own files only.",
        words={
            "size": "Wherever a file is full",
            "blocks": "Between layers",
            "pp": "For transformers on several machines",
        },
        excludes={"engine": "The classic engine cuts by size alone."},
        needs={"pp": "load"},
    )
    order: Order = _option(
        "natural",
        "--order",
        "natural: layer 2 before layer 10. stored: as in the source. transformers: asks the model class, and cuts as "
        "save_pretrained does where weights are renamed or fused in memory.",
        title="Order of the tensors",
        info="By layer gives what most tools write. As transformers saves it, where the files shall equal those of "
        "save_pretrained also for models that it renames or fuses in memory.",
        words={
            "natural": "By layer: 2 before 10",
            "stored": "As in today's files",
            "transformers": "As transformers saves it",
        },
        needs={"transformers": "load"},
    )
    dtype: TargetDtype = _option(
        "keep",
        "--dtype",
        "fp32, fp16 or bf16: what numbers are cast to, or loaded as. keep: as they are stored.",
        commands=("plan", "shard", "verify", "compare", "devices"),
        title="Number format",
        info="fp16 and bf16 halve a model of fp32, and lose digits. As it is keeps every bit.",
        words={"keep": "As it is"},
    )
    variant: str = _option(
        "",
        "--variant",
        "Which weights, where a repo has several: fp16 for model.fp16.safetensors.",
        commands=("inspect", "plan", "shard", "verify"),
        tools=("inspect", "plan", "shard"),
        excludes={"engine": "The classic engine loads the plain weights only."},
        since=1,
    )
    allow_overflow: bool = _option(
        False,
        "--allow-overflow",
        "Cast numbers that become infinite too. They are counted.",
        commands=("shard",),
        tools=("shard",),
        title="Allow overflow",
        info="Numbers too large for this format become infinite and are counted; else they end the job.",
    )
    rank: int | None = _option(
        None,
        "--rank",
        "Only what this rank of pp:N loads, from 0 as torchrun counts.",
        tools=(),
        excludes={"compare_rounds": "What one rank loads computes nothing by itself."},
    )
    base: str = _option(
        "",
        "--base",
        "The model that was trained, for what a training run has saved: its config.json, tokenizer and the like.",
        commands=("inspect", "plan", "shard", "verify"),
        tools=("inspect", "plan", "shard"),
        metavar="SOURCE",
        since=2,
    )
    dequantize: bool = _option(
        False,
        "--dequantize",
        "Make ordinary weights of quantized ones (FP8, MXFP4), of the dtype that is asked for, or of bf16.",
        commands=("plan", "shard", "verify"),
        excludes={
            "engine": "The classic engine dequantizes nothing.",
            "compare_rounds": "Loading the quantized original may need kernels that are not here: it is not compared.",
        },
        since=3,
    )

    def __post_init__(self) -> None:
        """Refuse what is no choice."""
        if self.dequantize and self.dtype == "keep":
            object.__setattr__(self, "dtype", "bf16")
        if self.strategy.startswith("stage"):
            raise UsageError(
                "The strategy stages:N is gone: nothing loads such files as stages.",
                "Choose pp:N, which transformers loads as a pipeline of N ranks, or blocks.",
            )
        if not self.is_single_file:
            parse_bytes(str(self.max_shard_size))
        elif self.strategy != "size":
            raise UsageError("A single file is not cut.", "Leave out the strategy, or give a size.")
        if not _STRATEGY.fullmatch(self.strategy):
            raise _no_such("strategy", self.strategy, _STRATEGIES, " N is 2 or more.")
        chosen("order", self.order, get_args(Order))
        chosen("dtype", self.dtype, get_args(TargetDtype))
        if self.rank is not None and not 0 <= self.rank < self.ranks:
            range_text = f"one of {self.ranks} from 0 to {self.ranks - 1}" if self.ranks else "one of a pipeline pp:N"
            raise UsageError(f"There is no rank {self.rank}.", f"A rank is {range_text}.")

    def extras(self) -> Iterator[tuple[str, str]]:
        """Yield each choice that needs an extra of this package, with the name of the extra."""
        return (need for name, option in _declared(Options).items() for need in option.extras(getattr(self, name)))

    @property
    def is_single_file(self) -> bool:
        """Whether everything that is loaded together stands in one file."""
        return self.max_shard_size == SINGLE_FILE

    @property
    def max_shard_bytes(self) -> int:
        """The largest size of a shard, its header not counted; for a single file the largest that a file can have."""
        return _LARGEST_BYTES if self.is_single_file else parse_bytes(str(self.max_shard_size))

    @property
    def ranks(self) -> int:
        """Number of ranks of transformers' pipeline, its `pp_size`; 0 for a strategy without any."""
        match = _STRATEGY.fullmatch(self.strategy)
        return int(match["ranks"] or 0) if match else 0

    @property
    def asks_class(self) -> bool:
        """Whether a plan needs to know what transformers knows of the model."""
        return (self.strategy, self.dtype) != ("size", "keep") or self.order == "transformers"

    @property
    def asks_library(self) -> bool:
        """Whether transformers itself must be asked, which the table in this package cannot answer for."""
        return bool(self.ranks) or self.order == "transformers"


@dataclass(frozen=True, slots=True)
class Request:
    """A job: which copy of what goes where, and how. What `job.shard` takes."""

    source: str
    destination: str
    options: Options = Options()
    private: bool | None = _option(
        None,
        "--private/--public",
        "Who may see a new repo. As the source, where nothing is said.",
        group="Where",
        commands=("shard",),
        tools=("shard",),
    )
    confirmed: bool = _option(
        False,
        "--yes",
        "A copy of a private or gated source may be public.",
        group="Where",
        commands=("shard",),
        tools=("shard",),
        tool_name="public_copy_allowed",
    )
    overwrite: bool = _option(
        False,
        "--overwrite",
        "Replace another model's copy. In a folder also what others wrote.",
        group="Where",
        commands=("shard",),
        tools=("shard",),
    )
    restart: bool = _option(
        False,
        "--restart",
        "Forget an interrupted run instead of resuming it.",
        group="Where",
        commands=("shard",),
        tools=(),
    )
    engine: Engine = _option(
        "stream",
        "--engine",
        "stream moves bytes. classic loads the whole model and saves it, as the tutorials do.",
        group="Where",
        commands=("shard",),
        tools=(),
        remedy="use_stream_engine",
        needs={"classic": "load"},
    )
    compare_rounds: int = _option(
        0,
        "--compare",
        "Load the original and the copy as well, and report what that costs.",
        group="How to check",
        commands=("shard",),
        tools=("shard",),
        tool_name="compare",
        called="comparison",
        remedy="leave_comparison_out",
        needs={"": "load"},
        on=ROUNDS,
    )
    workers: WorkersOf | None = _option(
        None,
        "--workers",
        "Have many machines do it: ray, the cluster at RAY_ADDRESS.",
        group="Where",
        commands=("shard",),
        tools=(),
        called="kind of workers",
        excludes={"engine": "The classic engine loads the model on one machine."},
        needs={"ray": "ray"},
    )
    expect: str = _option(
        "",
        "--expect",
        "Refuse any other plan than this one of `plan --json`.",
        group="For machines",
        commands=("shard",),
        tools=(),
        metavar="PLAN_ID",
    )

    @classmethod
    def of(cls, source: str, destination: str, chosen: Mapping[str, Any]) -> Self:
        """Return a request with the options that are `chosen`, by name."""
        return cls(source, destination, **_sorted_out(chosen))

    def refuse_contradictions(self) -> None:
        """Raise UsageError for what is no choice, and for options that exclude one another."""
        for name, option in _declared(Request).items():
            if option.choices and getattr(self, name) is not None:
                chosen(option.declared.called or name, getattr(self, name), option.choices)
        known = OPTIONS
        for option in known.values():
            for other, reason in option.declared.excludes.items():
                if self._has(option) and self._has(known[other]):
                    flags = option.declared.flags[0], known[other].declared.flags[0]
                    remedy = known[other].declared.remedy
                    hint = f"Leave out {flags[0]} or {flags[1]}."
                    raise UsageError(reason, hint, Remedy(remedy) if remedy else None)

    def extras(self) -> Iterator[tuple[str, str]]:
        """Yield each choice that needs an extra of this package, with the name of the extra."""
        return (need for option in OPTIONS.values() for need in option.extras(self._value(option)))

    def words(self, command: str) -> list[str]:
        """Return the words of the command line that choose the same for `command`."""
        taken = (option for option in OPTIONS.values() if command in option.declared.commands)
        return [word for option in taken for word in option.words(self._value(option))]

    def _has(self, option: Option) -> bool:
        return bool(self._value(option) != option.default)

    def _value(self, option: Option) -> Any:
        return getattr(self.options if option.name in _declared(Options) else self, option.name)


def _sorted_out(chosen: Mapping[str, Any]) -> dict[str, Any]:
    inner = {name: value for name, value in chosen.items() if name in _declared(Options)}
    return {"options": Options(**inner), **{name: value for name, value in chosen.items() if name not in inner}}


@cache
def _declared(kind: type[Any]) -> Mapping[str, Option]:
    hints = get_type_hints(kind)
    return {
        one.name: Option(one.name, hints[one.name], one.default, one.metadata["declared"])
        for one in fields(kind)
        if "declared" in one.metadata
    }


OPTIONS: Mapping[str, Option] = {**_declared(Options), **_declared(Request)}
"""Every option of a copy and of a job, by its name: all lists of them are made from this one."""


def of_command(command: str) -> list[Option]:
    """Return the options that `command` takes."""
    return [option for option in OPTIONS.values() if command in option.declared.commands]


def of_tool(tool: str) -> list[Option]:
    """Return the options that `tool` takes, in the order of its parameters."""
    taken = [option for option in OPTIONS.values() if tool in option.declared.tools]
    return sorted(taken, key=lambda option: option.declared.since)
