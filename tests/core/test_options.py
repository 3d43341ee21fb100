"""Options are one frozen value that is checked as soon as it is made; a mere size will do."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import UsageError
from sharding.core.options import SINGLE_FILE, Options, Request, naming
from sharding.core.origin import Place

WRONG: list[dict[str, Any]] = [
    *({"max_shard_size": size} for size in ("much", 0, -5)),
    *({"order": "alphabetical"}, {"strategy": "layers"}, {"strategy": "pp:0"}, {"dtype": "int4"}, {"rank": 0}),
    *({"lora_alpha": "many"}, {"lora_alpha": 16}, {"save_as": "gguf"}),
    *({"strategy": "pp:2", "rank": rank} for rank in (-1, 2)),
    *({"max_shard_size": SINGLE_FILE, "strategy": strategy} for strategy in ("blocks", "pp:2")),
]
RIGHT: list[dict[str, Any]] = [
    *({"max_shard_size": size} for size in ("1GiB", 1, SINGLE_FILE)),
    *({"strategy": "pp:2", "rank": rank} for rank in (0, 1, None)),
    {"dtype": "bf16", "order": "stored", "strategy": "blocks"},
]


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_options_that_cannot_be_are_refused_where_they_are_made(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as refusal:
        Options(**given)
    assert refusal.value.message and refusal.value.hint and refusal.value.exit_status == 2


@pytest.mark.parametrize("given", RIGHT, ids=str)
def test_options_that_can_be_do_not_change(given: dict[str, Any]) -> None:
    options = Options(**given)
    assert options == Options(**given) and hash(options) == hash(Options(**given))
    with pytest.raises(FrozenInstanceError):
        options.dtype = "fp16"  # type: ignore[misc]


def test_what_changes_numbers_decides_bytes_or_names_an_input_is_told_from_the_rest() -> None:
    named = naming([Place("hub", "a/b", "c"), Place("hub", "me/lora", "d", "x/", "adapter")])
    options = Options("1GB", strategy="pp:2", rank=1, variant="fp16", dtype="bf16", **named)
    assert options.inputs == named == {"adapter": "me/lora@d/x"} and [*Request("a", "b", options).inputs] == [
        "model",
        "adapter",
    ]
    assert options.deciding == {"dtype": "bf16", "variant": "fp16"} and options.computing == ["--dtype", "--adapter"]
    assert (Options("1GB").inputs, Options("1GB").deciding, Options("1GB").computing) == ({}, {}, [])


def test_a_mere_size_will_do(checkpoint: Path) -> None:
    assert job.plan(str(checkpoint), "60kB")[1] == job.plan(str(checkpoint), Options("60kB"))[1]


def test_nothing_is_done_before_somebody_asks(checkpoint: Path, tmp_path: Path) -> None:
    source, nowhere = str(checkpoint), str(tmp_path / "nowhere")
    for events in (job.shard(source, nowhere, "60kB"), job.verify(nowhere, source), job.compare(nowhere, source)):
        events.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
