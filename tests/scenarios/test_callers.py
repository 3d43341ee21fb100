"""What a caller of a job says holds: the Hub, the login, the bounds, the engine; and what contradicts itself does not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from sharding import job
from sharding.checkpoint.read import read_checkpoint
from sharding.core.errors import (
    ShardingError,
    SourceError,
    TooManyTensors,
    UsageError,
)
from sharding.core.events import Planned, Verified
from sharding.core.options import Options, Request
from sharding.planning.plan import plan_checkpoint
from sharding.storage.folder_source import open_folder
from sharding.storage.hub import retry as hub_retry
from sharding.transfer.prepare import Prepared
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import finish, write_ranks
from tests.hubs import TOKEN
from tests.inhouse import InHouse
from tests.scenarios.whole_jobs import MADE, NOWHERE, folder, hub

__all__ = ["folder", "hub"]


QUESTIONS: dict[str, Callable[[str, dict[str, Any]], object]] = {
    "inspect": lambda out, at: job.inspect("alice/hidden", **at),
    "plan": lambda out, at: job.plan("alice/hidden", "60kB", **at),
    "shard": lambda out, at: finish(job.shard("alice/hidden", out, "60kB", **at)),
    "verify": lambda out, at: list(job.verify("alice/hidden", "alice/hidden", **at)),
    "check": lambda out, at: job.check(Request("alice/hidden", out), **at),
    "find_unfinished": lambda out, at: job.find_unfinished("alice/hidden", **at),
    "discard": lambda out, at: job.discard("alice/hidden", **at),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_hub_and_the_login_are_those_that_the_caller_names(
    name: str, hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 1)
    monkeypatch.setattr(hub_retry, "NETWORK_WAIT_SECONDS", 0.001)
    monkeypatch.setenv("HF_ENDPOINT", NOWHERE)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    ask, out = QUESTIONS[name], str(tmp_path / "out")
    hub.log.clear()
    ask(out, {"endpoint": hub.address, "token": TOKEN})
    assert hub.asked("alice/hidden")
    for nobody in ({"endpoint": hub.address}, {"endpoint": hub.address, "token": "hf_bob"}):
        if name != "find_unfinished":
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
    run = str(write_ranks(tmp_path / "run"))
    small, large = (
        str(write_checkpoint(tmp_path / name, {"model.safetensors": held}, index=False))
        for name, held in (
            ("small", {"layers.0.weight": np.zeros(1, np.float32)}),
            (
                "large",
                random_tensors() | {f"w{n}": np.zeros(1, np.float32) for n in range(300 - len(random_tensors()))},
            ),
        )
    )
    for base in (small, large):
        found = job.inspect(run, base=base, most_tensors=300)
        assert len(found.tensors) == len(random_tensors()) and found.base
    assert len(job.inspect(large, most_tensors=300).tensors) == 300
    for source, base, most in ((run, large, 299), (large, "", 299), (run, small, len(random_tensors()) - 1)):
        with pytest.raises(TooManyTensors):
            job.inspect(source, base=base, most_tensors=most)


@pytest.mark.parametrize("change", ["nothing", "a bit", "a name", "one more"])
def test_what_the_classic_engine_has_saved_is_held_to_the_original(
    change: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: array for file in folder.glob("*.safetensors") for name, array in load_file(file).items()}
    match change:
        case "a bit":
            tensors["layers.7.weight"][5] += 1
        case "a name":
            tensors["other"] = tensors.pop("embed.weight") + np.float16(1)
        case "one more":
            tensors["more"] = np.ones(3, np.float32)
    saved = write_checkpoint(tmp_path / "saved", {"model.safetensors": tensors}, index=False)

    @contextmanager
    def prepared(origin: Any, options: Options) -> Iterator[Any]:
        source = open_folder(str(saved))
        checkpoint = read_checkpoint(source)
        made = Prepared((source,), checkpoint, plan_checkpoint(checkpoint, options, {}))
        yield replace(made, checkpoint=replace(checkpoint, source=origin.ref))

    monkeypatch.setattr(job, "prepared_classic", prepared)
    *events, report = job.shard(str(folder), str(tmp_path / "out"), "60kB", engine="classic")
    (verified,) = [event.verification for event in events if isinstance(event, Verified)]
    assert verified == report.verification and verified.identical == (change == "nothing")  # type: ignore[union-attr]
    assert (tmp_path / "out").exists() == verified.identical
    wrong = {"nothing": set(), "a bit": {"layers.7.weight"}, "a name": {"embed.weight", "other"}, "one more": {"more"}}
    assert {one.tensor for one in verified.mismatches} == wrong[change]


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        *[({"strategy": "pp:3", "rank": rank}, {}) for rank in (0, 1, 2)],
        ({"variant": "fp16"}, {"engine": "classic"}),
        ({"strategy": "pp:2"}, {"engine": "classic"}),
        ({"dequantize": True}, {"engine": "classic"}),
        ({}, {"engine": "classic", "workers": "ray"}),
        ({"dequantize": True}, {"compare_rounds": 1}),
    ],
    ids=str,
)
def test_choices_that_contradict_each_other_are_wrong_usage_before_anything_is_asked(
    options: dict[str, Any], choices: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as refused:
        list(job.shard("alice/none", MADE, Options("60kB", **options), endpoint=NOWHERE, **choices))
    assert refused.value.hint
    if "rank" in options:
        assert refused.value.message == "The part of one rank is not a complete model, so it cannot be a repo."


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_loads_is_not_compared(rank: int, tmp_path: Path) -> None:
    options = Options("60kB", strategy="pp:2", rank=rank)
    with pytest.raises(UsageError, match="compute nothing on their own"):
        list(job.shard(str(tmp_path / "none"), str(tmp_path / "out"), options, compare_rounds=1))


def test_a_job_works_only_while_somebody_asks(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    events = job.shard(str(folder), str(out), "60kB")
    assert list(tmp_path.iterdir()) == []
    assert isinstance(next(events), Planned) and list(tmp_path.iterdir()) == []
    events.close()
    assert list(tmp_path.iterdir()) == []
    job.plan(str(folder), "60kB")
    job.inspect(str(folder))
    assert list(tmp_path.iterdir()) == []
