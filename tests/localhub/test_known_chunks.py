"""Clients do not send what the store has, as far as the Xet protocol lets them find out."""

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from sharding.localhub.xet import chunks_to_ask_for
from tests.conftest import environment
from tests.localhub.conftest import Server, payload

BYTES = 3_000_000
ABOUT_A_CHUNK = 2 * 128 * 1024  # Around a change, no more than two chunks of the largest size differ.


@pytest.fixture(scope="module")
def over_http(served: Callable[..., Server]) -> Server:
    return served("--xet-over-http")


@pytest.fixture
def upload(over_http: Server, tmp_path: Path) -> Callable[..., list[int]]:
    """Upload files in a process that has uploaded nothing before; return how many bytes of each are new to it."""
    numbers = count()

    def upload(*files: bytes) -> list[int]:
        paths = [tmp_path / f"file-{next(numbers)}" for _ in files]
        for path, content in zip(paths, files, strict=True):
            path.write_bytes(content)
        over_http.api().create_repo("alice/known", exist_ok=True)
        access = over_http.ask("GET", "/api/models/alice/known/xet-write-token/main").json()
        given = {"endpoint": access["casUrl"], "token": access["accessToken"], "token_expiry_unix_secs": access["exp"]}
        code = (
            f"import hf_xet, sys; session = hf_xet.XetSession()\nfor path in sys.argv[1:]:\n"
            f"  commit = session.new_upload_commit(**{given})\n  commit.start_upload_file(path)\n"
            "  print(commit.wait_to_finish().dedup_metrics.new_bytes)"
        )
        env = {**environment(), "HF_HOME": str(tmp_path / f"home-{next(numbers)}"), "HF_XET_LOG_DEST": os.devnull}
        env["HF_XET_TELEMETRY_ENABLED"] = "false"  # else the process waits for two seconds at its end
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, paths)], capture_output=True, text=True, env=env, check=True
        )
        return [int(line) for line in done.stdout.splitlines()]

    return upload


def test_a_file_with_a_new_beginning_is_sent_until_the_client_asks_about_a_known_chunk(
    upload: Callable[..., list[int]],
) -> None:
    known, beginning = payload(BYTES, 2), payload(300_000, 3)
    upload(known)
    moved = beginning + known
    assert upload(moved[:-1]) == [len(moved) - 1]  # no chunk of it happens to be one of 1,024 that a client asks about
    started, new = upload(known[:ABOUT_A_CHUNK], moved)
    assert started == 0 or started <= ABOUT_A_CHUNK / 2  # the cut chunk at its end
    assert new <= len(beginning) + ABOUT_A_CHUNK


def test_an_answer_about_a_chunk_reveals_no_hash_of_another(
    over_http: Server, upload: Callable[..., list[int]]
) -> None:
    shards = over_http.folder / "xet-store" / "xet" / "xorbs" / "shards"
    before = set(shards.glob("*.mdb"))
    upload(payload(BYTES, 4))
    access = over_http.ask("GET", "/api/models/alice/known/xet-read-token/main").json()
    address, token = f"{access['casUrl']}/v1/chunks/default", access["accessToken"]
    (path,) = set(shards.glob("*.mdb")) - before
    shard = path.read_bytes()
    answers = [over_http.ask("GET", f"{address}/{name}", token=token) for name in chunks_to_ask_for(path)]
    assert answers and {answer.status for answer in answers} == {200}
    known = {shard[place : place + 32] for place in range(48, len(shard), 48)} - {b"\xff" * 32}
    told = {answer.body[place : place + 32] for answer in answers for place in range(48, len(answer.body), 48)}
    assert len(known) > BYTES // (128 << 10)
    assert len(known & told) == 1  # the xorb
    assert over_http.ask("GET", f"{address}/{'0' * 64}", token=token).status == 404
    assert over_http.ask("GET", f"{address}/{'0' * 64}", token="xet_forged").status == 401
