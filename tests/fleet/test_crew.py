"""Many machines make what one does, and what is lost is begun again. The workers here are in this process."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sharding import job
from sharding.core.errors import DestinationError, Refused
from sharding.core.events import AtWork, Progress
from sharding.fleet.parts import Part, PartDone, PartEvent
from sharding.report.schema import Report
from sharding.storage.journal import JOURNAL_NAME
from tests.casts import save_mixed
from tests.conftest import listing
from tests.fleet.hands import Hands
from tests.folders import flip, reshard, staged
from tests.hubs import TOKEN, after_commits, branches, push, shard
from tests.inhouse import InHouse
from tests.quantized import save_fp8

Led = Callable[[Hands], Hands]


def without_figures(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files of a result, its card without what the job cost and what the folder is called; no report."""
    card = re.sub(rb"in [\d.]+ s, with at most [\d.]+ \wB|\b(one|many)\b", b"", files["README.md"])
    return {path: data for path, data in files.items() if path != "sharding_report.json"} | {"README.md": card}


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def as_bin(folder: Path, source: Path) -> Path:
    """What `source` holds, as a .bin file with a transposed tensor and two that share their bytes."""
    (new(folder) / "config.json").write_bytes((source / "config.json").read_bytes())
    tensors = {name: one for file in source.glob("*.safetensors") for name, one in load_file(file).items()}
    tensors |= {"turned": torch.arange(6000.0).reshape(60, 100).T}
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


@pytest.mark.parametrize("kind", ["plain", "single", "cast", "bin", "fp8"])
def test_the_result_is_that_of_one_machine(kind: str, checkpoint: Path, tmp_path: Path, led: Led) -> None:
    source, choices = checkpoint, dict[str, object]()
    match kind:
        case "single":
            choices = {"size": "single-file"}
        case "cast":
            source, choices = save_mixed(new(tmp_path / "mixed")), {"dtype": "bf16"}
        case "bin":
            source = as_bin(tmp_path / "bin", checkpoint)
        case "fp8":
            source, choices = save_fp8("qwen3", tmp_path / "fp8"), {"dequantize": True}
    one = reshard(source, tmp_path / "one", **choices)  # type: ignore[arg-type]
    hands = led(Hands())
    many = reshard(source, tmp_path / "many", workers="ray", **choices)  # type: ignore[arg-type]
    assert without_figures(listing(tmp_path / "one")) == without_figures(listing(tmp_path / "many"))
    assert many.verification.method == one.verification.method and many.verification.identical
    assert (cost := many.fleet)
    assert cost.engine == "hands 1" and [node.node for node in cost.nodes] == ["here"] and not cost.repeated
    assert cost.nodes[0].parts == len(hands.sent) == 2 * len(many.shards)
    assert cost.nodes[0].bytes == 2 * sum(shard.bytes for shard in many.plan.shards)
    assert cost.nodes[0].seconds > 0
    assert many.resources.bytes_read >= one.resources.bytes_read // 2 and many.resources.disk_bytes_written


def test_what_a_worker_leaves_undone_is_begun_again_and_what_it_has_done_is_not(
    checkpoint: Path, tmp_path: Path, led: Led
) -> None:
    def first_time(part: Part, said: PartEvent, attempt: int) -> bool:
        # One dies at its first words, one when it is done, before that is heard.
        return attempt == 1 and isinstance(said, AtWork if "00001" in part.shard.file else PartDone)

    hands = led(Hands(first_time))
    reshard(checkpoint, tmp_path / "one")
    *events, report = job.shard(str(checkpoint), str(tmp_path / "many"), "50kB", workers="ray")
    assert isinstance(report, Report)
    assert without_figures(listing(tmp_path / "one")) == without_figures(listing(tmp_path / "many"))
    counted = Counter(report.fleet.repeated if report.fleet else ())
    assert set(counted) == {shard.file for shard in report.shards} and set(counted.values()) == {2}
    found = [
        done.spent.bytes_read for stage, done in hands.done if stage == "transfer" and "00001" not in done.record.file
    ]
    assert found and not any(found), "what was written is found by its record"
    told = [event.bytes_done for event in events if isinstance(event, Progress) and event.phase == "transfer"]
    assert told == sorted(told)


def test_a_part_that_fails_for_good_ends_the_job_and_keeps_the_others(
    checkpoint: Path, tmp_path: Path, led: Led
) -> None:
    led(Hands(lambda part, *_: "00002" in part.shard.file, count=1))
    with pytest.raises(Refused, match="worker for model-00002.* has died 3 times") as refused:
        reshard(checkpoint, tmp_path / "many", workers="ray")
    assert "memory" in refused.value.hint
    left = {path.name for path in staged(tmp_path / "many").iterdir()}
    (record,) = [name for name in left if name.endswith(".record.part")]
    assert record.startswith("model-00001") and left == {"model-00001-of-00006.safetensors.part", record, JOURNAL_NAME}
    hands = led(Hands())
    report = reshard(checkpoint, tmp_path / "many", workers="ray")
    assert report.verification.identical
    sent = [name for name in re.findall(r'"phase":"transfer","shard":\{"file":"([^"]+)', "".join(hands.sent))]
    assert sent and "model-00001-of-00006.safetensors" not in sent


def test_what_an_earlier_run_has_kept_is_checked_by_the_workers(checkpoint: Path, tmp_path: Path, led: Led) -> None:
    out = tmp_path / "many"
    led(Hands(lambda part, *_: part.phase == "verify", count=1))
    with pytest.raises(Refused):
        reshard(checkpoint, out, workers="ray")
    flip(staged(out) / "model-00003-of-00006.safetensors.part")
    hands = led(Hands())
    assert reshard(checkpoint, out, workers="ray").verification.identical
    phases = Counter(re.search(r'"phase":"(\w+)"', part)[1] for part in hands.sent)  # type: ignore[index]
    # Six are read again, and the five that are whole are made again.
    assert phases == {"check": 6 + 5, "transfer": 1, "verify": 6}


def test_from_hub_to_hub_parts_have_grants_of_their_own_and_no_login(
    checkpoint: Path, in_house: InHouse, led: Led
) -> None:
    push(in_house, checkpoint, "alice/source", private=True)
    one = shard(in_house, "alice/source", "alice/one", "50kB")
    hands = led(Hands())
    many = shard(in_house, "alice/source", "alice/many", "50kB", workers="ray")
    assert [(file.file, file.sha256) for file in one.shards] == [(file.file, file.sha256) for file in many.shards]
    assert "2 of the source's files, put together again from the result, have the SHA-256" in many.verification.method
    assert len(in_house.api().list_repo_commits("alice/many")) == 2 and branches(in_house, "alice/many") == {"main"}
    assert not [part for part in hands.sent if TOKEN in part]
    assert len(hands.sent) == 6 + 2
    asked = Counter(re.findall(r"xet-(?:read|write)-token", "\n".join(in_house.log)))
    assert asked["xet-read-token"] >= 8 and asked["xet-write-token"] >= 6


def test_a_repo_that_is_made_public_under_way_gets_no_more_of_what_workers_have_made(
    checkpoint: Path, in_house: InHouse, led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(in_house, checkpoint, "alice/source", private=True)
    led(Hands(count=1))
    show = in_house.api().update_repo_settings
    after_commits(monkeypatch, 2, lambda: (show("alice/many", private=False), in_house.log.clear()))
    with pytest.raises(DestinationError, match="alice/many is public now, but the copy must be private"):
        shard(in_house, "alice/source", "alice/many", "50kB", workers="ray")
    assert not in_house.asked("/commit/")
