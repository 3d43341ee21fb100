"""A cluster that is not there is said not to be, before anything of a job is begun. Real ones: tests/scenarios."""

from pathlib import Path

import pytest

from sharding import job
from sharding.core.errors import Refused, UsageError
from sharding.fleet.ray_workers import ray_workers

NOBODY = "127.0.0.1:9"
"""Where nobody listens."""


def test_an_address_where_nobody_answers_is_refused(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", NOBODY)
    with pytest.raises(Refused, match=f"No Ray cluster is at {NOBODY}: ") as refused:
        list(job.shard(str(checkpoint), str(tmp_path / "out"), "50kB", workers="ray"))
    assert "RAY_ADDRESS" in refused.value.hint and not (tmp_path / "out").exists()


@pytest.mark.parametrize("address", ["[::1]:99999", "no such host:1"])
def test_what_is_no_address_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(Refused), ray_workers():
        pass


def test_a_cluster_is_not_led_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://10.0.0.1:10001")
    with pytest.raises(UsageError, match="must start on a node of its cluster"), ray_workers():
        pass


def test_without_ray_it_is_said_what_brings_it(monkeypatch: pytest.MonkeyPatch, checkpoint: Path) -> None:
    monkeypatch.setattr("sharding.core.extras.is_installed", lambda module: module != "ray")
    with pytest.raises(Refused) as refused:
        list(job.shard(str(checkpoint), f"{checkpoint}-copy", workers="ray"))
    assert refused.value.hint == "Run `pip install '.[ray]'`."
