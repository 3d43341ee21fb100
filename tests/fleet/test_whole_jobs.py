"""Whole jobs by workers in this process: what is noted when, what is counted, what is proved, who has the login."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding import job
from sharding.core.events import ShardFinished
from sharding.core.meter import Meter
from sharding.core.options import Options
from sharding.fleet.parts import Part, PartDone, PartEvent, parse_part
from sharding.fleet.worker import GrantedHub
from sharding.storage.hub.source import HubSource
from tests.conftest import listing, random_tensors, write_checkpoint
from tests.fleet import hands
from tests.fleet.hands import Hands
from tests.folders import recorded_in, reshard, weights, write_ranks
from tests.hubs import push, shard
from tests.inhouse import InHouse

Led = Callable[[Hands], Hands]


def test_a_shard_counts_as_finished_once_it_is_noted(checkpoint: Path, tmp_path: Path, led: Led) -> None:
    out = tmp_path / "out"
    led(Hands())
    finished = []
    for event in job.shard(str(checkpoint), str(out), "50kB", workers="ray"):
        if isinstance(event, ShardFinished):
            finished.append(event.file)
            assert set(finished) <= recorded_in(out).keys()
    assert len(finished) == 6


def first_time_done(part: Part, said: PartEvent, attempt: int) -> bool:
    """The worker dies when its part is done, before that is heard."""
    return attempt == 1 and isinstance(said, PartDone)


@pytest.mark.parametrize("loses", [False, True])
def test_overflow_is_counted_of_each_tensor_also_where_another_attempt_has_finished_it(
    loses: bool, tmp_path: Path, led: Led
) -> None:
    tensors = {f"w{n}": np.array([7e4] * (n + 1) + [1.0] * 6000, np.float32) for n in range(3)}
    source = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False)
    led(Hands(first_time_done) if loses else Hands())
    report = reshard(source, tmp_path / "out", "13kB", workers="ray", dtype="fp16", allow_overflow=True)
    assert report.overflowed == {"w0": 1, "w1": 2, "w2": 3}
    assert report.fleet and Counter(report.fleet.repeated) == ({one.file: 2 for one in report.shards} if loses else {})


def test_modules_of_a_base_are_made_by_workers_as_on_one_machine(tmp_path: Path, led: Led) -> None:
    modules = [{"path": "", "type": "models.Transformer"}, {"path": "2_Dense", "type": "models.Dense"}]
    dense = {"linear.weight": np.arange(6, dtype=np.float32)}
    files = {"model.safetensors": random_tensors(3), "2_Dense/model.safetensors": dense}
    (tmp_path / "base/2_Dense").mkdir(parents=True)
    base = write_checkpoint(tmp_path / "base", files, index=False)
    (base / "modules.json").write_text(json.dumps(modules))
    (base / "2_Dense/config.json").write_text("{}")
    ranks = write_ranks(tmp_path / "ranks")
    crew = led(Hands())
    options = {"base": str(base), "dtype": "bf16"}
    reshard(ranks, tmp_path / "many", "50kB", workers="ray", **options)
    reshard(ranks, tmp_path / "one", "50kB", **options)
    assert [parse_part(text).sources[-1].ref.repo_id for text in crew.sent if "2_Dense" in text][:1] == ["base"]
    many, one = (weights(tmp_path / way) for way in ("many", "one"))
    assert many == one and "2_Dense/model.safetensors" in one


def test_the_cost_is_that_of_moving_once_and_memory_the_peak(checkpoint: Path, tmp_path: Path, led: Led) -> None:
    one = reshard(checkpoint, tmp_path / "one")
    crew = led(Hands())
    many = reshard(checkpoint, tmp_path / "many", workers="ray")
    size = sum(array.nbytes for array in random_tensors().values())
    moved = [done.spent for stage, done in crew.done if stage == "transfer"]
    assert sum(spent.bytes_read for spent in moved) == size
    # Headers, the card's sources and the like are read here, as on one machine.
    here = one.resources.bytes_read - size
    assert many.resources.bytes_read == size + here
    assert many.resources.disk_bytes_written >= size
    spent = [done.spent.peak_anon_bytes for _, done in crew.done]
    assert max(spent) <= many.resources.peak_anon_bytes


def test_memory_at_its_peak_is_that_of_the_worker_that_took_most(
    checkpoint: Path, tmp_path: Path, led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Greedy(Meter):
        def __init__(self) -> None:
            super().__init__()
            self.peak_anon_bytes = 7 * 10**12

    monkeypatch.setattr("sharding.fleet.worker.Meter", Greedy)
    led(Hands())
    assert reshard(checkpoint, tmp_path / "out", workers="ray").resources.peak_anon_bytes == 7 * 10**12


def test_what_workers_have_sent_to_a_store_and_what_was_there_is_counted(
    checkpoint: Path, in_house: InHouse, led: Led
) -> None:
    push(in_house, checkpoint, "alice/source")
    figures = []
    for name in ("alice/one", "alice/two"):
        crew = led(Hands())
        report = shard(in_house, "alice/source", name, "50kB", workers="ray")
        spent = [done.spent for _, done in crew.done]
        figures.append((sum(one.bytes_uploaded for one in spent), sum(one.bytes_deduplicated for one in spent)))
        assert (report.resources.bytes_uploaded, report.resources.bytes_deduplicated) == figures[-1]
    (sent, _), (_, there) = figures
    assert sent and there


def damaged(chunks: Iterator[bytes]) -> Iterator[bytes]:
    for number, chunk in enumerate(chunks):
        yield bytes(chunk) if number else bytes([chunk[0] ^ 1]) + bytes(chunk[1:])


@pytest.mark.parametrize("damages", ["nothing", "transfer", "proof"])
def test_what_workers_have_read_to_cast_is_held_to_the_hash_of_the_hub(
    damages: str, checkpoint: Path, in_house: InHouse, led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(in_house, checkpoint, "alice/source")
    paths = [path for path in listing(checkpoint) if path.endswith("tensors")]
    usual_work, usual_read, now = hands.work, HubSource._read, [""]

    def work(text: str, node: str) -> Iterator[str]:
        part = parse_part(text)
        of_source = part.sources[0].ref.repo_id == "alice/source"
        now[0] = "proof" if part.phase == "verify" and of_source else part.phase
        yield from usual_work(text, node)

    def read(source: HubSource, *given: Any) -> Iterator[bytes]:
        chunks = usual_read(source, *given)
        of_weights = source.ref.repo_id == "alice/source" and given[0].path.endswith("tensors")
        return damaged(chunks) if of_weights and now[0] == damages else chunks

    monkeypatch.setattr(hands, "work", work)
    monkeypatch.setattr(HubSource, "_read", read)
    led(Hands(count=1))
    report = shard(in_house, "alice/source", "alice/cast", Options("50kB", dtype="bf16"), workers="ray")
    verification = report.verification
    assert verification.identical == (damages == "nothing") and not verification.unstated
    assert "2 of the source's 2 files were read whole once more" in verification.method
    assert in_house.api().repo_exists("alice/cast") == verification.identical
    problems = {one.tensor: one.problem for one in reversed(verification.mismatches)}  # the first of each
    wrong = {
        "nothing": {},
        "transfer": dict.fromkeys(paths, "an earlier read of it does not match the file on the Hub"),
        "proof": dict.fromkeys(paths, "it does not have the SHA-256 that the Hub states"),
    }
    assert problems.items() >= wrong[damages].items() and problems.keys() == wrong[damages].keys()


def test_a_worker_uses_no_login_of_its_own_node(
    checkpoint: Path, in_house: InHouse, led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(in_house, checkpoint, "alice/source", private=True)
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_node")
    seen: list[GrantedHub] = []
    usual = GrantedHub.__init__

    def init(hub: GrantedHub, lent: Any) -> None:
        usual(hub, lent)
        seen.append(hub)

    monkeypatch.setattr(GrantedHub, "__init__", init)
    crew = led(Hands())
    assert shard(in_house, "alice/source", "alice/many", "50kB", workers="ray").verification.identical
    assert len(seen) >= len(crew.sent)
    for hub in seen:
        assert not hub.is_signed_in
        access = hub._xet_access("read", "a/b", "")["custom_headers"]
        sent = json.dumps([{**hub.headers}, {**(hub.api.headers or {})}, access])
        assert "authorization" not in sent.lower() and "hf_of_the_node" not in sent
    assert not re.search("hf_of_the_node|hf_alice", "".join(crew.sent))
