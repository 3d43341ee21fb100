"""Declare every option of a copy or a job once, for all front ends. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal, Self

from sharding.core.errors import Remedy, UsageError
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE, ROUNDS
from sharding.core.option import Option, clash, declare, declared, given, no_such, refuse_no_choice
from sharding.core.origin import Place, Role
from sharding.core.text import parse_bytes

Order = Literal["natural", "stored", "transformers"]
TargetDtype = Literal["keep", "fp32", "fp16", "bf16"]
Engine = Literal["stream", "classic"]
Proving = Literal["read", "stated"]

SINGLE_FILE = "single-file"  # Given instead of a size: one file, however large.

_STRATEGY = re.compile(r"size|blocks|pp:([2-9]|[1-9]\d{1,3})", re.ASCII)
_ALPHA = re.compile(r"\d{1,6}(?:\.\d{1,6})?", re.ASCII)

_of_source = partial(declare, group="Where", commands=("inspect", "plan", "shard", "verify"))
_of_tensors = partial(declare, commands=("plan", "shard", "verify"))
_computing = partial(_of_tensors, computes=True)
_by_hand = partial(_computing, since=8)
_of_job = partial(declare, group="Where", commands=("shard",))


@dataclass(frozen=True, slots=True)
class Options:
    """What a copy is like. The same options and the same source give the same files, byte for byte.

    Each field is the option of its name on the command line. Raises UsageError for a value that is no choice.

    >>> options = Options("200MB", strategy="pp:4")
    >>> options.max_shard_bytes, options.ranks
    (200000000, 4)
    """

    max_shard_size: str | int = declare(
        DEFAULT_MAX_SHARD_SIZE,
        "Largest file: 2GB, 1GiB, or bytes",
        "--max-shard-size -s",
        metavar="SIZE",
        shorthand=("--single-file", SINGLE_FILE, "One file, whatever its size"),
    )
    strategy: str = declare(
        "size",
        "size (fill files), blocks (cut between blocks) or pp:N (for N ranks)",
        title="Where to cut",
        info="Choose between layers if you load layer by layer. For several machines, the cuts are those of torchrun "
        "and transformers: each machine loads only its own files.",
        labels={
            "size": "Wherever a file is full",
            "blocks": "Between layers",
            "pp": "For transformers on several machines",
        },
        needs={"pp": "load"},
    )
    order: Order = declare(
        "natural",
        "natural (2 before 10), stored (as in source) or transformers (as it saves)",
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
    dtype: TargetDtype = declare(
        "keep",
        "Cast to fp32, fp16 or bf16",
        commands=("plan", "shard", "verify", "compare", "devices"),
        title="Number format",
        info="fp16 and bf16 halve an fp32 model and lose digits. As it is keeps every bit.",
        labels={"keep": "As it is"},
        computes=True,
    )
    variant: str = _of_source("", "Which weights, if a repo has several: fp16, Q4_K_M", metavar="NAME", since=1)
    allow_overflow: bool = declare(
        False,
        "Let a cast make numbers infinite, and count them",
        commands=("shard",),
        title="Allow overflow",
        info="Numbers too large for this format become infinite, and the report counts them. "
        "Otherwise they stop the job.",
    )
    rank: int | None = declare(
        None,
        "Only what this rank of pp:N loads, from 0",
        metavar="N",
        tools=(),
        excludes={"compare_rounds": "The weights of one rank compute nothing on their own."},
    )
    base: str = _of_source(
        "",
        "For what a training run saved: its base model",
        metavar="SOURCE",
        since=2,
        role="base",
        title="The model that was trained",
        info="The checkpoint has no configuration, tokenizer or licence. They are taken from the model you name here.",
        excludes={
            "adapter": "The output of a training run is not a base for an adapter.",
            "like": "With --base, a training run gets the names of its base already.",
        },
    )
    dequantize: bool = _computing(False, "Turn quantized weights into bf16 or the dtype", since=3)
    adapter: str = _computing(
        "",
        "A LoRA to merge: a folder, or owner/name",
        since=4,
        role="adapter",
        again="Merge one adapter. Then merge the next one into the result.",
        title="Adapter",
        info="The LoRA to merge: owner/name, owner/name@revision/folder, or a link to it.",
    )
    like: str = _computing(
        "",
        "Give it the names and form of its original",
        metavar="SOURCE",
        since=6,
        role="like",
        title="The original",
        info="The model that it was trained from, as tools load it: owner/name. The copy gets its names and form.",
        excludes={
            "adapter": "Merge the adapter first. Then make the result like its original.",
            "fill_from": "The original decides what is filled.",
            **dict.fromkeys(
                ("text_only", "experts", "only", "drop", "rename", "fill"),
                "The original decides all names and forms, so nothing is left to choose by hand.",
            ),
        },
    )
    keep_extra: bool = _of_tensors(False, "With --like: keep what the original does not have", since=7)
    lora_alpha: str = _computing("", "The alpha of a LoRA that a training run holds", metavar="N", since=15)
    save_as: Literal["adapter"] | None = _computing(
        None, "adapter: save only the LoRA that a training run holds", "--as", metavar="FORM", called="form", since=15
    )
    text_only: bool = _by_hand(False, "Only the text model of a model for images or speech")
    experts: Literal["fused", "separate"] | None = _by_hand(
        None, "Store experts in one tensor (fused) or one by one (separate)", metavar="FORM", called="form of experts"
    )
    only: str = _by_hand("", "Take only tensors with such names", metavar="GLOB", is_list=True)
    drop: str = _by_hand("", "Leave out tensors with such names", metavar="GLOB", is_list=True)
    rename: str = _by_hand("", "Change how names begin", metavar="OLD=NEW", is_list=True)
    fill: str = _by_hand("", "Add tensors that it lacks, from --from", metavar="GLOB", is_list=True)
    fill_from: str = _computing("", "Where --fill takes its tensors", "--from", metavar="SOURCE", since=14, role="fill")
    format: Literal["gguf"] | None = _of_source(
        None, "gguf: the GGUF models of a repo that has other weights too", metavar="gguf", since=15
    )

    def __post_init__(self) -> None:
        refuse_no_choice(self)
        if not self.is_single_file:
            parse_bytes(self.max_shard_size)
        elif self.strategy != "size":
            raise UsageError("A single file is not cut.", "Leave out the strategy, or choose a size.")
        if not _STRATEGY.fullmatch(self.strategy):
            raise no_such("strategy", self.strategy, ("size", "blocks", "pp:N"), " N is 2 or more.")
        if self.lora_alpha and not (_ALPHA.fullmatch(self.lora_alpha) and float(self.lora_alpha)):
            message = f"The alpha {self.lora_alpha[:50]!r} is not a number above 0."
            raise UsageError(message, "Give the one that the LoRA was trained with, such as 16.")
        if self.keep_extra and not self.like:
            message = "Only beside an original can a tensor be extra."
            raise UsageError(message, "Add --like owner/name.", Remedy("by_hand"))
        if bool(self.fill) != bool(self.fill_from):
            message = "What to fill and where it comes from belong together."
            raise UsageError(message, "Write --fill GLOB --from owner/name.", Remedy("by_hand"))
        if self.rank is not None and not 0 <= self.rank < self.ranks:
            ranks = f"one from 0 to {self.ranks - 1}" if self.ranks else "the strategy pp:N, which has N ranks"
            raise UsageError(f"There is no rank {self.rank}.", f"Choose {ranks}.")

    @property
    def inputs(self) -> dict[Role, str]:
        """The inputs that they name beside the model, each by its role."""
        return {option.role: text for option, text in given(self) if option.role}

    @property
    def computing(self) -> list[str]:
        """The flags of the options that change numbers."""
        return [option.flags[0] for option, _ in given(self) if option.computes]

    @property
    def contradicted(self) -> set[str]:
        """The names of the options that they contradict."""
        ours = [option for option, _ in given(self)]
        return {name for name, other in OPTIONS.items() if any(clash(option, other) for option in ours)}

    @property
    def deciding(self) -> dict[str, Any]:
        """What they set of the options that decide bytes, by name, except where to cut and which inputs to read."""
        decide = ((option, value) for option, value in given(self) if "verify" in option.commands)
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
        return 2**63 - 1 if self.is_single_file else parse_bytes(self.max_shard_size)

    @property
    def ranks(self) -> int:
        """The number of ranks of transformers' pipeline, its `pp_size`. 0 for a strategy without ranks."""
        return int(self.strategy.removeprefix("pp:")) if self.strategy.startswith("pp:") else 0

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
    private: bool | None = _of_job(None, "Who may see a new repo, else as the source", "--private/--public")
    confirmed: bool = _of_job(
        False, "Let a private or gated source have a public copy", "--yes", tool_name="public_copy_allowed"
    )
    overwrite: bool = _of_job(False, "Replace another model's copy, or others' files")
    restart: bool = _of_job(False, "Start again instead of resuming", tools=())
    engine: Engine = _of_job(
        "stream",
        "stream (move bytes) or classic (load the model and save it)",
        tools=(),
        title="How to make it",
        labels={"stream": "Move its bytes", "classic": "Load the model and save it again"},
        remedy="use_stream_engine",
        needs={"classic": "load"},
        excludes={
            "strategy": "The classic engine can only cut by size.",
            "variant": "The classic engine loads only the plain weights.",
            "format": "The classic engine loads no GGUF files.",
            "dequantize": "The classic engine cannot dequantize.",
            "proof": "The classic engine reads the whole copy again.",
            "workers": "The classic engine runs on one machine only.",
            **dict.fromkeys(("adapter", "lora_alpha"), "The classic engine merges no adapters."),
            **dict.fromkeys(
                ("like", "save_as", "text_only", "experts", "only", "drop", "rename", "fill"),
                "The classic engine keeps the layout of its model.",
            ),
        },
    )
    proof: Proving = _of_job(
        "read",
        "read (every byte again) or stated (trust the Hub's hashes)",
        group="How to check",
        title="Check",
        labels={"read": "Read everything again", "stated": "Trust the Hub's hashes"},
        since=5,
    )
    compare_rounds: int = _of_job(
        0,
        "Load original and copy too, and report the cost",
        "--compare",
        group="How to check",
        tool_name="compare",
        called="comparison",
        remedy="leave_comparison_out",
        needs={"": "load"},
        on=ROUNDS,
    )
    workers: Literal["ray"] | None = _of_job(
        None,
        "Share the job on the cluster at RAY_ADDRESS",
        metavar="ray",
        tools=(),
        called="kind of workers",
        needs={"ray": "ray"},
    )
    expect: str = _of_job(
        "", "Refuse any plan but this one of plan --json", group="For machines", tools=(), metavar="PLAN_ID"
    )

    @property
    def inputs(self) -> dict[Role, str]:
        """All that the job reads: the name of each input, by its role. The model comes first."""
        return {"model": self.source, **self.options.inputs}

    @classmethod
    def of(cls, source: str, destination: str, chosen: Mapping[str, Any]) -> Self:
        """Return a request with the `chosen` options, given by name."""
        of_copy = {name: value for name, value in chosen.items() if name in declared(Options)}
        of_job = {name: value for name, value in chosen.items() if name not in of_copy}
        return cls(source, destination, Options(**of_copy), **of_job)

    def refuse_contradictions(self) -> None:
        """Raise UsageError for a value that is no choice, and for options that contradict each other."""
        refuse_no_choice(self)
        for one, other in combinations((one for one, _ in self._given), 2):
            if reason := clash(one, other):
                remedy = one.remedy or other.remedy
                hint = f"Leave out {one.flags[0]} or {other.flags[0]}."
                raise UsageError(reason, hint, Remedy(remedy) if remedy else None)

    def extras(self) -> Iterator[tuple[str, str]]:
        """Yield (what needs it, extra) for each extra of this package that the options need."""
        for option, value in self._given:
            choice = str(value).partition(":")[0]  # "pp" of "pp:4"
            if "" in option.needs:
                yield f"The {option.called}", option.needs[""]
            elif choice in option.needs:
                yield f"The {option.called} {value}", option.needs[choice]

    def words(self, command: str) -> list[str]:
        """Return the words that make the same choices for `command` on the command line."""
        taken = ((option, value) for option, value in self._given if command in option.commands)
        return [word for option, value in taken for word in option.words(value)]

    @property
    def _given(self) -> list[tuple[Option, Any]]:
        return [*given(self.options), *given(self)]


OPTIONS: Mapping[str, Option] = {**declared(Options), **declared(Request)}
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
    return sorted((option for option in of_command(tool) if tool in option.tools), key=lambda option: option.since)
