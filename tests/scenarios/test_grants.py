"""What was granted for a time is renewed in time, by whatever clock."""

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.conftest import write_checkpoint
from tests.hubs import branches, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.conftest import SOURCE


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """A Hub whose store is reached over HTTP with grants that are good for three seconds."""
    monkeypatch.setattr("sharding.storage.hub.client.Hub.least_xet_bytes", 10_000)
    tensors = {f"layers.{n}.weight": np.random.default_rng(n).random(20_000, np.float32) for n in range(6)}
    with hub_in_house(tmp_path / "strict", xet_over_http=True, xet_seconds=3) as hub:
        push(hub, write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False), SOURCE)
        hub.log.clear()  # the client itself, which has brought the source, is as talkative as it likes
        yield hub


@pytest.mark.parametrize(
    ("slow", "grant"),
    [
        ("slow:100000@POST /cas/v1/xorbs/", "alice/made/xet-write-token"),
        pytest.param("slow:200000@GET /cas/xorbs/", "xet-read-token", marks=pytest.mark.thorough),
    ],
)
def test_access_to_the_store_that_expires_in_mid_job_is_renewed_and_it_is_told_nothing_else(
    strict: InHouse, slow: str, grant: str
) -> None:
    """Only hf-xet itself looks at the clock of the machine, so that three seconds have to go by."""
    with strict.failing(slow):
        shard(strict, SOURCE, "alice/made", "170kB")
    assert strict.asked(grant) > 2
    assert branches(strict, "alice/made") == {"main"}
    gc.collect()  # a session that has ended tells what it has kept for that
    assert strict.asked("POST /cas/v1/xorbs/") and strict.asked("GET /cas/xorbs/")
    assert not strict.asked("/v1/telemetry")


@pytest.mark.parametrize("days", [pytest.param(-1, marks=pytest.mark.thorough), 1])
def test_a_clock_that_jumps_ends_no_job(strict: InHouse, monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    moments = iter(range(1_000_000))
    clock = SimpleNamespace(time=lambda: time.time() + (days * 86_400 if next(moments) > 3 else 0))
    monkeypatch.setattr("sharding.storage.hub.client.time", clock)
    with strict.failing(*(["slow:300000@GET /cas/xorbs/"] if days < 0 else [])):  # by then all grants have expired
        assert shard(strict, SOURCE, "alice/made", "100kB").verification.identical
    assert next(moments) > 4
