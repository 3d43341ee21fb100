"""Offer the goals that people come with, and read and write the links to the page. Pure."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import quote, urlencode

from sharding.checkpoint.trained import needs_base
from sharding.core.errors import UsageError
from sharding.core.options import SINGLE_FILE, Engine, Options, of_tool
from sharding.core.origin import Role
from sharding.core.values import Content
from sharding.formats.names import SINGLE_NAME
from sharding.planning.dequantize import ordinary
from sharding.planning.sizes import colab_size, usual_size

SAME = "is-this-copy-the-same"  # The goal of somebody who compares two repos, in a link. It has a form of its own.


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal. `words` say what it sets. `role` is that of an input which it asks for."""

    title: str
    words: str
    role: Role | None = None


GOALS: Mapping[str, Goal] = {
    "free-colab": Goal(
        "Free Colab",
        "Small files for a free machine with a T4. Weights in fp32 become fp16; all others stay as they are.",
    ),
    "slow-connection": Goal("Slow connection", "Small files. If a download breaks, you lose at most one of them."),
    "one-file": Goal("One file", f"All weights in one {SINGLE_NAME}. ComfyUI and kohya load such a file."),
    "two-machines": Goal("Two machines", "Each machine downloads and loads only its half of the layers."),
    "half-size": Goal("Half the size (bf16)", "Weights in fp32 become bf16."),
    "unquantize": Goal(
        "Unquantize", "FP8 and MXFP4 weights become bf16, for training and for tools that cannot read them."
    ),
    "merge-lora": Goal(
        "Merge my LoRA",
        "An adapter becomes part of its base model. The result loads like any model, without PEFT.",
        "adapter",
    ),
    "training-run": Goal(
        "My training run", "The files that FSDP or torch.distributed saved become a model that loads."
    ),
}
"""By the name in a link: `?goal=one-file`."""


def goal_for(options: Options) -> str:
    """Return the goal that asks for an input which `options` name, "" if none does."""
    return next((name for name, goal in GOALS.items() if goal.role in options.inputs), "")


def role_asked(goal: str | None) -> Role | None:
    """Return the role of the input that a goal asks for, None if it asks for none."""
    return GOALS[goal].role if goal and goal in GOALS else None


def has_components(checkpoint: Content) -> bool:
    """Return whether a checkpoint is a pipeline of several components with weights."""
    return len({tensor.folder for tensor in checkpoint.tensors}) > 1


def choices_for(checkpoint: Content, goal: str) -> Options | str:
    """Return the choices of a goal for a model, or the reason why the goal makes no sense for it."""
    largest = max((tensor.bytes for tensor in checkpoint.tensors), default=0)
    usual = usual_size(checkpoint.total_bytes, largest)
    # A cast to bf16 halves these dtypes, or more.
    wide = sum(tensor.bytes for tensor in checkpoint.tensors if tensor.dtype in ("F32", "F64"))
    is_wide = 2 * wide > checkpoint.total_bytes
    match goal:
        case "free-colab" if is_wide:
            return Options(usual, dtype="fp16")  # a T4 has no bf16
        case "free-colab":
            return Options(colab_size(checkpoint.total_bytes, largest) or usual)
        case "one-file" if has_components(checkpoint):
            return (
                "This is a pipeline of several components. ComfyUI and kohya load a single file of another layout, "
                "which this page does not write. Each component can be one file: choose a size above its own."
            )
        case "one-file":
            return Options(SINGLE_FILE)
        case "two-machines":
            return Options(usual, strategy="pp:2")
        case "half-size" if is_wide:
            return Options(usual, dtype="bf16")
        case "half-size":
            return "Most of its weights are not in fp32, so bf16 does not halve it."
        case "unquantize":
            after = ordinary(checkpoint)
            if after is None or not after.made:
                return "Its weights are not quantized in FP8 or MXFP4."
            largest = max((tensor.bytes for tensor in after.tensors), default=0)
            return Options(usual_size(sum(tensor.bytes for tensor in after.tensors), largest), dequantize=True)
        case "training-run" if not needs_base(checkpoint):
            return "It is an ordinary model, not the files that a training run saved."
        case "merge-lora" if needs_base(checkpoint):
            return "These are files of a training run. Make an ordinary model of them first."
    return Options(usual)


_LONGEST = 300
_OF_A_COPY = {one.name for one in fields(Options)} - {"max_shard_size"}
"""The options of a copy in a link, except its size."""
_ASKED = {option.name: option for option in of_tool("shard") if option.name in _OF_A_COPY}
_USUAL = {name: option.default for name, option in _ASKED.items() if not option.is_switch}
_SWITCHES = tuple(name for name, option in _ASKED.items() if option.is_switch)
_AS_IT_IS = {"to": "to", "job": "job", "result": "result", "compare": "compare", "against": "with"}
"""The fields of a `Wish` that a link has as they are, each with its name there."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a link opens: the form filled in, a job, the result in a repo, or a comparison of two repos.

    `goal` is a name in GOALS, or "". `repo` can name a revision ("owner/name@v2"). `sized` is false if the link
    gives no size, or only a `misspelt` one. `to` is the repo to write, or "" if the page is to propose one. `measure`
    also loads both. `engine` makes the copy.
    """

    repo: str = ""
    options: Options = Options()
    goal: str = ""
    sized: bool = True
    misspelt: str = ""
    to: str = ""
    private: bool = False
    measure: bool = False
    engine: Engine = "stream"
    job: str = ""
    result: str = ""
    compare: str = ""
    against: str = ""


def read_wish(query: Mapping[str, str]) -> Wish:
    """Return what the query of a link opens. Unknown keys and invalid values are ignored.

    >>> wish = read_wish({"repo": "me/model@v2", "size": "300MB", "colour": "red"})
    >>> wish.repo, wish.options.max_shard_size, wish.options.order, wish.sized
    ('me/model@v2', '300MB', 'natural', True)
    """
    fields = {name: str(value)[:_LONGEST].strip() for name, value in query.items()}
    repo, revision = fields.get("repo", ""), fields.get("revision", "")
    asked: dict[str, Any] = {name: fields[name] for name in _USUAL if name in fields}
    asked |= {"max_shard_size": "".join(fields["size"].split())} if "size" in fields else {}
    asked |= {name: fields.get(name) == "true" for name in _SWITCHES}
    options, taken = Options(), set()
    for name, value in asked.items():
        with suppress(UsageError):
            options = replace(options, **{name: value})
            taken.add(name)
    goal = goal_for(options) or fields.get("goal", "")
    return Wish(
        repo=_at(repo, revision),
        options=options,
        goal=goal if goal in {*GOALS, SAME} else "",
        sized="max_shard_size" in taken,
        misspelt="" if "max_shard_size" in taken else fields.get("size", ""),
        private=fields.get("private") == "true",
        measure=fields.get("measure") == "true",
        engine="classic" if fields.get("engine") == "classic" else "stream",
        **{field: fields.get(name, "") for field, name in _AS_IT_IS.items()},
    )


def _at(repo: str, revision: str) -> str:
    """Return the name of a repo, or of a folder in it, at a revision that stands beside it in a link.

    >>> _at("me/model", "v2"), _at("me/model/sub", "v2"), _at("me/model@v1", "v2"), _at("me/model", "")
    ('me/model@v2', 'me/model@v2/sub', 'me/model@v1', 'me/model')
    """
    if not repo or not revision or "@" in repo or "://" in repo:
        return repo
    owner_and_name, folder = repo.split("/", 2)[:2], repo.split("/", 2)[2:]
    at = revision if revision.startswith("refs/") else revision.replace("%", "%25").replace("/", "%2F")
    return "/".join([f"{'/'.join(owner_and_name)}@{at}", *folder])[:_LONGEST]


def query_of(wish: Wish) -> str:
    """Return the query of the link for `wish`, which `read_wish` reads back.

    >>> query_of(Wish(repo="me/model", options=Options("300MB"))), query_of(Wish(result="me/model@v2"))
    ('?repo=me/model&size=300MB', '?result=me/model@v2')
    >>> query_of(Wish(compare="me/model", against="me/copy"))
    '?compare=me/model&with=me/copy'
    """
    if wish.job or wish.result:
        pairs = {"job": wish.job} if wish.job else {"result": wish.result}
    elif wish.compare or wish.against:
        pairs = {"compare": wish.compare, "with": wish.against}
    else:
        asked = {name: getattr(wish.options, name) for name in _ASKED}
        named = {"size": str(wish.options.max_shard_size)} if wish.sized else {}
        named |= {name: asked[name] for name, usual in _USUAL.items() if asked[name] != usual}
        named |= {name: "true" for name in _SWITCHES if asked[name]}
        named |= {"to": wish.to} if wish.to else {}
        named |= {name: "true" for name in ("private", "measure") if getattr(wish, name)}
        named |= {"engine": wish.engine} if wish.engine != "stream" else {}
        goal = {"goal": wish.goal} if wish.goal else {}
        pairs = {"repo": wish.repo, **goal, **named} if wish.repo else goal
    return f"?{urlencode(pairs, safe='/@:', quote_via=quote)}" if pairs else "?"
