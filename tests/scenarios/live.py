"""Ask a Hub what only it can answer: `python -m tests.scenarios.live`, for whoever has a network and a token that writes.

Each check is a line: it holds, or it does not and why. All is done on throw-away repos of a few megabytes in one's own
namespace, which are removed at the end, also where a check fails or somebody stops it. The Hub is that of HF_ENDPOINT,
the login that of HF_TOKEN or of `hf auth login`.
"""

# Nothing of tests/conftest.py is used: it hides the login that is saved on this machine.
import argparse
import json
import random
import secrets
import signal
import sys
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from huggingface_hub import CommitOperationAdd
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import disable_progress_bars
from safetensors.numpy import save_file

from sharding import job
from sharding.core.environment import hub_endpoint, hub_token
from sharding.core.errors import Cancelled, DestinationError, Refused, ReplaceRefused, ShardingError
from sharding.core.events import Published, ShardFinished, Verified
from sharding.core.limits import XET_LEAST_BYTES
from sharding.core.origin import Place
from sharding.report.schema import Report
from sharding.storage.hub.answers import Person, person_of
from sharding.storage.hub.client import Hub
from sharding.storage.hub.refusals import SIGN_IN
from sharding.storage.hub.repo import HubRepo, is_alike
from sharding.storage.hub.source import HubSource, open_repo
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
        self.hub = hub
        self.anybody = Hub(hub.endpoint, None)
        self.person = person
        self.folder = folder
        self.may_make = False
        self.model = write_model(folder / "model", 10, secrets.randbits(64))
        self.login: dict[str, Any] = {"endpoint": hub.endpoint, "token": token}
        self.prefix = f"{namespace}/shard-my-repo-live-{secrets.token_hex(4)}"
        self._begun: dict[str, HubRepo] = {}

    def repo(self, what: str) -> HubRepo:
        """Return a throw-away repo, which need not be there yet: noted before it is made, so that none is forgotten."""
        return self._begun.setdefault(what, HubRepo(self.hub, f"{self.prefix}-{what}"))

    def make(self, what: str, *, private: bool) -> HubRepo:
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
        repo, read, staged = self.repo("copy"), set[str](), 0
        with _noting_reads(self.source.repo_id, read):
            for event in self.shard(self.source.repo_id, repo.repo_id):
                if isinstance(event, Verified):
                    staged = len(self.commits(repo, STAGING_BRANCH))
        assert isinstance(event, Report)
        return Copy(repo, event, frozenset(read), staged)

    def shard(self, source: str, destination: str, **more: Any) -> Generator[job.Event, None, None]:
        with closing(job.shard(source, destination, SIZE, **self.login, **more)) as events:
            yield from events  # closed: a job that somebody stops lets go of the Hub before its repo is removed

    def are_identical(self, original: str, copy: str) -> bool:
        *_, verified = job.verify(original, copy, **self.login)
        return verified.verification.identical  # type: ignore[union-attr]

    def commits(self, repo: HubRepo, revision: str) -> list[str]:
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
    return sorted(path for path in paths if ".safetensors" in path)


# --- The checks: each raises AssertionError, or what went wrong, and returns what it found besides ---------


def scopes(live: Live) -> str:
    """The Hub says who bears the token, and what it says that the token may do is what it does."""
    api, repo = live.hub.api, live.repo("scopes")
    repo_id, note = repo.repo_id, CommitOperationAdd("notes.txt", b"x")
    assert person_of(api.whoami()) == live.person, "The Hub says somebody else the second time."
    # In this order: the repo is there for what comes after, and gone in the end.
    done = {"make a repo": is_allowed(repo, lambda: api.create_repo(repo_id, private=True, exist_ok=True))}
    said = {"make a repo": True, "write to it": is_allowed(repo, lambda: live.hub.may(repo_id, write=True))}
    done["write to it"] = is_allowed(repo, lambda: api.create_commit(repo_id, [note], commit_message="Try"))
    said["show it"] = said["remove it"] = live.person.may_show_later
    done["show it"] = is_allowed(repo, lambda: api.update_repo_settings(repo_id, private=False))
    done["remove it"] = is_allowed(repo, lambda: api.delete_repo(repo_id)) and not repo.exists()
    live.may_make = done["make a repo"]
    word = {True: "allowed", False: "refused"}
    wrong = [f"{what}, {word[said[what]]} by what is said, {word[done[what]]} in fact" for what in said]
    wrong = [text for what, text in zip(said, wrong, strict=True) if said[what] != done[what]]
    assert not wrong, f"To {'; to '.join(wrong)}."
    return f"It may {', '.join(what for what in done if done[what]) or 'do nothing'}."


def private_from_birth(live: Live) -> str:
    """What is made private is hidden from anybody at every moment that we look, and the copy that a job makes so too."""
    assert len(live.shown_to_anybody(live.source)) == 3, "Not even a public repo is shown: nothing is proved."

    def look(repo: HubRepo) -> None:
        shown = live.shown_to_anybody(repo)
        assert not shown, f"The Hub shows anybody {', '.join(shown)}."
        assert repo.is_private(), "Its owner is told that it is public."

    look(live.make("private", private=True))
    moments, repo = 0, live.repo("private-copy")
    for event in live.shard(live.source.repo_id, repo.repo_id, private=True):
        if isinstance(event, ShardFinished | Verified | Published):
            look(repo)
            moments += 1
    return f"Looked at {moments} moments of the job."


def copies_on_the_server(live: Live) -> str:
    """A side file in the store is copied without its bytes coming here, one in git is read, and both arrive equal."""
    copy, there = live.copy, live.source.files("main")
    assert there[VOCABULARY].xet_hash, f"The Hub states no Xet hash of {VOCABULARY}, so it was not copied there."
    assert VOCABULARY not in copy.read, f"The bytes of {VOCABULARY} were read."
    assert SETTINGS in copy.read, f"{SETTINGS} was not read, so nothing of this is proved."
    for path in (VOCABULARY, SETTINGS):
        data = copy.repo.read("main", path)
        assert data == (live.model / path).read_bytes(), f"{path} arrived with other bytes."
        assert is_alike(copy.repo.files("main")[path], there[path]), f"{path} has another content."
    return ""


def ranges_and_streams(live: Live) -> str:
    """A range of a file in Xet storage, and a stream from an offset to its end, give exactly those bytes."""
    source = open_repo(live.hub, Place("hub", live.source.repo_id))
    (entry,) = (file for file in source.files if file.path == WEIGHTS)
    assert entry.xet_hash, f"The Hub states no Xet hash of {WEIGHTS}."
    assert live.hub.has_xet(live.source.repo_id, "main"), "The Hub takes no upload through Xet."
    data = (live.model / WEIGHTS).read_bytes()
    assert entry.bytes == len(data), f"The Hub lists {entry.bytes} bytes, and there are {len(data)}."
    least = XET_LEAST_BYTES
    for start, end in ((1, least + 2), (777_777, 777_777 + 3 * least), (1_234_567, len(data)), (5, 5 + least // 2)):
        found = b"".join(source.read(WEIGHTS, start, end))
        assert found == data[start:end], f"Bytes {start} to {end} are others; {len(found)} came."
    return ""


def staging(live: Live) -> str:
    """A job that is stopped after its first shard goes on from there, and `main` shows nothing until it shows it all."""
    repo, source = live.repo("stopped"), live.source.repo_id
    with closing(live.shard(source, repo.repo_id)) as events:
        first = next(event for event in events if isinstance(event, ShardFinished))
    left = job.find_unfinished(repo.repo_id, **live.login)
    assert STAGING_BRANCH in repo.branches() and left, "Nothing is staged to go on from."
    assert not weights_in(repo.files("main")), "main shows weights of a job that was stopped."
    kept = []
    for event in live.shard(source, repo.repo_id):
        if isinstance(event, ShardFinished):
            kept += [event.file] if event.kept else []
        if isinstance(event, ShardFinished | Verified):
            assert not weights_in(repo.files("main")), "main shows weights before all is published."
    assert isinstance(event, Report)
    assert first.file in kept, f"{first.file} was finished and has been made again."
    whole = sum(shard.bytes for shard in event.shards)
    moved = event.resources.bytes_uploaded + event.resources.bytes_deduplicated
    # What is sent has the frames of the store around it, a few bytes a chunk: far less than half a shard.
    assert moved < whole - first.bytes // 2, f"{moved} bytes of {whole} were sent, although {first.bytes} were there."
    assert set(repo.branches()) == {"main"}, f"Branches are left behind: {sorted(repo.branches())}."
    assert {shard.file for shard in event.shards} <= repo.files("main").keys(), "main does not show the whole result."
    return f"{len(kept)} of {len(event.shards)} shards were kept."


def discarding(live: Live) -> str:
    """What a job has made that is stopped and then discarded is gone, its repo too."""
    repo = live.repo("discarded")
    with closing(live.shard(live.source.repo_id, repo.repo_id)) as events:
        next(event for event in events if isinstance(event, ShardFinished))
    assert repo.exists(), "The job has left nothing to discard."
    remark = job.discard(repo.repo_id, **live.login).remark
    assert not repo.exists(), remark or "The repo is still there."
    return ""


def commit_limits(live: Live) -> str:
    """A job makes one commit on `main`, and on its staging branch at most one to begin and one a shard."""
    shards, shown = len(live.copy.report.shards), len(live.commits(live.copy.repo, "main"))
    staged = live.copy.commits_staged
    assert shown == 2, f"main has {shown} commits, the first of them the Hub's own."
    assert 2 <= staged - 1 <= shards + 1, f"The staging branch had {staged - 1} commits for {shards} shards."
    return f"A job of {shards} shards made {staged - 1 + shown - 1} commits, {staged - 1} of them in staging."


def stale_parents(live: Live) -> str:
    """A commit whose parent is not the newest any more is refused with status 412, and leaves the branch as it is."""
    repo, note = live.copy.repo, CommitOperationAdd("notes.txt", b"x")
    head, *_, oldest = live.commits(repo, "main")
    status = 200
    try:
        live.hub.api.create_commit(repo.repo_id, [note], commit_message="Stale", parent_commit=oldest)
    except HfHubHTTPError as error:
        status = error.response.status_code
    assert status == 412, f"It was answered with status {status}."
    assert live.commits(repo, "main")[0] == head, "The branch has moved."
    return ""


def refusal(live: Live, source: str, repo: HubRepo, **more: Any) -> DestinationError | None:
    """Return how a job is refused, if it is; then nothing may have changed."""
    before = repo.branches()
    try:
        list(live.shard(source, repo.repo_id, **more))
    except DestinationError as error:
        assert repo.branches() == before, "It was refused, but not before something had changed."
        return error
    return None


def overwriting(live: Live) -> str:
    """Another model's copy is not replaced unless `overwrite` says so, and then it is."""
    first, second = (str(write_model(live.folder / name, 1, secrets.randbits(64))) for name in ("first", "second"))
    repo = live.make("replaced", private=False)
    list(live.shard(first, repo.repo_id))
    assert isinstance(refusal(live, second, repo), ReplaceRefused), "It was replaced without a word."
    list(live.shard(second, repo.repo_id, overwrite=True))
    assert live.are_identical(second, repo.repo_id), "With overwrite there is something else than the second model."
    return ""


def visibility(live: Live) -> str:
    """A copy that is to be private is refused where its repo is public, and the repo stays as it is."""
    repo = live.make("public", private=False)
    refused = refusal(live, live.source.repo_id, repo, private=True)
    assert refused, "It was accepted."
    assert "public" in refused.message, refused.message
    assert not repo.is_private(), "The repo is not as it was."
    return ""


def verifying(live: Live) -> str:
    """Source and copy, both read again from the Hub, are identical."""
    assert live.are_identical(live.source.repo_id, live.copy.repo.repo_id), "They differ."
    return f"{live.copy.report.verification.tensors} tensors were compared."


Check = Callable[[Live], str]
_ON_THE_COPY = (copies_on_the_server, ranges_and_streams, staging, discarding, commit_limits, stale_parents)
CHECKS: tuple[Check, ...] = (scopes, private_from_birth, *_ON_THE_COPY, overwriting, visibility, verifying)

# --- A run --------------------------------------------------------------------------------------------


def examine(live: Live, check: Check) -> bool:
    """Make a check and print its line; return whether it holds."""
    try:
        verdict, said = "holds", check(live)
    except ShardingError as error:
        verdict, said = "does not", f"{error.message} {error.hint}"
    except Exception as error:  # whatever it is, the other checks can still be made
        verdict, said = "does not", str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
    name, fact = check.__name__.replace("_", " "), check.__doc__ or ""
    print(f"{verdict:9} {name}: {' '.join(f'{fact} {said}'.split())}", flush=True)
    return verdict == "holds"


def examine_all(live: Live) -> bool:
    """Make all checks, and remove what they have made; return whether all hold and nothing is left."""
    holds = False
    try:
        holds = examine(live, scopes)
        if live.remove() or not live.may_make:  # else there would be nothing to look at, or all of it left behind
            print("The other checks are not begun: it is not shown that this token makes repos and removes them again.")
        else:
            holds = all([holds, *(examine(live, check) for check in CHECKS if check is not scopes)])
    finally:
        for remark in (left := live.remove()):
            print(remark, flush=True)
    return holds and not left


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all checks; return the exit status: 0 where all hold, 1 where one does not, 3 where none can be made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", help="where the throw-away repos are made; default: one's own")
    chosen = parser.parse_args(arguments).namespace
    disable_progress_bars()
    endpoint, token = hub_endpoint(), hub_token()
    try:
        if token is None:
            raise Refused(f"Nobody is signed in, so nothing can be made on {endpoint}.", SIGN_IN)
        hub = Hub(endpoint, token)
        person = hub.ask("your account", DestinationError, lambda: person_of(hub.api.whoami()))
        namespace = chosen or person.name
        if namespace not in person.namespaces:
            raise Refused(f"{person.name} may not write to the namespace {namespace}.", "Name one that is open to you.")
        with tempfile.TemporaryDirectory() as folder:
            live = Live(hub, token, person, namespace, Path(folder))
            print(f"{person.name} on {endpoint}, with throw-away repos {live.prefix}-…", flush=True)
            return 0 if examine_all(live) else 1
    except ShardingError as error:
        print(f"{error.message} {error.hint}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return Cancelled.exit_status


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # told to end, it removes its repos as well
    sys.exit(main())
