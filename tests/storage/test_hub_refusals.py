"""What may not be written is refused before anything is done, and what others have changed since is not touched."""

import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.limits import THREADS
from sharding.core.options import Request
from tests.hubs import SOURCE, TOKEN, shard
from tests.inhouse import InHouse
from tests.storage.steps import begin, begun, heads, looked, noted, sent, staged

WRITES = "^(POST|PUT|DELETE) .*(repos/|commit|branch|preupload|info/lfs|settings)"


# --- Refused before anything is done ------------------------------------------------------------------


@pytest.mark.parametrize("private", [None, True])
def test_a_login_that_may_only_read_is_refused_at_the_check(hub: InHouse, name: str, private: bool | None) -> None:
    hub.api().create_repo(name, private=True)
    hub.log.clear()
    for ask in (
        lambda: job.check(Request(SOURCE, name, private=private), endpoint=hub.address, token="hf_alice_read"),
        lambda: shard(hub, SOURCE, name, token="hf_alice_read", private=private),
    ):
        with pytest.raises(DestinationError, match="does not allow it"):
            ask()  # type: ignore[no-untyped-call]
    assert hub.asked("/resolve/") == hub.asked(WRITES) == 0


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("taken", [0, 2])
def test_a_strange_repo_stays_and_a_free_name_is_proposed(hub: InHouse, name: str, overwrite: bool, taken: int) -> None:
    hub.api().create_repo(name)
    hub.put(name, "notes.txt", b"mine")
    for number in range(2, 2 + taken):
        hub.api().create_repo(f"{name}-{number}")
    before, _ = hub.api().model_info(name).sha, hub.log.clear()
    for ask in (
        lambda: job.check(Request(SOURCE, name, overwrite=overwrite), endpoint=hub.address, token=TOKEN),
        lambda: shard(hub, SOURCE, name, overwrite=overwrite),
        lambda: shard(hub, SOURCE, name, overwrite=overwrite, restart=True),
    ):
        with pytest.raises(DestinationError, match=r"files that this tool did not write: notes\.txt") as refusal:
            ask()  # type: ignore[no-untyped-call]
        assert refusal.value.hint == f"Choose another name, such as {name}-{2 + taken}, which is free."
    assert hub.asked(WRITES) == 0
    assert hub.api().model_info(name).sha == before


@pytest.mark.parametrize("what", ["main", "a new staging branch"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_repo_that_changed_since_the_check_gets_nothing(hub: InHouse, name: str, what: str, restart: bool) -> None:
    hub.api().create_repo(name, private=True)
    target = looked(hub, name, restart=restart)
    hub.put(name, "x.txt") if what == "main" else staged(begun(hub, name, "other"), 1)
    before = heads(hub, name)
    hub.log.clear()
    with pytest.raises(DestinationError, match=f"Somebody has changed {name} meanwhile"):
        begin(target)
    assert hub.asked(WRITES) == 0
    discarded = target.discard()
    assert what == "main" or not discarded.found
    assert heads(hub, name) == before


@pytest.mark.parametrize("restart", [False, True])
def test_a_staging_branch_that_moved_since_the_check_is_not_written_to(hub: InHouse, name: str, restart: bool) -> None:
    first = begun(hub, name)
    one = staged(first, 1)
    target = looked(hub, name, restart=restart)
    two = sent(first, 2)
    first.note(two)
    first.open_staged([])  # all that was added is committed
    with pytest.raises(DestinationError, match="Somebody has changed"):
        begin(target) if not restart else begin(target, "other")
    target.discard()
    target.close()
    assert noted(hub, name) == {one.file, two.file}


def test_one_shard_is_sent_at_a_time_while_another_is_finished(hub: InHouse, name: str) -> None:
    target = begun(hub, name)
    assert target.shards_at_once == THREADS > target.writes_at_once == 1
