"""A worker reads and uploads with what it was granted, and knows when that is over."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from sharding.core.errors import DestinationError, GrantExpired, SourceError
from sharding.core.origin import Place
from sharding.core.protocols import LentDestination, LentSource
from sharding.core.values import Shard
from sharding.fleet.parts import Part, PartFailed, parse_event, parse_part, part_json
from sharding.fleet.worker import open_lent, open_lent_destination, work
from sharding.storage.hub.client import Hub
from sharding.storage.hub.source import open_repo
from tests.conftest import in_two_files, listing
from tests.fleet.hands import Hands
from tests.folders import reshard
from tests.hubs import TOKEN, hub_over_http, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.tensors import stored_tensor

FILE = "model-00001-of-00002.safetensors"
hub = hub_over_http


@pytest.fixture(scope="module")
def repo(hub: InHouse, tmp_path_factory: pytest.TempPathFactory) -> str:
    return push(hub, in_two_files(tmp_path_factory.mktemp("source")), "alice/lent", private=True)


def test_what_is_lent_is_read_without_a_login(hub: InHouse, repo: str, checkpoint: Path) -> None:
    source = open_repo(Hub(hub.address, TOKEN), Place("hub", repo))
    lent = source.lend([FILE])
    assert TOKEN not in repr(lent) and lent.grant and TOKEN not in lent.grant.token
    data = (checkpoint / FILE).read_bytes()
    # Short ranges too: over HTTP they would take the login.
    assert b"".join(open_lent(lent).read(FILE, 8, 100)) == data[8:100]
    assert b"".join(open_lent(lent).read(FILE, 0, len(data))) == data
    with pytest.raises(SourceError, match="does not list"):
        list(open_lent(lent).read("config.json", 0, 1))
    assert source.lend([FILE]).grant is not lent.grant


def test_access_that_is_over_is_told_from_a_damaged_source(
    hub: InHouse, repo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.storage.hub.answers.NETWORK_WAIT_SECONDS", 0)
    lent = open_repo(Hub(hub.address, TOKEN), Place("hub", repo)).lend([FILE])
    assert lent.grant
    with pytest.raises(GrantExpired):
        list(open_lent(replace(lent, grant=replace(lent.grant, expires=1))).read(FILE, 0, 9))
    forged = replace(lent, grant=replace(lent.grant, token="xet_read_9999999999_forged"))
    (said,) = [parse_event(line) for line in work(part_json(_reading(forged)), "here")][-1:]
    assert isinstance(said, PartFailed), said
    assert said.again, said.message


def _reading(lent: LentSource) -> Part:
    shard = Shard(FILE, (stored_tensor("w", "U8", (9,), FILE, 0, 9),), 9)
    return Part("verify", shard, (None,), (lent,))


def test_an_upload_whose_access_is_over_is_not_begun(hub: InHouse, repo: str) -> None:
    grant = Hub(hub.address, TOKEN).grant("write", repo, "main")
    lent = LentDestination(Place("hub", repo, ""), "p", hub=hub.address, grant=replace(grant, expires=1))
    with closing(open_lent_destination(lent)) as sink, pytest.raises(GrantExpired):
        sink.open_shard("x.safetensors")


def test_a_part_whose_access_ends_gets_other_access_and_is_not_asked_for_ever(
    hub: InHouse, repo: str, led: Callable[[Hands], Hands]
) -> None:
    class Late(Hands):
        """Some parts arrive when their access is over."""

        def __init__(self, times: int) -> None:
            super().__init__()
            self.times = times

        def start(self, part: str) -> object:
            parsed = parse_part(part)
            (source,) = parsed.sources
            assert source.grant
            if parsed.phase == "transfer" and "00002" in parsed.shard.file and self.times:
                self.times -= 1
                parsed = replace(parsed, sources=(replace(source, grant=replace(source.grant, expires=1)),))
            return super().start(part_json(parsed))  # type: ignore[return-value]

    led(Late(2))
    report = shard(hub, repo, "alice/late", "50kB", workers="ray")
    assert report.fleet and report.fleet.repeated == ("model-00002-of-00006.safetensors",) * 2
    led(Late(3))
    with pytest.raises(GrantExpired, match="for this part of the job has expired"):
        shard(hub, repo, "alice/too-late", "50kB", workers="ray")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # huggingface_hub's own, in its LFS upload
def test_without_xet_a_public_repo_is_read_and_neither_a_private_one_nor_a_destination(
    checkpoint: Path, tmp_path: Path, led: Callable[[Hands], Hands]
) -> None:
    with hub_in_house(tmp_path / "hub", xet=False) as hub:
        shard(hub, str(checkpoint), "alice/public", "1GB", private=False)
        shard(hub, str(checkpoint), "alice/private", "1GB", private=True)
        hands = led(Hands())
        shard(hub, "alice/public", str(tmp_path / "many"), "50kB", workers="ray")
        assert not [part for part in hands.sent if TOKEN in part]
        reshard(checkpoint, tmp_path / "one")
        weights = {path: data for path, data in listing(tmp_path / "one").items() if path.endswith(".safetensors")}
        assert weights.items() <= listing(tmp_path / "many").items()
        with pytest.raises(SourceError, match="workers cannot read model.safetensors without a login"):
            shard(hub, "alice/private", str(tmp_path / "none"), "50kB", workers="ray")
        with pytest.raises(DestinationError, match="alice/copy accepts files only with a login"):
            shard(hub, "alice/public", "alice/copy", "50kB", workers="ray")
        assert not (tmp_path / "none").exists() and not hub.api().repo_exists("alice/copy")
