"""A Hub, and throw-away repos on it that checks make in somebody's namespace, and that are removed again."""

import json
import random
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from huggingface_hub.errors import HfHubHTTPError
from safetensors.numpy import save_file

from sharding import job
from sharding.core.errors import DestinationError
from sharding.core.events import Verified
from sharding.report.schema import Report
from sharding.storage.hub.answers import Person
from sharding.storage.hub.client import Hub
from sharding.storage.hub.repo import HubRepo
from sharding.storage.hub.source import HubSource
from sharding.storage.hub.staging import STAGING_BRANCH

TENSOR_BYTES, SIZE = 200_000, "650kB"
WEIGHTS, VOCABULARY, SETTINGS = "model.safetensors", "tokenizer.model", "generation_config.json"
"""What a Hub keeps in its store: the first by its name, the second too, but it lies beside the weights; and in git."""


def write_model(folder: Path, tensors: int, seed: int) -> Path:
    """Write a checkpoint of random bytes, which no store has yet, with a file beside it of either kind."""
    chance = random.Random(seed)
    folder.mkdir(parents=True)
    weights = {f"layers.{n}.weight": np.frombuffer(chance.randbytes(TENSOR_BYTES), np.uint8) for n in range(tensors)}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    (folder / SETTINGS).write_text(json.dumps({"max_new_tokens": 12}))
    (folder / VOCABULARY).write_bytes(chance.randbytes(TENSOR_BYTES))
    return folder


@dataclass(frozen=True)
class Copy:
    """A copy of the source that is published, and what was seen of the job: `read` are the source's files it asked for."""

    repo: HubRepo
    report: Report
    read: frozenset[str]
    commits_staged: int


class Live:
    """A Hub, and the throw-away repos that the checks make in a namespace of it."""

    def __init__(self, hub: Hub, token: str, person: Person, namespace: str, folder: Path) -> None:
        """Begin with nothing but a model in `folder`."""
        self.hub = hub
        self.anybody = Hub(hub.endpoint, None)
        self.person = person
        self.folder = folder
        self.may_make = False
        self.model = write_model(folder / "model", 10, secrets.randbits(64))
        self._token = token
        self.prefix = f"{namespace}/shard-my-repo-live-{secrets.token_hex(4)}"
        self._begun: dict[str, HubRepo] = {}

    def repo(self, what: str) -> HubRepo:
        """Return a throw-away repo, which need not be there yet: noted before it is made, so that none is forgotten."""
        return self._begun.setdefault(what, HubRepo(self.hub, f"{self.prefix}-{what}"))

    def make(self, what: str, *, private: bool) -> HubRepo:
        """Return a throw-away repo with nothing in it."""
        repo = self.repo(what)
        repo.ask(lambda: self.hub.api.create_repo(repo.repo_id, private=private, exist_ok=True))
        return repo

    @cached_property
    def source(self) -> HubRepo:
        """The model in a public repo, as its author would put it there."""
        repo = self.make("source", private=False)
        repo.ask(lambda: self.hub.api.upload_folder(repo_id=repo.repo_id, folder_path=self.model))
        return repo

    @cached_property
    def copy(self) -> Copy:
        """A copy of the source, made in one go."""
        repo, read, staged = self.repo("copy"), set[str](), 0
        with _noting_reads(self.source.repo_id, read):
            for event in self.shard(self.source.repo_id, repo.repo_id):
                if isinstance(event, Verified):
                    staged = len(self.commits(repo, STAGING_BRANCH))
        assert isinstance(event, Report)
        return Copy(repo, event, frozenset(read), staged)

    def shard(self, source: str, destination: str, **more: Any) -> Generator[job.Event, None, None]:
        """Yield the events of a job on this Hub."""
        events = job.shard(source, destination, SIZE, endpoint=self.hub.endpoint, token=self._token, **more)
        with closing(events):  # so that a job that somebody stops lets go of the Hub before its repo is removed
            yield from events

    def are_identical(self, original: str, copy: str) -> bool:
        """Return whether every tensor of two checkpoints is the same, read again."""
        *_, verified = job.verify(original, copy, endpoint=self.hub.endpoint, token=self._token)
        assert isinstance(verified, Verified)
        return verified.verification.identical

    def unfinished(self, repo: HubRepo) -> bool:
        """Return whether a job has left something to go on from."""
        return job.find_unfinished(repo.repo_id, endpoint=self.hub.endpoint, token=self._token) is not None

    def discard(self, repo: HubRepo) -> str:
        """Discard what a job has left; return what could not be."""
        return job.discard(repo.repo_id, endpoint=self.hub.endpoint, token=self._token).remark

    def commits(self, repo: HubRepo, revision: str) -> list[str]:
        """Return the commits of a branch, the newest first."""
        listed = repo.ask(lambda: self.hub.api.list_repo_commits(repo.repo_id, revision=revision))
        return [commit.commit_id for commit in listed]

    def shown_to_anybody(self, repo: HubRepo) -> list[str]:
        """Return what the Hub tells somebody who is not signed in: nothing of a repo that is hidden."""
        seen, repo_id = HubRepo(self.anybody, repo.repo_id), repo.repo_id
        ways: dict[str, Callable[[], object]] = {
            "that it is there": lambda: self.anybody.api.model_info(repo_id),
            "its files": lambda: list(self.anybody.api.list_repo_tree(repo_id)),
            "the bytes of one": lambda: self.anybody.get(repo_id, "main", ".gitattributes", 1000),
        }
        return [what for what, look in ways.items() if is_allowed(seen, look)]

    def remove(self) -> list[str]:
        """Remove what was made; return a sentence on each repo that is still there."""
        left = []
        for repo in self._begun.values():
            try:
                repo.ask(lambda repo=repo: self.hub.api.delete_repo(repo.repo_id, missing_ok=True))  # type: ignore[misc]
                if repo.exists():
                    left.append(f"{repo.repo_id} is still there: {self.hub.page(repo.repo_id)}/settings.")
            except DestinationError as error:
                page = f"{self.hub.page(repo.repo_id)}/settings"
                left.append(f"{repo.repo_id} could not be removed ({error.message.rstrip('.')}): {page}.")
        return left


@contextmanager
def _noting_reads(repo_id: str, read: set[str]) -> Iterator[None]:
    """Add to `read` the files of a repo whose bytes are asked for while the block lasts."""
    usual = HubSource.read

    def noting(source: HubSource, file: str, start_byte: int, end_byte: int) -> Iterator[bytes]:
        if source.ref.repo_id == repo_id:
            read.add(file)
        return usual(source, file, start_byte, end_byte)

    with patch.object(HubSource, "read", noting):
        yield


def is_allowed(repo: HubRepo, question: Callable[[], object]) -> bool:
    """Return whether the Hub does it; who may not is told so, or that there is no such repo."""
    try:
        repo.ask(question)
    except DestinationError as error:
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError) and cause.response.status_code in (401, 403, 404):
            return False
        raise
    return True


def weights_in(paths: Iterable[str]) -> list[str]:
    """Return those of `paths` that are weights or their index."""
    return sorted(path for path in paths if ".safetensors" in path)
