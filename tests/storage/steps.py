"""A job on a Hub step by step, as `job.shard` takes the steps, for tests that need no checkpoint; and odd Hubs."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse

from sharding import job
from sharding.core.options import Options
from sharding.core.origin import Place
from sharding.core.protocols import Destination
from sharding.core.values import ShardRecord, StagedJob
from sharding.formats.names import REPORT_NAME
from sharding.storage.folder_source import open_folder
from sharding.storage.hub.client import Hub
from sharding.storage.hub.staging import RECORDS, STAGING_BRANCH
from sharding.storage.locate import find_destination
from tests.hubs import SOURCE, TOKEN, branches, files_of
from tests.inhouse import InHouse

OF = Place("hub", SOURCE, "0" * 40)


def start(hub: InHouse, name: str, until: type, size: str = "9kB", source: str | Path = SOURCE, **more: Any) -> Any:
    """A whole job that goes on when it is asked for more than the first event of a kind."""
    events = job.shard(str(source), name, size, endpoint=hub.address, token=TOKEN, **more)
    next(event for event in events if isinstance(event, until))
    return events


def heads(hub: InHouse, name: str) -> dict[str, str]:
    """The commit that each branch is at."""
    return {branch.name: branch.target_commit for branch in hub.api().list_repo_refs(name).branches}


def aim(hub: InHouse, name: str, token: str | None = TOKEN, **more: bool | None) -> Destination:
    """A destination that nobody has looked at yet."""
    return find_destination(name, Hub(hub.address, token), **more)  # type: ignore[arg-type]


def looked(hub: InHouse, name: str, plan: str = "plan", of: Place = OF, **more: bool | None) -> Destination:
    """A destination that has looked what is there, and is not written to yet."""
    target = aim(hub, name, **more)
    target.check(of)
    target.done(plan)
    return target


def begun(
    hub: InHouse, name: str, plan: str = "plan", of: Place = OF, size: str = "60kB", **more: bool | None
) -> Destination:
    """A job that has said on the staging branch that it has begun, or goes on with one that has."""
    target = aim(hub, name, **more)
    target.check(of)
    begin(target, plan, of, size)
    return target


def begin(target: Destination, plan: str = "plan", of: Place = OF, size: str = "60kB") -> None:
    kept = target.done(plan)
    target.prepare(StagedJob(plan, of, Options(size)), kept.values(), 0)


def sent(target: Destination, number: int, data: bytes = b"") -> ShardRecord:
    """A shard whose bytes are in the store, and which nobody is told of yet."""
    data = data or b"shard %d" % number * 100
    writer = target.open_shard(f"model-{number:05}-of-00009.safetensors")
    writer.write(data)
    return ShardRecord(f"model-{number:05}-of-00009.safetensors", len(data), writer.finish(), {})


def staged(target: Destination, number: int, data: bytes = b"") -> ShardRecord:
    """A finished shard, of which the destination is told."""
    record = sent(target, number, data)
    target.note(record)
    return record


def noted(hub: InHouse, name: str) -> set[str]:
    """The shards that stand on the staging branch, each with its record."""
    files = files_of(hub, name, STAGING_BRANCH) if STAGING_BRANCH in branches(hub, name) else set()
    records = {path for path in files if path.startswith(RECORDS)} - {f"{RECORDS}job.json"}
    told = {path.removeprefix(RECORDS).removesuffix(".json") for path in records}
    assert told <= files
    return told


def publish(target: Destination, folder: Path, *records: ShardRecord, report: bytes = b'{"files": []}') -> str:
    """Publish shards with a report and no files beside them; return the remark on it."""
    folder.mkdir(exist_ok=True)
    written = {REPORT_NAME: report, "config.json": b"{}"}
    return target.publish({one.file: one for one in records}, [], open_folder(str(folder)), written).remark


def change_answers(monkeypatch: pytest.MonkeyPatch, change: Callable[[Any], Any]) -> None:
    """Have the loopback Hub answer with something else."""

    class Changed(JSONResponse):
        def render(self, content: Any) -> bytes:
            return super().render(change(content))

    monkeypatch.setattr("sharding.localhub.web.JSONResponse", Changed)


Answer = Callable[[socket.socket], None]


@contextmanager
def served_by_hand(answer: Answer) -> Iterator[tuple[str, list[bytes]]]:
    """Answer every connection with `answer`; give the address, and what was asked."""
    asked: list[bytes] = []
    ended = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            asked.append(connection.recv(65536))
            try:
                while not ended.is_set():
                    answer(connection)
            except OSError:
                pass

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def answering(body: bytes, *headers: str, status: str = "200 OK") -> Answer:
    """The answer of a Hub that closes the connection after it."""

    def answer(connection: socket.socket) -> None:
        lines = (f"HTTP/1.1 {status}", *headers, "Connection: close", f"Content-Length: {len(body)}", "", "")
        connection.sendall("\r\n".join(lines).encode() + body)
        raise OSError

    return answer
