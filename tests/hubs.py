"""What tests do with a Hub: put a checkpoint there, shard it, look at what is there."""

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd

from sharding import job
from sharding.core.events import Published
from sharding.core.options import Options
from sharding.report.schema import Report
from sharding.storage.hub import answers
from sharding.storage.hub.repo import HubRepo
from tests.inhouse import InHouse, hub_in_house
from tests.localhub.conftest import Server

TOKEN, SOURCE = "hf_alice", "alice/source"
NUMBERS = count()


@pytest.fixture(scope="session")
def one_hub(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Iterator[InHouse]:
    """A Hub with the model in `folder`, for tests that each write to repos of their own."""
    with hub_in_house(tmp_path_factory.mktemp("hub"), orgs={"acme": ("alice", "bob")}) as hub:
        push(hub, folder, SOURCE)
        yield hub


@pytest.fixture
def hub(one_hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> InHouse:
    """That Hub, which has heard no request yet; what fails is tried again at once. No test changes the source."""
    monkeypatch.setattr(answers, "NETWORK_WAIT_SECONDS", 0.0001)
    one_hub.log.clear()
    return one_hub


@pytest.fixture(scope="module")
def hub_over_http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub of one room, whose Xet store is reached over HTTP."""
    with hub_in_house(tmp_path_factory.mktemp("hub"), xet_over_http=True) as hub:
        yield hub


@pytest.fixture
def new_hub(tmp_path: Path) -> Iterator[InHouse]:
    """A Hub of one test."""
    with hub_in_house(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def name() -> str:
    """A name that no repo has yet."""
    return f"alice/made-{next(NUMBERS)}"


def push(hub: Server, folder: Path, repo_id: str, token: str = TOKEN, **options: object) -> str:
    """Upload a checkpoint as its author would."""
    hub.api(token).create_repo(repo_id, **options)  # type: ignore[arg-type]
    hub.api(token).upload_folder(repo_id=repo_id, folder_path=folder)
    return repo_id


def propose(hub: Server, folder: Path, repo_id: str) -> str:
    """Open a pull request with what is in `folder`, as bob may in anybody's repo; return its commit."""
    files = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir()) if path.is_file()]
    return str(hub.api("hf_bob").create_commit(repo_id, files, commit_message="Better", create_pr=True).oid)


def shard(
    hub: Server,
    source: str,
    destination: str,
    options: Options | str = "60kB",
    token: str | None = TOKEN,
    **more: object,
) -> Report:
    *_, report = job.shard(source, destination, options, endpoint=hub.address, token=token, **more)  # type: ignore[arg-type]
    assert isinstance(report, Report)
    return report


def blob(hub: InHouse, file: str = "model.safetensors", repo_id: str = SOURCE, revision: str = "main") -> Path:
    """Where a Hub keeps the bytes of a file."""
    (entry,) = hub.api().get_paths_info(repo_id, file, revision=revision)
    assert hub.hub and entry.lfs  # type: ignore[union-attr]
    return hub.hub.blobs.path(entry.lfs.sha256)  # type: ignore[union-attr]


def files_of(hub: Server, repo_id: str, revision: str = "main") -> set[str]:
    return set(hub.api().list_repo_files(repo_id, revision=revision))


def branches(hub: Server, repo_id: str) -> set[str]:
    return {branch.name for branch in hub.api().list_repo_refs(repo_id).branches}


def exists(hub: Server, repo_id: str) -> bool:
    return hub.api().repo_exists(repo_id)


def is_private(hub: Server, repo_id: str) -> bool:
    return bool(hub.api().model_info(repo_id).private)


def remark_of(events: Iterable[job.Event]) -> str:
    """Run a job to its end; return what is remarked on what it has published."""
    (published,) = [event for event in events if isinstance(event, Published)]
    return published.remark


def download(hub: Server, repo_id: str, folder: Path) -> Path:
    return Path(hub.api().snapshot_download(repo_id, local_dir=folder, cache_dir=f"{folder}-cache"))


def after_commits(patch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Act as soon as so many commits have arrived; every shard is committed by itself."""
    patch.setattr("sharding.storage.hub.staging.COMMIT_SECONDS", 0)
    usual, made = HubRepo.commit, list[str]()

    def commit(repo: HubRepo, *given: Any) -> str:
        made.append(usual(repo, *given))
        if len(made) == number:
            act()
        return made[-1]

    patch.setattr(HubRepo, "commit", commit)
