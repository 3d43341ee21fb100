"""A desk plans, makes and judges the copy of one folder in a repo."""

import pytest

from sharding.core.errors import SourceError
from sharding.core.options import Options
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.conftest import ALICE, AS_ALICE, BOB, end
from tests.hubs import shard
from tests.inhouse import InHouse

SIZE = "60kB"
pytestmark = pytest.mark.usefixtures("at_hand")


@pytest.fixture(scope="module")
def repo(hub: InHouse, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A repo with another model of the same shapes in a folder."""
    hub.api(ALICE).create_repo("alice/several")
    for seed, place in enumerate(("", "sub")):
        tensors = {"model.safetensors": random_tensors(seed=seed)}
        folder = write_checkpoint(tmp_path_factory.mktemp("in") / "one", tensors, False)
        hub.api(ALICE).upload_folder(repo_id="alice/several", folder_path=folder, path_in_repo=place or None)
    return "alice/several"


def test_a_copy_that_the_desk_makes_is_of_that_folder(hub: InHouse, desk: Desk, repo: str, name: str) -> None:
    checkpoint, plan = desk.models.plan(f"{hub.address}/{repo}/tree/main/sub", Options(SIZE), ALICE)
    assert checkpoint.source.name == f"{repo}/sub" and plan.shards
    done = end(desk, desk.submit(JobRequest(f"{repo}/sub", name, Options(SIZE)), *AS_ALICE))
    assert (done.state, done.error) == ("done", None)
    assert done.request.source == f"{repo}@{checkpoint.source.revision}/sub"
    assert done.report and done.report.source.inside == "sub/" and done.report.verification.identical


def test_a_copy_that_others_made_is_held_to_that_folder_and_to_no_other(hub: InHouse, desk: Desk, repo: str) -> None:
    shard(hub, f"{repo}/sub", "bob/of-sub", SIZE, BOB)
    trust = desk.results.judge("bob/of-sub", None)[1]
    assert trust.level == "fits", trust.reasons
    # A reading of the repo's root proves nothing of the folder.
    assert end(desk, desk.submit_comparison(repo, "bob/of-sub", "", *AS_ALICE)).state == "failed"
    assert desk.results.judge("bob/of-sub", None)[1].level == "fits"
    assert end(desk, desk.submit_about("verify", "bob/of-sub", *AS_ALICE)).state == "done"
    assert desk.results.judge("bob/of-sub", None)[1].level == "read-now"
    assert desk.results.compare(repo, "bob/of-sub", ALICE)[1].level == "contradicted"


def test_the_facts_of_a_folder_name_it_and_lead_to_it_and_a_result_is_none(hub: InHouse, desk: Desk, repo: str) -> None:
    with pytest.raises(SourceError, match="A result is a whole repo"):
        desk.results.judge(f"{repo}/sub", ALICE)
    card = desk.lookup.card(f"{repo}/sub", ALICE)
    assert (card.repo_id, card.page) == (f"{repo}/sub", f"{hub.address}/{repo}/tree/{card.revision}/sub")
