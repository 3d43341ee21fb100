"""How a job may end before its result: what is kept, what goes, what is said, and what it needs to go on."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from sharding import job
from sharding.core.errors import DestinationError, OverflowRefused, SourceError
from sharding.core.events import Progress
from sharding.core.limits import DISK_FLOOR_BYTES
from sharding.core.options import Options
from sharding.core.values import ShardRecord
from sharding.storage.folder_destination import FolderDestination
from sharding.storage.hub import answers as hub_retry
from tests.commands import run_process
from tests.conftest import environment, listing
from tests.folders import kept, reshard, staged, until_shard
from tests.hubs import TOKEN, branches, exists, files_of
from tests.inhouse import InHouse


def transfer_of(finished: int) -> Callable[..., Iterator[Progress]]:
    """A transfer that has finished so many shards, is at the next, and gets no further."""

    def transfer(prepared: Any, target: Any, kept: Any, _: Any) -> Iterator[Progress]:
        for number, one in enumerate(prepared.plan.shards[: finished + 1]):
            writer = target.open_shard(one.file)
            writer.write(b"bytes")
            if number < finished:
                target.note(ShardRecord(one.file, 5, writer.finish(), {}))
        while True:
            yield Progress("transfer", 1, 2)

    return transfer


def begun(source: Path, place: str, hub: InHouse, monkeypatch: pytest.MonkeyPatch, finished: int) -> Any:
    monkeypatch.setattr(job, "transfer", transfer_of(finished))
    events = job.shard(str(source), place, "60kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, Progress) and event.phase == "transfer")
    return events


ENDS: dict[str, BaseException | None] = {
    "closed": None,
    "interrupted": KeyboardInterrupt(),
    "exit": SystemExit(),
    "refused": SourceError("It broke.", "Mend it."),
    "unforeseen": ZeroDivisionError(),
    "overflow": OverflowRefused("It is too large.", "Take bf16."),
}


def end(events: Any, how: str) -> None:
    error = ENDS[how]
    if error is None:
        events.close()
        return
    with pytest.raises(type(error)):
        events.throw(error)


@pytest.mark.parametrize("how", ENDS)
def test_what_is_finished_is_kept_unless_a_number_overflows_and_no_folder_stays_without(
    how: str, folder: Path, tmp_path: Path, hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "new/out"
    for finished in (0, 2):
        events = begun(folder, str(out), hub, monkeypatch, finished)
        assert staged(out).exists()
        end(events, how)
        if not finished or how == "overflow":
            assert not list(tmp_path.iterdir())
    if how == "overflow":
        return
    parts = {path.name for path in staged(out).glob("*.safetensors.part")}
    assert {f"model-0000{number}-of-00005.safetensors.part" for number in (1, 2)} <= parts
    unfinished = job.find_unfinished(str(out))
    before = listing(out)
    assert unfinished and unfinished.options == Options("60kB") and job.find_unfinished(str(out)) == unfinished
    assert listing(out) == before, "to look changes nothing"


@pytest.mark.parametrize("how", ["closed", "interrupted", "refused", "overflow"])
@pytest.mark.parametrize("was_there", [False, True])
def test_a_job_without_a_finished_shard_leaves_no_repo_that_it_made_and_no_branch(
    how: str, was_there: bool, folder: Path, hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if was_there:
        hub.api().create_repo(name, private=True)
    events = begun(folder, name, hub, monkeypatch, 1 if how == "overflow" else 0)
    assert exists(hub, name)
    end(events, how)
    assert exists(hub, name) == was_there
    if was_there:
        assert branches(hub, name) == {"main"} and files_of(hub, name) == {".gitattributes"}


def test_another_process_can_write_although_this_one_keeps_the_error_of_its_job(
    folder: Path, name: str, hub: InHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hf-xet opens the store of a Hub on this machine in one process at a time."""
    events = begun(folder, f"{name}-failed", hub, monkeypatch, 0)
    with pytest.raises(SourceError) as kept_alive:
        events.throw(SourceError("It broke.", "Mend it."))
    env = {**environment(), "HF_ENDPOINT": hub.address, "HF_TOKEN": TOKEN}
    done = run_process("shard", folder, name, "-s", "60kB", env=env)
    assert done.returncode == 0 and kept_alive.tb, done.stderr


@pytest.mark.parametrize("hint", ["Mend it.", ""])
@pytest.mark.parametrize("rule", ["status:403@DELETE /api/repos/delete", "html@.* /api/(models|repos)/.*"])
def test_what_could_not_be_removed_is_said_after_the_hint_of_the_first_error(
    hint: str, rule: str, folder: Path, hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_retry, "NETWORK_TRIES", 1)
    events = begun(folder, name, hub, monkeypatch, 0)
    with hub.failing(rule), pytest.raises(SourceError) as refused:
        events.throw(SourceError("It broke.", hint))
    assert refused.value.message == "It broke."
    assert refused.value.hint.startswith(f"{hint} This tool created {name}" if hint and "403" in rule else hint)
    remark = refused.value.hint.removeprefix(hint)
    assert name in remark and ("settings" in remark) == ("403" in rule) and remark == remark.rstrip()
    assert (remark[0] == " ") == bool(hint)
    events = begun(folder, f"{name}-other", hub, monkeypatch, 0)
    with pytest.raises(SourceError) as refused:
        events.throw(SourceError("It broke.", hint))
    assert refused.value.hint == hint, "nothing is said where all was removed"


def test_shards_that_are_kept_need_no_room_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reshard(folder, tmp_path / "whole", "20kB")
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "whole").glob("*.safetensors")}
    out = tmp_path / "out"
    until_shard(job.shard(str(folder), str(out), "20kB"), 4, stop=True)
    done = set(FolderDestination(out).done(job.find_unfinished(str(out)).plan_id))  # type: ignore[union-attr]
    stale = [path for path in staged(out).glob("*.safetensors.part") if path.name.removesuffix(".part") not in done]
    need = sum(size for name, size in sizes.items() if name not in done) + (folder / "config.json").stat().st_size
    usage, enough = shutil.disk_usage(tmp_path), DISK_FLOOR_BYTES + need - sum(path.stat().st_size for path in stale)
    for free in (enough - 1, enough):
        monkeypatch.setattr("shutil.disk_usage", lambda _, free=free: usage._replace(free=free))
        with nullcontext() if free == enough else pytest.raises(DestinationError, match="The result needs"):
            assert kept(job.shard(str(folder), str(out), "20kB")) == len(done) >= 4
    assert {path.name for path in out.glob("*.safetensors")} == set(sizes)
