"""What a caller of a job says holds: the Hub, the login, the bounds, the engine; and what contradicts itself does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import ShardingError, SourceError, TooManyTensors, UsageError
from sharding.core.events import Planned
from sharding.core.options import Options, Request
from sharding.storage.hub import answers as hub_retry
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import finish, write_ranks
from tests.hubs import TOKEN, push
from tests.inhouse import InHouse

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def hidden(one_hub: InHouse, folder: Path) -> str:
    return push(one_hub, folder, "alice/hidden", private=True)


QUESTIONS: dict[str, Callable[[str, dict[str, Any]], object]] = {
    "inspect": lambda out, at: job.inspect("alice/hidden", **at),
    "plan": lambda out, at: job.plan("alice/hidden", "60kB", **at),
    "shard": lambda out, at: finish(job.shard("alice/hidden", out, "60kB", **at)),
    "verify": lambda out, at: list(job.verify("alice/hidden", "alice/hidden", **at)),
    "check": lambda out, at: job.check(Request("alice/hidden", out), **at),
    "find_unfinished": lambda out, at: job.find_unfinished("alice/hidden", **at),
    "discard": lambda out, at: job.discard("alice/hidden", **at),
}


@pytest.mark.usefixtures("hidden")
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_hub_and_the_login_are_those_that_the_caller_names(
    question: str, hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 1)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    ask, out = QUESTIONS[question], str(tmp_path / "out")
    hub.log.clear()
    ask(out, {"endpoint": hub.address, "token": TOKEN})
    assert hub.asked("alice/hidden")
    for nobody in ({"endpoint": hub.address}, {"endpoint": hub.address, "token": "hf_bob"}):
        if question != "find_unfinished":
            with pytest.raises(ShardingError):
                ask(str(tmp_path / "none"), nobody)
    hub.log.clear()
    with pytest.raises(ShardingError):
        ask(str(tmp_path / "none"), {"token": TOKEN})
    assert not hub.log and not (tmp_path / "none").exists()


def test_devices_and_compare_ask_the_hub_that_the_caller_names(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    for ask in (
        lambda: job.devices("alice/none", "cpu=1GB", endpoint=hub.address, token=TOKEN),
        lambda: list(job.compare("alice/none", "alice/none", endpoint=hub.address, token=TOKEN)),
    ):
        hub.log.clear()
        with pytest.raises(SourceError, match="alice/none"):
            ask()
        assert hub.asked("alice/none")


def test_more_tensors_than_the_caller_takes_are_refused_in_source_and_base_alike(tmp_path: Path) -> None:
    run, many = str(write_ranks(tmp_path / "run")), random_tensors()
    one = {"layers.0.weight": np.zeros(1, np.float32)}
    more = {f"w{n}": np.zeros(1, np.float32) for n in range(300 - len(many))}
    small = str(write_checkpoint(tmp_path / "small", {"model.safetensors": one}, index=False))
    large = str(write_checkpoint(tmp_path / "large", {"model.safetensors": many | more}, index=False))
    for base in (small, large):
        found = job.inspect_inputs({"model": run, "base": base}, most_tensors=300)
        assert len(found.tensors) == len(many) and found.beside[0].role == "base"
    assert len(job.inspect_inputs({"model": large}, most_tensors=300).tensors) == 300
    for source, base, most in ((run, large, 299), (large, "", 299), (run, small, len(many) - 1)):
        with pytest.raises(TooManyTensors):
            job.inspect_inputs({"model": source, **Options(base=base).inputs}, most_tensors=most)


CLASSIC, COMPARED, MERGED = {"engine": "classic"}, {"compare_rounds": 1}, {"adapter": "alice/lora"}


@pytest.mark.parametrize(
    ("options", "choices", "reason"),
    [
        *(({"strategy": "pp:3", "rank": rank}, {}, "not a complete model, so it cannot be a repo") for rank in (0, 2)),
        ({"strategy": "pp:2", "rank": 0}, COMPARED, "compute nothing on their own"),
        ({"variant": "fp16"}, CLASSIC, "only the plain weights"),
        ({"strategy": "pp:2"}, CLASSIC, "can only cut by size"),
        ({"dequantize": True}, CLASSIC, "cannot dequantize"),
        ({}, CLASSIC | {"workers": "ray"}, "on one machine"),
        (MERGED | {"base": "alice/x"}, {}, "not a base for an adapter"),
        (MERGED, CLASSIC, "merges no adapters"),
    ],
    ids=str,
)
def test_choices_that_contradict_each_other_are_wrong_usage_before_anything_is_asked(
    options: dict[str, Any], choices: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        list(job.shard("alice/none", "alice/made", Options("60kB", **options), endpoint=NOWHERE, **choices))
    assert refused.value.hint


def test_a_job_works_only_while_somebody_asks(folder: Path, tmp_path: Path) -> None:
    events = job.shard(str(folder), str(tmp_path / "out"), "60kB")
    assert list(tmp_path.iterdir()) == []
    assert isinstance(next(events), Planned) and list(tmp_path.iterdir()) == []
    events.close()
    assert list(tmp_path.iterdir()) == []
    job.plan(str(folder), "60kB")
    job.inspect(str(folder))
    assert list(tmp_path.iterdir()) == []
