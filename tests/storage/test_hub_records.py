"""Which records on a staging branch count, and what `main` must show for a job to go on or to be done."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import ShardFinished, Verified
from sharding.core.values import BytesRead, ShardRecord, StagedJob
from sharding.formats.names import REPORT_NAME
from sharding.storage.hub import staging as hub_staging
from sharding.storage.hub.repo import HubRepo
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH
from sharding.storage.records import Earlier, Noted, line_of, parse_earlier, parse_line, whole
from tests.hubs import SOURCE, TOKEN, branches, download, files_of, shard
from tests.inhouse import InHouse
from tests.storage.steps import OF, aim, begun, heads, noted, sent, staged, start

# --- Whose records count ------------------------------------------------------------------------------


def done(hub: InHouse, name: str) -> dict[str, ShardRecord]:
    """The finished shards that count for a job that goes on."""
    target = aim(hub, name)
    target.check(OF)
    return target.done("plan")


def test_a_record_counts_only_for_the_very_job_and_plan_that_wrote_it(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    records = [sent(target, number) for number in (1, 2, 3, 4)]
    staged_job = target.unfinished()
    assert staged_job and staged_job.id
    target.note(records[0])
    for record, job_id, plan in (
        (records[1], "0" * 32, "plan"),
        (records[2], staged_job.id, "another plan"),
        (records[3], "", ""),
    ):
        line = line_of(Noted(job_id, plan, record))
        hub.put(name, f"{RECORDS}{record.file}.json", line, revision=STAGING_BRANCH)
    for number, one in enumerate(records[1:], 2):
        hub.put(name, one.file, b"shard %d" % number * 100, revision=STAGING_BRANCH)
    assert len(noted(hub, name)) == 4
    hub.put(name, f"{RECORDS}nonsense.json", b'{"file": 3', revision=STAGING_BRANCH)
    assert done(hub, name).keys() == {records[0].file}


def test_records_count_as_long_as_their_shards_are_whole(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    records = [staged(target, number) for number in (1, 2, 3)]
    target.close()
    assert done(hub, name).keys() == {one.file for one in records}
    change = [CommitOperationDelete(records[0].file), CommitOperationAdd(records[1].file, b"other bytes")]
    hub.api().create_commit(name, change, commit_message="m", revision=STAGING_BRANCH)
    assert done(hub, name) == {records[2].file: records[2]}


def test_no_record_counts_where_one_that_is_gone_says_what_was_read() -> None:
    read = (BytesRead("model.safetensors", 0, 9, "00"),)
    records = {file: ShardRecord(file, 9, "00", {}, reads) for file, reads in (("a", ()), ("b", read), ("c", ()))}
    assert whole(records, lambda _: True) == records
    assert whole(records, lambda one: one.file != "a") == {file: records[file] for file in "bc"}
    assert whole(records, lambda one: one.file != "b") == {}
    assert whole(records, lambda _: False) == whole({}, lambda _: True) == {}


def test_records_too_large_together_are_refused(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target = begun(hub, name)
    for number in (1, 2, 3):
        staged(target, number)
    target.close()
    lines = [f"{RECORDS}{file}.json" for file in noted(hub, name)]
    sizes = [file.size for file in hub.api().get_paths_info(name, lines, revision=STAGING_BRANCH)]  # type: ignore[union-attr]
    assert len(sizes) == 3
    monkeypatch.setattr(hub_staging, "MAX_REPORT_BYTES", sum(sizes))
    assert len(done(hub, name)) == 3
    monkeypatch.setattr(hub_staging, "MAX_REPORT_BYTES", sum(sizes) - 1)
    hub.log.clear()
    with pytest.raises(DestinationError, match="No job of this tool writes as many") as refusal:
        done(hub, name)
    assert hub.asked("/resolve/.*sharding_records/") <= 1, "whose job it is"
    assert "--restart" in refusal.value.hint


@pytest.mark.parametrize(
    "options",
    ['{"max_shard_size": "no size"}', '{"max_shard_size": "-1GB"}', '{"strategy": "stages:2"}', "{}", "7", "[]"],
)
def test_a_job_with_choices_that_nobody_can_make_is_no_job(options: str) -> None:
    ref = '{"store": "hub", "repo_id": "a/b", "revision": "c"}'
    line = f'{{"plan_id": "p", "source": {ref}, "options": OPTIONS}}'
    assert parse_line(StagedJob, line.replace("OPTIONS", '{"max_shard_size": "1GB"}').encode())
    assert options == "{}" or parse_line(StagedJob, line.replace("OPTIONS", options).encode()) is None
    assert parse_line(StagedJob, line.encode()[:-9]) is None


# --- What main is when a job goes on, and when it has published ---------------------------------------


@pytest.mark.parametrize("plan", ["the same", "another"])
def test_a_job_goes_on_where_main_shows_its_own_result(hub: InHouse, name: str, plan: str, tmp_path: Path) -> None:
    shard(hub, SOURCE, name, "1MB")
    start(hub, name, ShardFinished).close()
    shard(hub, SOURCE, f"{name}-beside", "9kB" if plan == "the same" else "30kB")
    title = hub.api().list_repo_commits(f"{name}-beside")[0].title
    place = download(hub, f"{name}-beside", tmp_path / "beside")
    upload = hub.api().upload_folder
    upload(repo_id=name, folder_path=place, commit_message=title, ignore_patterns=".cache/*", delete_patterns="*")
    before = heads(hub, name)
    if plan == "another":
        with pytest.raises(DestinationError, match=f"Somebody has changed {name} meanwhile"):
            shard(hub, SOURCE, name, "9kB")
        assert heads(hub, name) == before
    else:
        assert shard(hub, SOURCE, name, "9kB").verification.identical
        assert branches(hub, name) == {"main"}


BROKEN: dict[str, Callable[[InHouse, str], object]] = {
    "the last shard is gone": lambda hub, name: hub.api().delete_file(shards(hub, name)[-1], name),
    "a shard is another": lambda hub, name: hub.put(name, shards(hub, name)[0], b"other"),
    "the report is another": lambda hub, name: hub.put(name, REPORT_NAME, b"{}"),
}


def shards(hub: InHouse, name: str) -> list[str]:
    return sorted(path for path in files_of(hub, name) if path.endswith(".safetensors"))


@pytest.mark.parametrize("what", BROKEN)
def test_a_result_of_which_main_does_not_show_all_is_not_said_to_be_published_and_stays_staged(
    hub: InHouse, name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = HubRepo.commit

    def commit(repo: HubRepo, branch: str, *given: Any) -> str:
        made = usual(repo, branch, *given)
        if branch == "main":
            BROKEN[what](hub, name)
        return made

    events = start(hub, name, Verified)
    before = noted(hub, name)
    monkeypatch.setattr(HubRepo, "commit", commit)
    with pytest.raises(DestinationError, match="but .* does not show it") as refusal:
        list(events)
    assert "still staged" in refusal.value.hint
    assert noted(hub, name) == before and len(before) > 2
    assert hub.api().model_info(name).private


def test_the_refusal_of_a_changed_repo_names_what_is_gone_there(hub: InHouse, name: str) -> None:
    shard(hub, SOURCE, name, "30kB")
    events = start(hub, name, ShardFinished)
    hub.api().delete_file("config.json", name)
    before = heads(hub, name)["main"]
    for going_on in (events, job.shard(SOURCE, name, "9kB", endpoint=hub.address, token=TOKEN)):
        with pytest.raises(DestinationError, match=r"meanwhile \(removed: config\.json\)"):
            list(going_on)
    assert heads(hub, name)["main"] == before and STAGING_BRANCH in branches(hub, name)


def test_where_main_moves_before_the_commit_nothing_of_it_is_replaced(hub: InHouse, name: str, tmp_path: Path) -> None:
    shard(hub, SOURCE, name, "30kB")
    before = files_of(hub, name)
    events = start(hub, name, Verified)
    hub.put(name, "config.json", b"mine")
    main = heads(hub, name)["main"]
    with pytest.raises(DestinationError, match=r"new or changed: config\.json"):
        list(events)
    assert heads(hub, name)["main"] == main and files_of(hub, name) == before
    assert len(noted(hub, name)) > 2
    assert (download(hub, name, tmp_path / "down") / "config.json").read_bytes() == b"mine"


@pytest.mark.parametrize("odd", [3, None, True, ["b"], {"b": "c"}])
def test_what_a_report_says_that_is_no_name_of_a_file_is_passed_over(odd: object) -> None:
    report = {"schema": 1, "files": ["a", odd, "c"], "source": {"repo_id": "x/y", "store": "hub"}, "plan_id": "p"}
    assert parse_earlier(json.dumps(report).encode()) == Earlier(("a", "c"), "x/y", "p")
    for name in ("schema", "files", "source"):
        for other in (None, odd, "", []):
            earlier = parse_earlier(json.dumps({**report, name: other}).encode())
            assert earlier is None or (name, other) != ("source", odd)
        assert parse_earlier(json.dumps({key: value for key, value in report.items() if key != name}).encode()) is None
    assert all(parse_earlier(text) is None for text in (json.dumps(report).encode()[:-2], b"[" * 99_999, b"\xff"))
    of_folder = parse_earlier(json.dumps({**report, "source": {"repo_id": "x/y", "store": "folder"}}).encode())
    assert of_folder and of_folder.source != "x/y"
