"""Run one job on many machines as a person would, act while parts are under way, compare with one machine's result."""

import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from typer.testing import CliRunner

from sharding.cli.commands import app
from sharding.localhub.faults import Fault
from tests.clusters import Cluster, end, kill
from tests.conftest import environment, listing
from tests.hubs import TOKEN, branches, download
from tests.inhouse import InHouse
from tests.localhub.conftest import Server

Event = dict[str, Any]
SLOW_BYTES = 400_000
"""A second, each request: a part takes three seconds, so that something can be done meanwhile."""
JOB_SECONDS = 240
"""A job that takes longer than this hangs: it is killed, and its test fails."""


@dataclass
class Fleet:
    """`shard … --workers ray` in a process of its own; `events` are those that were read so far."""

    process: subprocess.Popen[str]
    events: list[Event] = field(default_factory=list)

    def _read(self) -> Iterator[Event]:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError as error:
                raise AssertionError(f"On standard output there is {line!r}.") from error
            yield self.events[-1]

    def until(self, condition: Callable[[Event], Any]) -> Event:
        """Read events up to the first that meets `condition`; fail where the job ends before."""
        found = next(filter(condition, self._read()), None)
        assert found, f"It ended before: {self.events[-1:]}"
        return found

    def finish(self) -> Event:
        """Read all events and return the last; nothing else may follow it but a good end."""
        for _ in self._read():
            pass
        assert self.process.wait() == 0, self.events[-1:]
        return self.events[-1]

    def at_work(self, stage: str, node: str = "") -> Event:
        """Read on until a worker, of a node where one is named, is at a part of a stage; return what is told of it."""

        def those(event: Event) -> list[Event]:
            return [worker for worker in event["workers"] if worker["node"].startswith(node)]

        return those(self.until(lambda event: event.get("stage") == stage and those(event)))[0]

    def finished(self, kept: bool = False) -> set[str]:
        told = [event for event in self.events if event["event"] == "shard-finished"]
        return {event["file"] for event in told if event["kept"] is kept}

    def kill(self) -> None:
        kill([psutil.Process(self.process.pid)])


def variables(cluster: Cluster | None, hub: Server | None, token: str = TOKEN) -> dict[str, str]:
    """Return the environment of the command; without a cluster it starts one itself."""
    env = {name: text for name, text in environment().items() if not name.startswith(("RAY_", "HF_TOKEN"))}
    env |= {"RAY_ADDRESS": cluster.address} if cluster else {}
    env |= {"HF_ENDPOINT": hub.address} if hub else {}
    return env | ({"HF_TOKEN": token} if hub and token else {})


@contextmanager
def fleet(env: Mapping[str, str], *words: object) -> Iterator[Fleet]:
    command = [sys.executable, "-m", "sharding", "shard", *map(str, words), "--workers", "ray", "--events"]
    # Elsewhere: Ray has workers look for packages where the command was given, before they look at their own.
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryDirectory() as here:
        env = dict(env) if "RAY_ADDRESS" in env else {**env, "RAY_TMPDIR": here}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=said, text=True, env=env, cwd=here, start_new_session=True
        )
        clock = threading.Timer(JOB_SECONDS, process.kill)
        clock.start()
        try:
            yield Fleet(process)
        except BaseException:
            said.seek(0)
            print(said.read()[-5000:])
            raise
        finally:
            clock.cancel()
            end(process)


def alone(env: Mapping[str, str], *words: object) -> None:
    done = CliRunner(env=dict(env)).invoke(app, ["shard", *map(str, words), "--json"])
    assert done.exit_code == 0, done.stderr


def refusal(env: Mapping[str, str], *words: object) -> tuple[int, str]:
    """Run a command that is refused; return its exit status and the sentence with its hint."""
    with fleet(env, *words) as job:
        assert job.process.stdout
        last = json.loads(job.process.stdout.readlines()[-1])
        return job.process.wait(), f"{last['error']['message']} {last['error']['hint']}"


class _After:
    """What stands for a pattern: `pattern` is found once `first` has been found in an earlier request."""

    def __init__(self, first: str, pattern: str) -> None:
        self._first, self._pattern, self._is_due = first, pattern, False

    def search(self, asked: str) -> bool:
        self._is_due = self._is_due or bool(re.search(self._first, asked))
        return self._is_due and bool(re.search(self._pattern, asked))


def slow_parts(hub: InHouse, to_folder: bool = False) -> AbstractContextManager[None]:
    """Slow down what workers put into the store of `hub`, and what they read there of a result; nothing else.

    Where the result goes into a folder, slow down what they read of the source.
    """
    read: Any = _After("GET .*/xet-read-token/shard-my-repo-staging", "GET /cas/xorbs/")
    patterns = [re.compile("GET /cas/xorbs/")] if to_folder else [re.compile("POST /cas/v1/xorbs/"), read]
    return hub.failing(*(Fault("slow", SLOW_BYTES, pattern) for pattern in patterns))


# --- The same as one machine's -------------------------------------------------------------------------


def assert_same_folders(ours: Path, alone: Path) -> None:
    """Two results, in folders of the same name, differ in figures only."""
    assert ours.name == alone.name
    assert not [path for path in ours.rglob("*") if path.name.endswith(".part")]
    assert _comparable(listing(ours)) == _comparable(listing(alone))


def assert_same_repos(hub: Server, ours: str, alone: str, place: Path) -> None:
    """Two results, whose names are equally long, differ in these and in figures only; ours came with one commit."""
    assert len(ours) == len(alone)
    assert [commit.title for commit in hub.api().list_repo_commits(ours)][1:] == ["initial commit"]
    assert branches(hub, ours) == {"main"}
    told = [hub.api().model_info(repo) for repo in (ours, alone)]
    assert told[0].private == told[1].private
    found, wanted = (listing(download(hub, repo, place / repo)) for repo in (ours, alone))
    assert _comparable(found, ours) == _comparable(wanted, alone)


def _comparable(files: Mapping[str, bytes], name: str = "") -> dict[str, Any]:
    comparable: dict[str, Any] = {path: data for path, data in files.items() if ".cache/" not in path}
    card, report = files["README.md"].decode(), json.loads(files["sharding_report.json"])
    if name:
        card = card.replace(name, "the result").replace(name.partition("/")[2], "the result")
    comparable["README.md"] = re.sub(r"Shard My Repo .* of memory", "", card)
    for figures in ("finished", "destination", "resources", "fleet"):
        del report[figures]
    del report["verification"]["seconds"]
    of_earlier = r"; \d+ shards? of an earlier run compared with the source's tensors first"
    report["verification"]["method"] = re.sub(of_earlier, "", report["verification"]["method"])
    return comparable | {"sharding_report.json": report}


# --- Where a text can be found -------------------------------------------------------------------------


def processes_with(
    text: str, processes: list[psutil.Process], places: Sequence[str] = ("environ", "cmdline", "memory")
) -> list[str]:
    """Return which processes know `text`: of their environment, their arguments, or anything they remember."""
    found = []
    for process in processes:
        found += [f"{place} of {process.pid}" for place in places if _holds(process.pid, place, text.encode())]
    return found


def files_with(text: str, *folders: Path) -> list[str]:
    found = []
    for path in (path for folder in folders for path in sorted(folder.rglob("*")) if path.is_file()):
        with suppress(FileNotFoundError):  # it has just gone
            found += [str(path)] if text.encode() in path.read_bytes() else []
    return found


def _holds(pid: int, place: str, data: bytes) -> bool:
    try:
        if place == "memory":
            return any(data in span for span in _memory(pid))
        return data in Path(f"/proc/{pid}/{place}").read_bytes()
    except (ProcessLookupError, FileNotFoundError):  # it has ended
        return False


def _memory(pid: int) -> Iterator[bytes]:
    """Yield what a process has written to its memory: titles of processes lie where their environment was."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for start, stop, rights, resident in _spans(Path(f"/proc/{pid}/smaps").read_text()):
            if rights.startswith("rw") and resident:
                memory.seek(start)
                with suppress(OSError):  # it has just been given back
                    yield memory.read(stop - start)


def _spans(smaps: str) -> Iterator[tuple[int, int, str, int]]:
    """Yield the spans of the memory of a process: from where to where, the rights to it, and the kB that are there."""
    span = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) .*?^Rss: +(\d+) kB$", re.MULTILINE | re.DOTALL)
    for start, stop, rights, resident in span.findall(smaps):
        yield int(start, 16), int(stop, 16), rights, int(resident)
