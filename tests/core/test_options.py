"""Options are one frozen value that is checked as soon as it is made; a mere size will do."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import UsageError
from sharding.core.options import SINGLE_FILE, Options
from tests.folders import finish, weights

WRONG: dict[str, dict[str, Any]] = {
    "no size": {"max_shard_size": "much"},
    "nothing": {"max_shard_size": 0},
    "less": {"max_shard_size": -5},
    "an order": {"order": "alphabetical"},
    "a strategy": {"strategy": "layers"},
    "no ranks": {"strategy": "pp:0"},
    "a dtype": {"dtype": "int4"},
    "a rank of nothing": {"rank": 0},
    "a rank too many": {"strategy": "pp:2", "rank": 2},
    "a rank too few": {"strategy": "pp:2", "rank": -1},
    "one file in blocks": {"max_shard_size": SINGLE_FILE, "strategy": "blocks"},
    "one file in ranks": {"max_shard_size": SINGLE_FILE, "strategy": "pp:2"},
}
RIGHT: dict[str, dict[str, Any]] = {
    "a size": {"max_shard_size": "1GiB"},
    "bytes": {"max_shard_size": 1},
    "one file": {"max_shard_size": SINGLE_FILE},
    "the first rank": {"strategy": "pp:2", "rank": 0},
    "the last rank": {"strategy": "pp:2", "rank": 1},
    "ranks": {"strategy": "pp:2"},
    "a dtype": {"dtype": "bf16", "order": "stored", "strategy": "blocks"},
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_options_that_cannot_be_are_refused_where_they_are_made(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refusal:
        Options(**given)
    assert refusal.value.message and refusal.value.hint and refusal.value.exit_status == 2


@pytest.mark.parametrize("given", RIGHT.values(), ids=RIGHT)
def test_options_that_can_be_do_not_change(given: dict[str, Any]) -> None:
    options = Options(**given)
    assert options == Options(**given) and hash(options) == hash(Options(**given))
    with pytest.raises(FrozenInstanceError):
        options.dtype = "fp16"  # type: ignore[misc]


def test_a_mere_size_will_do(checkpoint: Path, tmp_path: Path) -> None:
    assert job.plan(str(checkpoint), "60kB")[1] == job.plan(str(checkpoint), Options("60kB"))[1]
    for out, options in (("one", "60kB"), ("other", Options("60kB"))):
        finish(job.shard(str(checkpoint), str(tmp_path / out), options))
    assert weights(tmp_path / "one") == weights(tmp_path / "other")


def test_nothing_is_done_before_somebody_asks(checkpoint: Path, tmp_path: Path) -> None:
    for events in (
        job.shard(str(checkpoint), str(tmp_path / "out"), "60kB"),
        job.verify(str(tmp_path / "nowhere"), str(checkpoint)),
        job.compare(str(tmp_path / "nowhere"), str(checkpoint)),
    ):
        events.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
