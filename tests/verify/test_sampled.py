"""A copy that the Hub's word is enough for: what is compared, what is read, what is noticed, and what is not."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from huggingface_hub import CommitOperationAdd, constants
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core.errors import ShardingError, SourceError, UsageError
from sharding.core.events import ShardFinished
from sharding.core.limits import MAX_SAMPLED_BYTES
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.values import Component, FileEntry, Plan, Shard, Tensor
from sharding.formats.file_formats import format_of
from sharding.recipes.stored import Stored
from sharding.storage.hub import answers as retry
from sharding.storage.hub.source import ArrivingSource, HubSource
from sharding.storage.hub.staging import STAGING_BRANCH
from sharding.verify.sampled import sampling
from tests.conftest import random_tensors, write_checkpoint
from tests.folders import ended, finish, flip, kept, until_shard
from tests.ggufs import MODEL, gguf, key, layers
from tests.hubs import TOKEN, blob, branches, exists, files_of, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.promises import promise
from tests.verify.test_held_to_the_hub import compare, write_pipeline

SOURCE, MADE, FIRST = "alice/source", "alice/made", "model-00001-of-00004.safetensors"
INDEX = "model.safetensors.index.json"
SIZE = "300kB"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload


@pytest.fixture(params=[False, True], ids=["lfs", "xet"])
def hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InHouse]:
    """A Hub with a source of four tensors of 240 kB, with Xet or without."""
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", not request.param)
    tensors = random_tensors(4, 60_000)
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": tensors}, index=False)
    (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
    with hub_in_house(tmp_path / "hub", xet=request.param) as hub:
        push(hub, folder, SOURCE)
        yield hub


lfs = pytest.mark.parametrize("hub", [False], ids=["lfs"], indirect=True)
xet = pytest.mark.parametrize("hub", [True], ids=["xet"], indirect=True)


def begin(hub: InHouse, options: Options | str = SIZE, *, source: str = SOURCE, **more: Any) -> Iterator[Any]:
    more = {"proof": "stated", "endpoint": hub.address, "token": TOKEN, **more}
    return job.shard(source, MADE, options, **more)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, int, int]]:
    """Every range that is read of a repo: its name, the file, start and end."""
    found, usual = list[tuple[str, str, int, int]](), HubSource.read

    def read(source: HubSource, file: str, start: int, end: int) -> Iterator[bytes]:
        found.append((source.ref.repo_id, file, start, end))
        return usual(source, file, start, end)

    monkeypatch.setattr(HubSource, "read", read)
    return found


# --- The sample --------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=4), min_size=1, max_size=6), st.randoms())
def test_a_sample_has_each_header_its_first_and_last_weights_and_at_most_a_hundredth_of_them(
    sizes: list[list[int]], random: Random
) -> None:
    def of(number: int, sizes: list[int]) -> Shard:
        tensors = tuple(Tensor(f"{number}.{n}", "U8", (size,), Stored(0, "f", 0, size)) for n, size in enumerate(sizes))
        return Shard(f"{number}.safetensors", tensors, sum(sizes))

    shards = tuple(of(number, some) for number, some in enumerate(sizes))
    total = sum(one.bytes for one in shards)
    plan = Plan(shards, (Component(),), total, total, Options(), (), sources=(Place("hub", "me/model", "1" * 40),))
    of_weights = 0
    with patch("sharding.verify.sampled.randbelow", random.randrange):
        sampled = sampling(plan)
    for one in sampled.shards:
        (start, header), *ranges = one.sampled
        assert (start, header) == (0, len(next(iter(format_of(plan).pieces(plan, one)))))  # type: ignore[arg-type]
        assert all(end <= begin for (_, end), (begin, _) in zip(ranges, ranges[1:], strict=False))
        assert all(start < end for start, end in ranges)
        if ranges:
            assert (ranges[0][0], ranges[-1][1]) == (header, header + one.bytes)
        of_weights += sum(end - start for start, end in ranges)
    assert of_weights <= min(total / 100, MAX_SAMPLED_BYTES)


@promise("README.md#what-you-can-rely-on")
def test_no_weight_of_the_copy_is_read_but_the_sample_and_none_of_the_source_twice(
    hub: InHouse, reads: list[tuple[str, str, int, int]]
) -> None:
    report = finish(begin(hub))
    proof = report.verification
    assert proof.outcome.kind == "stated" and not proof.identical
    assert ("Xet hash" in proof.method) == proof.evidence.xet == bool(hub.hub and hub.hub.xet)
    headers = {one.file: shards.bytes for one, shards in zip(report.shards, report.plan.shards, strict=True)}
    starts = {one.file: one.bytes - headers[one.file] for one in report.shards}
    weights = [end - start for repo, file, start, end in reads if repo == MADE and file in starts and start]
    assert sum(weights) == proof.evidence.sampled <= report.plan.total_bytes / 100
    assert {(file, end) for repo, file, start, end in reads if repo == MADE and not start} >= {*starts.items()}
    of_source = [(start, end) for repo, file, start, end in reads if repo == SOURCE and end - start > 100_000]
    assert sum(end - start for start, end in of_source) <= report.source.weight_files[0].bytes
    assert branches(hub, MADE) == {"main"} and INDEX in files_of(hub, MADE)
    assert compare(hub, SOURCE, MADE).identical


@pytest.mark.parametrize("kind", ["pipeline", "cast", "one file"])
@lfs
def test_it_holds_for_copies_of_every_kind(hub: InHouse, tmp_path: Path, kind: str) -> None:
    source, options = SOURCE, Options("single-file")
    if kind == "pipeline":
        source = push(hub, write_pipeline(tmp_path / "pipeline"), "alice/pipeline")
        options = Options("100kB")
    elif kind == "cast":
        options = Options(SIZE, dtype="bf16")
    report = shard(hub, source, MADE, options, proof="stated")
    assert report.verification.outcome.kind == "stated" and report.verification.evidence.sampled
    assert compare(hub, source, MADE, dtype=options.dtype).identical


# --- What is noticed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"bytes": 7}, {"xet_hash": "0" * 64}, {"path": "other"}])
def test_a_hub_that_states_anything_else_of_a_file_publishes_nothing(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    usual, has_xet = HubSource._list, bool(hub.hub and hub.hub.xet)

    def listed(source: HubSource) -> list[FileEntry]:
        files = usual(source)
        return [replace(one, **change) if one.path == FIRST else one for one in files]

    monkeypatch.setattr(HubSource, "_list", listed)
    if change.keys() == {"xet_hash"} and not has_xet:
        assert finish(begin(hub)).verification.outcome.kind == "stated"  # there is none to compare
        return
    assert ended(begin(hub)) == f"{FIRST}: the Hub does not state the size and hashes of what was sent"
    assert not exists(hub, MADE)


def flipping(hub: InHouse, at: Callable[[int, int], int]) -> Iterator[Any]:
    """A job during which a bit of its first shard turns, once it is stored, `at` a place by its header and its size."""
    events = begin(hub)
    first = until_shard(events)
    flip(blob(hub, first.file, MADE, STAGING_BRANCH), at(first.bytes - 240_000, first.bytes))
    return events


@pytest.mark.parametrize(
    "at",
    [lambda header, _: header, lambda _, end: end - 1, lambda header, _: header - 20],
    ids=["first", "last", "head"],
)
@lfs
def test_a_changed_byte_in_the_sample_or_in_a_header_is_noticed(hub: InHouse, at: Callable[[int, int], int]) -> None:
    assert re.fullmatch(rf"{FIRST}: its bytes \d+ to \d+ are not as sent", ended(flipping(hub, at)))
    assert not exists(hub, MADE)


@lfs
def test_the_last_weights_of_a_gguf_file_are_in_its_sample_wherever_its_tensors_lie(
    hub: InHouse, tmp_path: Path
) -> None:
    (folder := tmp_path / "gguf").mkdir()
    (folder / "m-Q4_K.gguf").write_bytes(gguf(layers(60), [*MODEL, key("general.alignment", 256)], alignment=256))
    (folder / ".gitattributes").write_text("*.gguf filter=lfs diff=lfs merge=lfs -text\n")
    push(hub, folder, "alice/gguf")
    events = begin(hub, "single-file", source="alice/gguf")
    one = until_shard(events)
    flip(blob(hub, one.file, MADE, STAGING_BRANCH), one.bytes - 250)  # in the last tensor, before what fills it up
    assert "are not as sent" in ended(events) and not exists(hub, MADE)
    assert finish(begin(hub, "200kB", source="alice/gguf")).verification.outcome.kind == "stated"
    assert compare(hub, "alice/gguf", MADE).identical


@pytest.mark.parametrize("sent", ["other bytes", "nothing"])
@xet
def test_what_is_sampled_while_shards_arrive_counts_and_what_cannot_be_read_then_is_read_later(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    usual = ArrivingSource.read

    def read(source: ArrivingSource, file: str, start: int, end: int) -> Iterator[bytes]:
        if sent == "nothing":
            raise SourceError("Only what is committed can be read.")
        first, *others = usual(source, file, start, end)
        yield bytes([first[0] ^ 1])
        yield from (first[1:], *others)

    monkeypatch.setattr(ArrivingSource, "read", read)
    if sent == "nothing":
        assert finish(begin(hub)).verification.outcome.kind == "stated"
    else:
        assert f"{FIRST}: its bytes 0 to" in ended(begin(hub))
        assert not exists(hub, MADE)


@lfs
def test_a_changed_index_is_noticed(hub: InHouse) -> None:
    with hub.failing(f"corrupt@GET .*/resolve/.*/{INDEX}"):
        assert INDEX in ended(begin(hub))
    assert not exists(hub, MADE) or INDEX not in files_of(hub, MADE)


@lfs
def test_a_changed_byte_elsewhere_is_not_noticed_until_all_are_read(
    hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what is not shown, so the report does not say it."""
    monkeypatch.setattr("sharding.verify.sampled.randbelow", lambda _: 0)
    report = finish(flipping(hub, lambda header, _: header + 10_000))
    assert report.verification.outcome.kind == "stated" and not report.verification.identical
    assert "the rest was not" in report.verification.method
    (mismatch,) = {one.problem for one in compare(hub, SOURCE, MADE).mismatches if one.tensor.startswith("layer")}
    assert mismatch == "its bytes differ"


@lfs
def test_what_was_read_of_the_source_is_not_compared_and_the_method_says_so(hub: InHouse) -> None:
    path = blob(hub)
    flip(path, path.stat().st_size // 2)
    assert "SHA-256" in ended(begin(hub, proof="read"))
    proof = finish(begin(hub)).verification
    assert "what was read of the source was not compared with hashes of the Hub" in proof.method


# --- Shards of an earlier run ------------------------------------------------------------------------------


def test_shards_of_an_earlier_run_are_kept_if_the_source_still_gives_them(hub: InHouse) -> None:
    until_shard(begin(hub), stop=True)
    events = [*begin(hub)]
    proof = events[-1].verification
    assert kept(events) == proof.evidence.kept >= 1 and proof.outcome.kind == "stated"
    assert "Xet" not in proof.method  # whoever wrote the record may have written that hash, too
    assert "of an earlier run compared with the source's tensors first" in proof.method
    assert compare(hub, SOURCE, MADE).identical


@lfs
def test_a_forged_shard_with_a_forged_record_is_made_again(hub: InHouse, tmp_path: Path) -> None:
    """Whoever may write to the repo may write both, and the Hub states the hash of the forged one."""
    first = until_shard(begin(hub), stop=True)
    api = hub.api()
    local = Path(api.hf_hub_download(MADE, first.file, revision=STAGING_BRANCH, local_dir=tmp_path / "staged"))
    (record,) = [name for name in files_of(hub, MADE, STAGING_BRANCH) if name.endswith(f"{first.file}.json")]
    flip(local)
    api.upload_file(path_or_fileobj=local, path_in_repo=first.file, repo_id=MADE, revision=STAGING_BRANCH)
    (entry,) = api.get_paths_info(MADE, first.file, revision=STAGING_BRANCH)
    text = json.loads(Path(api.hf_hub_download(MADE, record, revision=STAGING_BRANCH)).read_text())
    text["record"]["sha256"] = entry.lfs.sha256  # type: ignore[union-attr]
    change = CommitOperationAdd(record, json.dumps(text).encode())
    api.create_commit(MADE, [change], commit_message="Forged", revision=STAGING_BRANCH)
    events = [*begin(hub)]
    made = [event.file for event in events if isinstance(event, ShardFinished) and not event.kept]
    assert first.file in made and events[-1].verification.outcome.kind == "stated"
    assert compare(hub, SOURCE, MADE).identical


@lfs
def test_a_job_that_reads_everything_goes_on_from_one_that_does_not_and_loses_no_proof(hub: InHouse) -> None:
    until_shard(begin(hub, Options(SIZE, dtype="bf16")), stop=True)
    events = [*begin(hub, Options(SIZE, dtype="bf16"), proof="read")]
    assert kept(events) >= 1  # the next shard may be finished too
    proof = events[-1].verification
    assert proof.identical and proof.evidence.reread == proof.evidence.weights == 1


# --- Where it is wrong usage -------------------------------------------------------------------------------


@lfs
def test_for_a_folder_and_with_the_classic_engine_it_is_refused_before_anything_is_done(
    hub: InHouse, tmp_path: Path
) -> None:
    asked = len(hub.log)
    for destination, more in ((str(tmp_path / "out"), {}), (MADE, {"engine": "classic"}), (MADE, {"proof": "none"})):
        with pytest.raises(UsageError) as refusal:
            choices: dict[str, Any] = {"proof": "stated", **more}
            next(job.shard(SOURCE, destination, SIZE, endpoint=hub.address, token=TOKEN, **choices))
        assert isinstance(refusal.value, ShardingError) and refusal.value.hint
    assert len(hub.log) == asked and not (tmp_path / "out").exists()
