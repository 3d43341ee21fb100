"""What a desk tells the command line of a job, and what that makes of it: every choice, and none that nobody made."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from sharding import job
from sharding.core.limits import DEFAULT_MAX_SHARD_SIZE, ROUNDS
from sharding.core.options import SINGLE_FILE, Options, Request, of_command
from sharding.desk.jobs import JobRequest
from sharding.desk.runner import command_of
from tests.commands import invoke

SOURCE, COPY = "a/b@c", "alice/copy"
PLAIN = JobRequest(SOURCE, COPY, Options())
EACH_OPTION = [
    *(Options("123kB"), Options(SINGLE_FILE), Options(DEFAULT_MAX_SHARD_SIZE)),
    *(Options(strategy="blocks"), Options(strategy="pp:3"), Options(order="stored"), Options(order="transformers")),
    *(Options(dtype="bf16"), Options(dtype="fp16", allow_overflow=True), Options(dequantize=True, dtype="bf16")),
    *(Options(variant="fp16"), Options(base="d/e@f"), Options(adapter="d/e@f/g")),
]


def asked(request: JobRequest) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """Return what the command line of a job asks for: which work, and what it gives."""
    seen: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def noting(name: str) -> Any:
        def work(*given: Any, **more: Any) -> Iterator[None]:
            seen.append((name, given, more))
            yield from ()

        return work

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "hf_alice")
        for name in ("run", "verify"):
            patch.setattr(job, name, noting(name))
        done = invoke(*command_of(request))
    assert done.exit_code == 0, done.output
    ((name, given, more),) = seen
    return name, given, more


WORDS: list[dict[str, Any]] = [
    *({}, {"confirmed": True}, {"overwrite": True}, {"restart": True}, {"compare_rounds": ROUNDS}),
    {"source": "--help", "destination": "--overwrite"},  # what looks like an option is taken for a repo
    {
        **{"confirmed": True, "overwrite": True, "restart": True, "compare_rounds": ROUNDS},
        "options": Options("2MB", "blocks", "stored", "fp16", "fp32", allow_overflow=True, base="d/e"),
    },
]


@pytest.mark.parametrize(
    "words",
    [
        *({"options": options} for options in EACH_OPTION),
        *({"private": private, **words} for private in (None, True, False) for words in WORDS),
    ],
)
def test_a_process_is_told_each_word_that_was_given_and_no_other(words: dict[str, Any]) -> None:
    """Nobody has chosen a visibility where it is None: then the copy is as hidden as its source."""
    request = replace(PLAIN, **words)
    name, (asks,), more = asked(request)
    assert (name, more) == ("run", {"token": "hf_alice"}) and isinstance(asks, Request)
    assert asks == Request(**{field.name: getattr(request, field.name) for field in fields(Request)})


@pytest.mark.parametrize(
    "options", [Options(variant="v", dtype="bf16", adapter="d/e"), Options(base="d/e@f", dequantize=True)]
)
def test_a_process_that_checks_is_told_what_the_result_is_of(options: Options) -> None:
    """And reads every byte: nothing is quick."""
    name, given, more = asked(JobRequest(SOURCE, f"{COPY}@f", options, kind="verify"))
    assert (name, given) == ("verify", (SOURCE, f"{COPY}@f"))
    told = {option.name: getattr(options, option.name) for option in of_command("verify")}
    assert more == {"quick": False, "numeric": True, "token": "hf_alice", **told}
