"""Declare every option of a copy or a job once, for all front ends. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from types import UnionType
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from sharding.core.errors import Remedy, RemedyKind, UsageError
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE, ROUNDS
from sharding.core.origin import Place, Role
from sharding.core.text import nearest, parse_bytes

Order = Literal["natural", "stored", "transformers"]
TargetDtype = Literal["keep", "fp32", "fp16", "bf16"]
Engine = Literal["stream", "classic"]
Proving = Literal["read", "stated"]
Group = Literal["What to write", "Where", "How to check", "For machines"]
"""The headings of a command's help. The help lists them in this order."""

SINGLE_FILE = "single-file"  # Given instead of a size: one file, however large.

_LARGEST_BYTES = 2**63 - 1
_STRATEGY = re.compile(r"size|blocks|pp:(?P<ranks>[2-9]|[1-9]\d{1,3})", re.ASCII)
_ALPHA = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)
_STRATEGIES = ("size", "blocks", "pp:N")
_ALSO_CALLED = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
"""Other names of our dtypes, most of them torch's."""
_Choice = TypeVar("_Choice", bound=str)


def chosen(what: str, choice: _Choice, choices: Sequence[str]) -> _Choice:
    """Return `choice` if it is one of `choices`. If not, raise UsageError: it names `what` and the nearest choice.

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
class Option:
    """What the front ends need to know about an option. Its dataclass field gives the name, the type and the default.

    - `on`: the value that a switch sets. `shorthand` is another switch (flag, value, help) for one value.
    - `called`: its name in messages, and `tool_name` over HTTP.
    - `excludes`: options that contradict this one, each with the reason. `remedy` is to leave this option out.
    - `needs`: for a choice ("" for any), the extra of this package that it needs.
    - `again`: the hint if it is given twice. `is_list`: it may be, and its value is a list with commas.
    - `since`: sorts the parameters of an endpoint. New options come last, so that callers need no change.
    """

    flags: tuple[str, ...]
    help: str
    default: Any
    name: str = ""
    kind: Any = None
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
    labels: Mapping[str, str] = field(default_factory=dict)
    excludes: Mapping[str, str] = field(default_factory=dict)
    remedy: RemedyKind | None = None
    needs: Mapping[str, str] = field(default_factory=dict)
    computes: bool = False
    again: str = "Give it once."
    role: Role | None = None
    is_list: bool = False
    since: int = 0

    @property
    def is_switch(self) -> bool:
        """Whether the option takes no value."""
        return self.kind is bool or self.on is not None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values that the option takes; () if it takes others too."""
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())

    def extras(self, value: Any) -> Iterator[tuple[str, str]]:
        """Yield (what needs it, extra) for each extra of this package that `value` needs, which is not the default.

        >>> list(OPTIONS["strategy"].extras("pp:4")), list(OPTIONS["strategy"].extras("blocks"))
        ([('The strategy pp:4', 'load')], [])
        """
        choice = str(value).partition(":")[0]
        if "" in self.needs:
            yield f"The {self.called}", self.needs[""]
        elif choice in self.needs:
            yield f"The {self.called} {value}", self.needs[choice]

    def words(self, value: Any) -> list[str]:
        """Return the words that set the option to `value`, which is not the default, on the command line."""
        flag = self.flags[0]
        if "/" in flag:  # --private/--public
            return [flag.split("/")[0 if value else 1]]
        if self.shorthand and value == self.shorthand[1]:
            return [self.shorthand[0]]
        is_bytes = self.metavar == "SIZE" and isinstance(value, int)
        return [flag] if self.is_switch else [flag, f"{value}B" if is_bytes else str(value)]


def _option(default: Any, flags: str, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"option": Option(tuple(flags.split()), help, default, **more)})


_of_tensors = partial(_option, commands=("plan", "shard", "verify"))
_by_hand = partial(
    _of_tensors,
    excludes={"engine": "The classic engine keeps the layout of its model."},
    computes=True,
    since=8,
)
_of_job = partial(_option, group="Where", commands=("shard",), tools=("shard",))


@cache
def _declared(kind: type[Any]) -> Mapping[str, Option]:
    hints, options = get_type_hints(kind), dict[str, Option]()
    for one in fields(kind):
        if option := one.metadata.get("option"):
            names = {"tool_name": option.tool_name or one.name, "called": option.called or one.name}
            options[one.name] = replace(option, name=one.name, kind=hints[one.name], **names)
    return options


def _given(kind: Any, values: Any) -> list[tuple[Option, Any]]:
    """Return the options of a `kind` of values that have another value than their default, each with its value."""
    all_ = ((option, getattr(values, name)) for name, option in _declared(kind).items())
    return [(option, value) for option, value in all_ if value != option.default]


@dataclass(frozen=True, slots=True)
class Options:
    """What a copy is like. The same options and the same source give the same files, byte for byte.

    Each field is the option of its name on the command line. Raises UsageError for a value that is no choice.

    >>> options = Options("200MB", strategy="pp:4")
    >>> options.max_shard_bytes, options.ranks
    (200000000, 4)
    """

    max_shard_size: str | int = _option(
        DEFAULT_MAX_SHARD_SIZE,
        "--max-shard-size -s",
        "Largest file: 2GB, 1GiB, or bytes",
        metavar="SIZE",
        shorthand=("--single-file", SINGLE_FILE, "One file, whatever its size"),
    )
    strategy: str = _option(
        "size",
        "--strategy",
        "size (fill files), blocks (cut between blocks) or pp:N (for N ranks)",
        metavar="STRATEGY",
        title="Where to cut",
        info="Choose between layers if you load layer by layer. For several machines, the cuts are those of torchrun "
        "and transformers: each machine loads only its own files.",
        labels={
            "size": "Wherever a file is full",
            "blocks": "Between layers",
            "pp": "For transformers on several machines",
        },
        excludes={"engine": "The classic engine can only cut by size."},
        needs={"pp": "load"},
    )
    order: Order = _option(
        "natural",
        "--order",
        "natural (2 before 10), stored (as in source) or transformers (as it saves)",
        metavar="ORDER",
        title="Order of the tensors",
        info="Most tools write by layer. The last choice gives the same files as save_pretrained, including models "
        "that it renames in memory.",
        labels={
            "natural": "By layer: 2 before 10",
            "stored": "As in today's files",
            "transformers": "As transformers saves it",
        },
        needs={"transformers": "load"},
    )
    dtype: TargetDtype = _option(
        "keep",
        "--dtype",
        "Cast to fp32, fp16 or bf16",
        metavar="DTYPE",
        commands=("plan", "shard", "verify", "compare", "devices"),
        title="Number format",
        info="fp16 and bf16 halve an fp32 model and lose digits. As it is keeps every bit.",
        labels={"keep": "As it is"},
        computes=True,
    )
    variant: str = _option(
        "",
        "--variant",
        "Which weights, if a repo has several: fp16, Q4_K_M",
        group="Where",
        metavar="NAME",
        commands=("inspect", "plan", "shard", "verify"),
        tools=("inspect", "plan", "shard"),
        excludes={"engine": "The classic engine loads only the plain weights."},
        since=1,
    )
    allow_overflow: bool = _option(
        False,
        "--allow-overflow",
        "Let a cast make numbers infinite, and count them",
        commands=("shard",),
        tools=("shard",),
        title="Allow overflow",
        info="Numbers too large for this format become infinite, and the report counts them. "
        "Otherwise they stop the job.",
    )
    rank: int | None = _option(
        None,
        "--rank",
        "Only what this rank of pp:N loads, from 0",
        metavar="N",
        tools=(),
        excludes={"compare_rounds": "The weights of one rank compute nothing on their own."},
    )
    base: str = _option(
        "",
        "--base",
        "For what a training run saved: its base model",
        group="Where",
        commands=("inspect", "plan", "shard", "verify"),
        tools=("inspect", "plan", "shard"),
        metavar="SOURCE",
        since=2,
        role="base",
        title="The model that was trained",
        info="The checkpoint has no configuration, tokenizer or licence. They are taken from the model you name here.",
    )
    dequantize: bool = _of_tensors(
        False,
        "--dequantize",
        "Turn quantized weights into bf16 or the dtype",
        excludes={"engine": "The classic engine cannot dequantize."},
        computes=True,
        since=3,
    )
    adapter: str = _of_tensors(
        "",
        "--adapter",
        "A LoRA to merge: a folder, or owner/name",
        metavar="ADAPTER",
        excludes={
            "base": "The output of a training run is not a base for an adapter.",
            "engine": "The classic engine merges no adapters.",
        },
        since=4,
        computes=True,
        role="adapter",
        again="Merge one adapter. Then merge the next one into the result.",
        title="Adapter",
        info="The LoRA to merge: owner/name, owner/name@revision/folder, or a link to it.",
    )

    like: str = _of_tensors(
        "",
        "--like",
        "Give it the names and form of its original",
        metavar="SOURCE",
        excludes={
            "base": "With --base, a training run gets the names of its base already.",
            "adapter": "Merge the adapter first. Then make the result like its original.",
            "engine": "The classic engine keeps the layout of its model.",
            **dict.fromkeys(
                ("text_only", "experts", "only", "drop", "rename", "fill"),
                "The original decides all names and forms, so nothing is left to choose by hand.",
            ),
        },
        since=6,
        computes=True,
        role="like",
        title="The original",
        info="The model that it was trained from, as tools load it: owner/name. The copy gets its names and form.",
    )
    keep_extra: bool = _of_tensors(
        False,
        "--keep-extra",
        "With --like: keep what the original does not have",
        since=7,
    )
    lora_alpha: str = _option(
        "",
        "--lora-alpha",
        "The alpha of a LoRA that a training run holds",
        commands=("plan", "shard", "verify"),
        metavar="N",
        since=15,
        computes=True,
        excludes={"engine": "The classic engine merges no adapters."},
    )
    save_as: Literal["adapter"] | None = _option(
        None,
        "--as",
        "adapter: save only the LoRA that a training run holds",
        commands=("plan", "shard", "verify"),
        metavar="FORM",
        since=15,
        computes=True,
        excludes={"engine": "The classic engine keeps the layout of its model."},
    )
    text_only: bool = _by_hand(False, "--text-only", "Only the text model of a model for images or speech")
    experts: Literal["fused", "separate"] | None = _by_hand(
        None, "--experts", "Store experts in one tensor (fused) or one by one (separate)", metavar="FORM"
    )
    only: str = _by_hand("", "--only", "Take only tensors with such names", metavar="GLOB", is_list=True)
    drop: str = _by_hand("", "--drop", "Leave out tensors with such names", metavar="GLOB", is_list=True)
    rename: str = _by_hand("", "--rename", "Change how names begin", metavar="OLD=NEW", is_list=True)
    fill: str = _by_hand("", "--fill", "Add tensors that it lacks, from --from", metavar="GLOB", is_list=True)
    fill_from: str = _of_tensors(
        "",
        "--from",
        "Where --fill takes its tensors",
        metavar="SOURCE",
        excludes={"like": "The original decides what is filled."},
        since=14,
        role="fill",
        computes=True,
    )

    format: Literal["gguf"] | None = _option(
        None,
        "--format",
        "gguf: the GGUF models of a repo that has other weights too",
        group="Where",
        metavar="gguf",
        commands=("inspect", "plan", "shard", "verify"),
        tools=("inspect", "plan", "shard"),
        excludes={"engine": "The classic engine loads no GGUF files."},
        since=15,
    )

    def __post_init__(self) -> None:
        texts = (name for name, option in _declared(Options).items() if option.role or option.is_list)
        for name in ("variant", "lora_alpha", *texts):
            if not isinstance(getattr(self, name), str):
                raise UsageError(f"The {name} is not a text.", "Give it one value.")
        if not self.is_single_file:
            parse_bytes(self.max_shard_size)
        elif self.strategy != "size":
            raise UsageError("A single file is not cut.", "Leave out the strategy, or choose a size.")
        if not _STRATEGY.fullmatch(self.strategy):
            raise _no_such("strategy", self.strategy, _STRATEGIES, " N is 2 or more.")
        chosen("order", self.order, get_args(Order))
        if self.experts is not None:
            chosen("form of experts", self.experts, ("fused", "separate"))
        if self.save_as is not None:
            chosen("form", self.save_as, ("adapter",))
        if self.lora_alpha and not (_ALPHA.fullmatch(self.lora_alpha) and float(self.lora_alpha)):
            message = f"The alpha {self.lora_alpha[:50]!r} is not a number above 0."
            raise UsageError(message, "Give the one that the LoRA was trained with, such as 16.")
        if self.keep_extra and not self.like:
            raise UsageError(
                "Only beside an original can a tensor be extra.", "Add --like owner/name.", Remedy("by_hand")
            )
        if bool(self.fill) != bool(self.fill_from):
            message = "What to fill and where it comes from belong together."
            raise UsageError(message, "Write --fill GLOB --from owner/name.", Remedy("by_hand"))
        if self.format is not None:
            chosen("format", self.format, ("gguf",))
        chosen("dtype", self.dtype, get_args(TargetDtype))
        if self.rank is not None and not 0 <= self.rank < self.ranks:
            ranks = f"one from 0 to {self.ranks - 1}" if self.ranks else "the strategy pp:N, which has N ranks"
            raise UsageError(f"There is no rank {self.rank}.", f"Choose {ranks}.")

    def extras(self) -> Iterator[tuple[str, str]]:
        """Yield (what needs it, extra) for each extra of this package that the options need."""
        return (need for option, value in _given(Options, self) for need in option.extras(value))

    @property
    def inputs(self) -> dict[Role, str]:
        """The inputs that they name beside the model, each by its role."""
        return {option.role: text for option, text in _given(Options, self) if option.role}

    @property
    def computing(self) -> list[str]:
        """The flags of the options that change numbers."""
        return [option.flags[0] for option, _ in _given(Options, self) if option.computes]

    @property
    def contradicted(self) -> set[str]:
        """The names of the options that they contradict."""
        return {other for option, _ in _given(Options, self) for other in option.excludes}

    @property
    def deciding(self) -> dict[str, Any]:
        """What they set of the options that decide bytes, by name, except where to cut and which inputs to read."""
        decide = ((option, value) for option, value in _given(Options, self) if "verify" in option.commands)
        return {option.name: value for option, value in decide if not option.role}

    @property
    def dtype_made(self) -> TargetDtype:
        """The dtype of the weights that a copy computes. "keep" if it computes none."""
        return "bf16" if self.dequantize and self.dtype == "keep" else self.dtype

    @property
    def is_single_file(self) -> bool:
        """Whether everything that is loaded together goes into one file."""
        return self.max_shard_size == SINGLE_FILE

    @property
    def max_shard_bytes(self) -> int:
        """The limit of a shard without its header. For a single file, the largest size that a file can have."""
        return _LARGEST_BYTES if self.is_single_file else parse_bytes(self.max_shard_size)

    @property
    def ranks(self) -> int:
        """The number of ranks of transformers' pipeline, its `pp_size`. 0 for a strategy without ranks."""
        match = _STRATEGY.fullmatch(self.strategy)
        return int(match["ranks"] or 0) if match else 0

    @property
    def asks_class(self) -> bool:
        """Whether a plan needs facts about the model class."""
        return (self.strategy, self.dtype) != ("size", "keep") or self.order == "transformers"


@dataclass(frozen=True, slots=True)
class Request:
    """A job with its source, its destination and all its options.

    Each field is the option of its name on the command line. For `private`, None is as the source, or private if that
    is a folder. `compare_rounds` is how many times to load the original and the result, before it is published.
    """

    source: str
    destination: str
    options: Options = Options()
    private: bool | None = _of_job(None, "--private/--public", "Who may see a new repo, else as the source")
    confirmed: bool = _of_job(
        False, "--yes", "Let a private or gated source have a public copy", tool_name="public_copy_allowed"
    )
    overwrite: bool = _of_job(False, "--overwrite", "Replace another model's copy, or others' files")
    restart: bool = _of_job(False, "--restart", "Start again instead of resuming", tools=())
    engine: Engine = _of_job(
        "stream",
        "--engine",
        "stream (move bytes) or classic (load the model and save it)",
        metavar="ENGINE",
        tools=(),
        title="How to make it",
        labels={"stream": "Move its bytes", "classic": "Load the model and save it again"},
        remedy="use_stream_engine",
        needs={"classic": "load"},
    )
    proof: Proving = _of_job(
        "read",
        "--proof",
        "read (every byte again) or stated (trust the Hub's hashes)",
        group="How to check",
        metavar="PROOF",
        title="Check",
        labels={"read": "Read everything again", "stated": "Trust the Hub's hashes"},
        excludes={"engine": "The classic engine reads the whole copy again."},
        since=5,
    )
    compare_rounds: int = _of_job(
        0,
        "--compare",
        "Load original and copy too, and report the cost",
        group="How to check",
        tool_name="compare",
        called="comparison",
        remedy="leave_comparison_out",
        needs={"": "load"},
        on=ROUNDS,
    )
    workers: Literal["ray"] | None = _of_job(
        None,
        "--workers",
        "Share the job on the cluster at RAY_ADDRESS",
        metavar="ray",
        tools=(),
        called="kind of workers",
        excludes={"engine": "The classic engine runs on one machine only."},
        needs={"ray": "ray"},
    )
    expect: str = _of_job(
        "", "--expect", "Refuse any plan but this one of plan --json", group="For machines", tools=(), metavar="PLAN_ID"
    )

    @property
    def inputs(self) -> dict[Role, str]:
        """All that the job reads: the name of each input, by its role. The model comes first."""
        return {"model": self.source, **self.options.inputs}

    @classmethod
    def of(cls, source: str, destination: str, chosen: Mapping[str, Any]) -> Self:
        """Return a request with the `chosen` options, given by name."""
        of_copy = {name: value for name, value in chosen.items() if name in _declared(Options)}
        of_job = {name: value for name, value in chosen.items() if name not in of_copy}
        return cls(source, destination, Options(**of_copy), **of_job)

    def refuse_contradictions(self) -> None:
        """Raise UsageError for a value that is no choice, and for options that contradict each other."""
        for name, option in _declared(Request).items():
            if option.choices and getattr(self, name) is not None:
                chosen(option.called, getattr(self, name), option.choices)
        given = {option.name: option for option, _ in self._given}
        for option in given.values():
            for name, reason in option.excludes.items():
                if other := given.get(name):
                    hint = f"Leave out {option.flags[0]} or {other.flags[0]}."
                    raise UsageError(reason, hint, Remedy(other.remedy) if other.remedy else None)

    def extras(self) -> Iterator[tuple[str, str]]:
        """Yield (what needs it, extra) for each extra of this package that the options need."""
        return (need for option, value in self._given for need in option.extras(value))

    def words(self, command: str) -> list[str]:
        """Return the words that make the same choices for `command` on the command line."""
        taken = ((option, value) for option, value in self._given if command in option.commands)
        return [word for option, value in taken for word in option.words(value)]

    @property
    def _given(self) -> list[tuple[Option, Any]]:
        return [*_given(Options, self.options), *_given(Request, self)]


OPTIONS: Mapping[str, Option] = {**_declared(Options), **_declared(Request)}
"""Every option, by its name. All other lists of options are made from this one."""


def naming(places: Iterable[Place]) -> dict[str, Any]:
    """Return the options that name these places, each with its value. The model is no option."""
    by_role = {option.role: name for name, option in OPTIONS.items() if option.role}
    return {by_role[place.role]: place.text for place in places if place.role in by_role}


def of_command(command: str) -> list[Option]:
    """Return the options that `command` takes."""
    return [option for option in OPTIONS.values() if command in option.commands]


def of_tool(tool: str) -> list[Option]:
    """Return the options that `tool` takes, in the order of its parameters."""
    taken = [option for option in OPTIONS.values() if tool in option.tools]
    return sorted(taken, key=lambda option: option.since)
