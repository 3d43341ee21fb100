"""A copy made like its original is a job like any other: proved, kept private, and done on several machines."""

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sharding import job
from sharding.core.errors import DestinationError, SourceError
from sharding.core.options import Options
from sharding.core.verification import Verification
from tests.clusters import Cluster
from tests.commands import invoke
from tests.fleets import alone, assert_same_folders, assert_same_repos, fleet, variables
from tests.folders import finish, kept, tensors, until_shard
from tests.hubs import TOKEN, download, exists, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.planning.alike.models import build, edit, in_memory, published, rename, shapes, unlike
from tests.planning.alike.test_filled import add_head

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")
NAME = "deepseek_v3"
Folders = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A model as a trainer has saved it, its original, and what is wanted."""
    folder = tmp_path_factory.mktemp("alike")
    original = add_head(NAME, published(build(NAME), folder / "original"))
    mine = rename(in_memory(build(NAME, 1), folder / "mine"), "^", "module.")
    wanted = published(build(NAME, 1), folder / "wanted")
    head = {name: tensor for name, tensor in tensors(original).items() if name.startswith("model.layers.2.")}
    edit(wanted, lambda state: state | head)
    return mine, original, wanted


@pytest.fixture
def repos(hub: InHouse, folders: Folders, name: str) -> tuple[str, str]:
    return push(hub, folders[0], f"{name}-mine"), push(hub, folders[1], f"{name}-original")


def verified(mine: Path | str, copy: Path | str, **more: object) -> Verification:
    *_, last = job.verify(str(mine), str(copy), **more)  # type: ignore[arg-type]
    return last.verification  # type: ignore[union-attr]


def test_from_hub_to_hub_and_verified_again_by_the_command_in_the_card(
    hub: InHouse, repos: tuple[str, str], folders: Folders, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, original = repos
    report = shard(hub, mine, name, Options("30kB", like=original))
    assert report.verification.identical and report.resources.disk_bytes_written == 0
    result = download(hub, name, tmp_path / "result")
    assert unlike(tensors(result), tensors(folders[2])) == {}
    assert verified(mine, name, like=original, endpoint=hub.address, token=TOKEN).identical
    assert not verified(original, name, endpoint=hub.address, token=TOKEN).identical
    card = (result / "README.md").read_text()
    [command] = [line for line in card.splitlines() if line.startswith("shard-my-repo verify")]
    commit = hub.api().repo_info(original).sha
    assert f"--like {original}@{commit}" in command
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = invoke(*shlex.split(command)[1:])
    assert done.exit_code == 0, done.output


def test_files_of_the_original_of_which_nothing_is_needed_are_not_read(
    hub: InHouse, repos: tuple[str, str], folders: Folders, name: str
) -> None:
    whole = push(hub, folders[2], f"{name}-whole")
    read = [len(list(folder.glob("*.safetensors"))) for folder in folders]
    for mine, files in ((repos[0], read[0] + read[1]), (whole, read[2])):
        evidence = shard(hub, mine, f"{mine}-like", Options("30kB", like=repos[1])).verification.evidence
        assert evidence.weights == files


@pytest.mark.parametrize("to_hub", [True, False])
def test_a_job_that_was_interrupted_goes_on(
    to_hub: bool, hub: InHouse, repos: tuple[str, str], folders: Folders, name: str, tmp_path: Path
) -> None:
    mine, original = repos if to_hub else map(str, folders[:2])
    place, told = name if to_hub else str(tmp_path / "out"), {"endpoint": hub.address, "token": TOKEN}
    for stop in (True, False):
        events = job.shard(mine, place, Options("20kB", like=original), **told)  # type: ignore[arg-type]
        if stop:
            until_shard(events, 2, stop=True)
    *went_on, _ = events
    assert kept(went_on)
    result = download(hub, name, tmp_path / "result") if to_hub else tmp_path / "out"
    assert unlike(tensors(result), tensors(folders[2])) == {}


@pytest.mark.parametrize("spoiled", ["model.norm.weight", "model.layers.2.enorm.weight"])
def test_verify_finds_the_tensor_that_is_neither_mine_nor_the_original_s(
    spoiled: str, folders: Folders, tmp_path: Path
) -> None:
    mine, original, _ = folders
    finish(job.shard(str(mine), str(tmp_path / "out"), Options("single-file", like=str(original))))
    assert verified(mine, tmp_path / "out", like=str(original)).identical

    def spoil(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return state | {spoiled: state[spoiled] * 2 + 1}

    edit(tmp_path / "out", spoil)
    outcome = verified(mine, tmp_path / "out", like=str(original), numeric=True)
    assert [mismatch.tensor for mismatch in outcome.mismatches] == [spoiled] and not outcome.advice


def test_a_copy_with_numbers_of_a_private_original_is_private(hub: InHouse, folders: Folders, name: str) -> None:
    mine = push(hub, folders[0], f"{name}-mine")
    original = push(hub, folders[1], f"{name}-original", private=True)
    with pytest.raises(DestinationError, match=original):
        shard(hub, mine, name, Options("1MB", like=original), private=False)
    shard(hub, mine, name, Options("1MB", like=original))
    assert hub.api().repo_info(name).private


def test_a_gated_original_is_refused_and_leaves_nothing(hub: InHouse, folders: Folders, name: str) -> None:
    original = f"bob/{name.rpartition('/')[2]}-original"
    push(hub, folders[1], original, "hf_bob")
    hub.api("hf_bob").update_repo_settings(original, gated="manual")
    mine = push(hub, folders[0], f"{name}-mine")
    with pytest.raises(SourceError, match=f"{original} is gated"):
        shard(hub, mine, name, Options("1MB", like=original))
    assert not exists(hub, name)


@pytest.mark.parametrize("take_hole", [True, False])
def test_a_refusal_leaves_no_repo(hub: InHouse, folders: Folders, take_hole: bool, name: str, tmp_path: Path) -> None:
    original = push(hub, folders[1], f"{name}-original")
    broken = rename(in_memory(build(NAME, 1), tmp_path / "mine"), "^", "module.")
    hole = "module.model.layers.1.self_attn.o_proj.weight"
    edit(broken, lambda state: {n: t for n, t in state.items() if n != hole} if take_hole else {"a": torch.ones(2)})
    with pytest.raises(SourceError):
        shard(hub, push(hub, broken, f"{name}-mine"), name, Options("1MB", like=original))
    assert not exists(hub, name)


def test_the_original_may_be_the_destination_of_nothing(folders: Folders, tmp_path: Path) -> None:
    original = published(build(NAME), tmp_path / "original")
    for place in (original, original / "out"):
        with pytest.raises(DestinationError):
            finish(job.shard(str(folders[0]), str(place), Options("1MB", like=str(original)), overwrite=True))


def test_a_licence_of_the_original_counts_where_its_numbers_are(folders: Folders, tmp_path: Path) -> None:
    mine = rename(in_memory(build(NAME, 1), tmp_path / "mine"), "^", "module.")
    original = add_head(NAME, published(build(NAME), tmp_path / "original"))
    (original / "LICENSE").write_text("Only on Sundays.")
    finish(job.shard(str(mine), str(tmp_path / "out"), Options("1MB", like=str(original))))
    assert (tmp_path / "out/LICENSE").read_text() == "Only on Sundays."
    assert "licence holds for what is filled" in (tmp_path / "out/README.md").read_text()


@pytest.fixture(scope="module")
def fleet_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True) as hub:
        yield hub


@pytest.mark.thorough
def test_a_fleet_makes_what_one_machine_makes(
    cluster: Cluster, fleet_hub: InHouse, folders: Folders, tmp_path: Path
) -> None:
    mine, original, wanted = folders
    with fleet(variables(cluster, None), mine, tmp_path / "ours/out", "-s", "20kB", "--like", original) as running:
        running.finish()
    alone(variables(None, None), mine, tmp_path / "alone/out", "-s", "20kB", "--like", original)
    assert_same_folders(tmp_path / "ours/out", tmp_path / "alone/out")
    assert unlike(tensors(tmp_path / "ours/out"), tensors(wanted)) == {}
    push(fleet_hub, mine, "alice/mine", private=True)
    push(fleet_hub, original, "alice/original", private=True)
    words = ["-s", "20kB", "--like", "alice/original"]
    with fleet(variables(cluster, fleet_hub), "alice/mine", "alice/fleet", *words) as running:
        running.finish()
    alone(variables(None, fleet_hub), "alice/mine", "alice/alone", *words)
    assert_same_repos(fleet_hub, "alice/fleet", "alice/alone", tmp_path)
    assert shapes(download(fleet_hub, "alice/fleet", tmp_path / "fleet")) == shapes(original)
