"""Whatever fails and whenever a job dies, `main` shows a whole result or none, and the next run finishes it."""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest

from sharding import job
from sharding.core.errors import DestinationError
from sharding.storage.hub import answers as retry
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import write_checkpoint
from tests.folders import until_shard
from tests.hubs import TOKEN, branches, exists, push, shard
from tests.inhouse import InHouse, hub_in_house
from tests.scenarios.hub_steps import failing_for_good, requests
from tests.storage.publications import UNTIMED

SOURCE, OTHER, MADE = "alice/source", "alice/other", "alice/made"
SIZE = "300B"

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")

Tree = dict[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    tensors = {f"layers.{n}.weight": np.full(50, n, np.float32) for n in range(3)}
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "in", {"model.safetensors": tensors}, index=False)
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, folder, SOURCE)
        push(hub, folder, OTHER)
        shard(hub, SOURCE, "alice/whole", SIZE)
        yield hub


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_TRIES", 2)


def tree(hub: InHouse, repo_id: str, revision: str = "main") -> Tree:
    """Every file of a repo, by what it holds."""
    items = hub.api().list_repo_tree(repo_id, recursive=True, revision=revision)
    return {item.path: item.lfs.sha256 if item.lfs else item.blob_id for item in items if hasattr(item, "blob_id")}  # type: ignore[union-attr]


def stable(files: Tree) -> Tree:
    return {path: content for path, content in files.items() if path not in UNTIMED}


class Place:
    """A repo to publish into again and again, each time with the same before."""

    def __init__(self, hub: InHouse, before: str) -> None:
        self.hub, self._before = hub, before
        self.new, self.old = stable(tree(hub, "alice/whole")), Tree()
        self.private = before == "an empty private repo"
        self._others = {repo: hub.api().model_info(repo).sha for repo in (SOURCE, OTHER)}

    def again(self) -> None:
        """Put everything back as it was before."""
        api = self.hub.api()
        api.delete_repo(MADE, missing_ok=True)
        if self.private:
            api.create_repo(MADE, private=True)
        if self._before == "a result":
            api.duplicate_repo("alice/earlier", MADE, private=False)
        self.old = tree(self.hub, MADE) if exists(self.hub, MADE) else {}

    def publish(self) -> None:
        """Run the job to its end."""
        assert shard(self.hub, SOURCE, MADE, SIZE).verification.identical

    def discard(self) -> None:
        """Give up what a job has left there."""
        job.discard(MADE, endpoint=self.hub.address, token=TOKEN)

    def assert_whole_or_unfinished(self) -> None:
        """`main` shows what it did before or the new result, and nobody sees what is not to be seen."""
        now = tree(self.hub, MADE) if exists(self.hub, MADE) else {}
        if now.keys() - {".gitattributes"} and now != self.old:
            assert stable(now) == self.new
            assert now.keys() >= set(UNTIMED)
        elif now and not self.old.keys() - {".gitattributes"}:
            assert self.hub.api().model_info(MADE).private
        self.assert_others_are_there()

    def is_like_ones_own(self) -> bool:
        """Whether a repo that is there and empty says in no way that a job has made it."""
        empty = exists(self.hub, MADE) and tree(self.hub, MADE).keys() <= {".gitattributes"}
        return empty and job.find_unfinished(MADE, endpoint=self.hub.address, token=TOKEN) is None

    def assert_finished(self, private: bool = False) -> None:
        """The repo shows the new result, to whom it is to, and nothing of a job."""
        assert stable(tree(self.hub, MADE)) == self.new
        assert branches(self.hub, MADE) == {"main"}
        assert self.hub.api().model_info(MADE).private is (self.private or private)
        self.assert_others_are_there()

    def is_published(self) -> bool:
        """Whether `main` shows the new result."""
        return exists(self.hub, MADE) and stable(tree(self.hub, MADE)) == self.new

    def assert_discarded(self, stays: bool = False, whole: bool = False) -> None:
        """The repo is as before, or `whole` as it was; one that the job made is gone, unless it `stays`."""
        assert self.is_published() is whole
        if stays:
            assert (tree(self.hub, MADE).keys(), branches(self.hub, MADE)) == ({".gitattributes"}, {"main"})
        elif exists(self.hub, MADE):
            assert branches(self.hub, MADE) == {"main"}
            assert whole or (tree(self.hub, MADE) == self.old and self._before != "no repo")
        else:
            assert self._before == "no repo"
        self.assert_others_are_there()

    def assert_others_are_there(self) -> None:
        """Nobody has touched another repo."""
        assert {repo: self.hub.api().model_info(repo).sha for repo in self._others} == self._others


@pytest.fixture(params=["no repo", "an empty private repo", "a result"])
def place(request: pytest.FixtureRequest, served: InHouse) -> Place:
    """A name on the Hub that stands for what the parameter says."""
    if request.param == "a result" and not exists(served, "alice/earlier"):
        shard(served, SOURCE, "alice/earlier", "500B")
    return Place(served, request.param)


BEGINNINGS: dict[str, Callable[[Place], None]] = {"publish": Place.again, "discard": lambda place: stage(place)}
"""What comes before a work: nothing before a job, and before a discard a job that was left."""


def stage(place: Place) -> None:
    """Run the job until a shard is staged, and leave it."""
    place.again()
    until_shard(job.shard(SOURCE, MADE, SIZE, endpoint=place.hub.address, token=TOKEN), stop=True)


def steps_of(work: Callable[[], object]) -> list[str]:
    """The changing requests that something makes from here."""
    with requests() as noted:
        work()
    assert noted.made
    return noted.made


def die(place: Place, number: int, work: Callable[[], object]) -> None:
    """Do something until it is killed before a request."""
    with requests(dies_at=number) as noted:
        work()
    assert noted.is_dead, f"there is no request number {number}"


def test_a_result_is_staged_then_shown_by_one_commit_and_then_tidied_up(place: Place) -> None:
    place.again()
    staging, main = f"/api/models/{MADE}/commit/{STAGING_BRANCH}", f"/api/models/{MADE}/commit/main"
    branch = f"/api/models/{MADE}/branch/{STAGING_BRANCH}"
    created = ["POST /api/repos/create"] if not place.old else []
    shown = [f"PUT /api/models/{MADE}/settings"] if created else []
    shards = len([path for path in place.new if path.endswith(".safetensors")])
    notes = 1 + 1  # the first shard, and then, as no minute has passed, all others
    assert shards > notes
    begun = [*created, f"POST {branch}", *[f"POST {staging}"] * (1 + notes)]
    assert steps_of(place.publish) == [*begun, f"POST {main}", *shown, f"DELETE {branch}"]


QUICK = {
    ("no repo", "publish", "publish"),
    ("a result", "publish", "discard"),
    ("no repo", "discard", "discard"),
    ("a result", "discard", "publish"),
}
"""Every request is once the one that is not made; `make thorough` has all places, works, and what comes next."""
DEATHS = [
    pytest.param(*death, marks=[] if death in QUICK else pytest.mark.thorough)
    for death in product(("no repo", "an empty private repo", "a result"), BEGINNINGS, BEGINNINGS)
]


@pytest.mark.parametrize(("place", "work", "then"), DEATHS, indirect=["place"])
def test_what_dies_before_any_request_is_finished_or_discarded_without_a_trace_by_the_next(
    place: Place, work: str, then: str
) -> None:
    BEGINNINGS[work](place)
    for number, _ in enumerate(steps_of(getattr(place, work))):
        BEGINNINGS[work](place)
        die(place, number, getattr(place, work))
        place.assert_whole_or_unfinished()
        is_own, is_whole = place.is_like_ones_own(), place.is_published()
        if then == "publish":
            place.publish()
            place.assert_finished(is_own)
        else:
            place.discard()
            place.assert_discarded(is_own and work == "publish", is_whole and work == "publish")


USUAL = [
    pytest.param(name, marks=[] if name == "no repo" else pytest.mark.thorough) for name in ("no repo", "a result")
]


@pytest.mark.parametrize("place", USUAL, indirect=True)
def test_a_request_that_fails_for_good_ends_the_job_in_words_and_the_next_run_finishes_it(place: Place) -> None:
    place.again()
    said = []
    for number, request in enumerate(steps_of(place.publish)):
        place.again()
        with failing_for_good(place.hub, number):
            try:
                place.publish()
            except DestinationError as error:
                said.append(error)
        place.assert_whole_or_unfinished()
        stays_private = request.endswith("/settings")  # it was said, and whose repo it is nobody knows any more
        place.publish()
        place.assert_finished(stays_private)
    assert said
    assert all("internal problem" in error.message and error.hint for error in said)


@pytest.mark.parametrize(
    ("rule", "shows"),
    [
        (f"status:500@POST .*{MADE}/commit/main", "either the complete copy or none of it"),
        (f"status:500@DELETE .*{MADE}/branch/", "the complete copy"),
    ],
)
def test_a_publishing_that_fails_says_what_stays_and_who_sees_it(place: Place, rule: str, shows: str) -> None:
    place.again()
    with place.hub.failing(rule), pytest.raises(DestinationError) as refusal:
        place.publish()
    is_private = place.hub.api().model_info(MADE).private
    who = "Only people with access to the repo can see it." if is_private else "Everybody can see it."
    said = f"{MADE} shows {shows}. The branch {STAGING_BRANCH} stays for the next run. {who}"
    assert refusal.value.hint.endswith(said)


@pytest.mark.parametrize("place", USUAL, indirect=True)
def test_a_discard_whose_request_fails_for_good_says_so_and_the_next_ends_it(place: Place) -> None:
    stage(place)
    for number, _ in enumerate(steps_of(place.discard)):
        stage(place)
        with failing_for_good(place.hub, number):
            try:
                said = job.discard(MADE, endpoint=place.hub.address, token=TOKEN).remark
            except DestinationError as error:
                said = error.message
        assert "internal problem" in said
        place.assert_whole_or_unfinished()
        stays = place.is_like_ones_own()
        place.discard()
        place.assert_discarded(stays)
