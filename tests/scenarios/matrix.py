"""Every fault on every endpoint that a job asks: it survives, or ends in words; `python -m tests.scenarios.matrix` notes which.

Each cell is one job from repo to repo on a Hub that breaks the answers of one endpoint in one way. Afterwards, with
the faults gone, `main` of the destination holds nothing or everything, and the same command leaves it as it should be.
"""

import argparse
import itertools
import random
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from bench.harness.sections import RESULTS, replace_section
from sharding import job
from sharding.core.errors import ShardingError
from sharding.report.schema import Report
from sharding.storage.hub.staging import STAGING_BRANCH
from tests.conftest import write_checkpoint
from tests.folders import until_shard
from tests.hubs import TOKEN, branches, exists, push, shard
from tests.inhouse import InHouse, hub_in_house

SOURCE, GATED = "alice/source", "alice/gated"
NUMBERS = itertools.count()


@dataclass(frozen=True)
class Endpoint:
    """What a job asks for: `pattern` finds it in "METHOD path". Some are asked in certain jobs only."""

    title: str
    pattern: str
    job: str = "new"
    xet: bool = True


_MADE = "alice/made-[0-9]+"
_COMMIT = "[0-9a-f]{40}"
ENDPOINTS = (
    Endpoint("GET whoami-v2", "GET /api/whoami-v2"),
    Endpoint("GET source", f"GET /api/models/({SOURCE}|{GATED})$"),
    Endpoint("GET source auth-check", f"GET /api/models/{GATED}/auth-check$", job="gated"),
    Endpoint("GET source tree", f"GET /api/models/({SOURCE}|{GATED})/tree/"),
    Endpoint("GET source resolve weights", "GET /alice/[a-z]+/resolve/.*safetensors$", xet=False),
    Endpoint("GET source resolve header (the rest through Xet)", "GET /alice/[a-z]+/resolve/.*safetensors$"),
    Endpoint("GET source resolve small file", "GET /alice/[a-z]+/resolve/.*(json|md)$"),
    Endpoint("GET source xet-read-token", "GET /api/models/alice/[a-z]+/xet-read-token/"),
    Endpoint("GET destination", f"GET /api/models/{_MADE}$"),
    Endpoint("GET destination auth-check", f"GET /api/models/{_MADE}/auth-check/write", job="resumed"),
    Endpoint("GET destination tree main", f"GET /api/models/{_MADE}/tree/(main|{_COMMIT})", job="resumed"),
    Endpoint("GET destination resolve record", f"GET /{_MADE}/resolve/{_COMMIT}/sharding_records/", job="resumed"),
    Endpoint("GET destination resolve main", f"GET /{_MADE}/resolve/{_COMMIT}/sharding_report.json", job="again"),
    Endpoint("POST destination paths-info", f"POST /api/models/{_MADE}/paths-info/{_COMMIT}", job="again"),
    Endpoint("POST create repo", "POST /api/repos/create"),
    Endpoint("GET refs", f"GET /api/models/{_MADE}/refs"),
    Endpoint("POST branch", f"POST /api/models/{_MADE}/branch/"),
    Endpoint("POST commit staging", f"POST /api/models/{_MADE}/commit/{STAGING_BRANCH}"),
    Endpoint("GET xet-write-token", f"GET /api/models/{_MADE}/xet-write-token/"),
    Endpoint("POST preupload staging", f"POST /api/models/{_MADE}/preupload/{STAGING_BRANCH}", xet=False),
    Endpoint("POST lfs batch", f"POST /{_MADE}.git/info/lfs/objects/batch", xet=False),
    Endpoint("PUT lfs content", "PUT /lfs/[0-9a-f]+/content", xet=False),
    Endpoint("POST lfs verify", f"POST /{_MADE}.git/info/lfs/objects/verify", xet=False),
    Endpoint("GET staged tree", f"GET /api/models/{_MADE}/tree/{STAGING_BRANCH}"),
    Endpoint("GET staged xet-read-token", f"GET /api/models/{_MADE}/xet-read-token/"),
    Endpoint("GET staged resolve", f"GET /{_MADE}/resolve/{STAGING_BRANCH}/model", xet=False),
    Endpoint("POST validate-yaml", "POST /api/validate-yaml"),
    Endpoint("POST preupload main", f"POST /api/models/{_MADE}/preupload/main"),
    Endpoint("POST commit main", f"POST /api/models/{_MADE}/commit/main"),
    Endpoint("DELETE branch", f"DELETE /api/models/{_MADE}/branch/"),
    Endpoint("PUT settings", f"PUT /api/models/{_MADE}/settings"),
    Endpoint("DELETE repo", "DELETE /api/repos/delete", job="fruitless"),
)
FAULTS = {
    "delay": "delay:0.05@{}",
    **{f"{status}": f"status:{status}@{{}}" for status in (401, 403, 404, 409, 412, 413, 500)},
    "429 twice": "status:429@{}#2",
    "503 twice": "status:503@{}#2",
    "cut twice": "cut:0@{}#2",
    "cut": "cut:0@{}",
    "short once": "short:1@{}#1",
    "short": "short:1@{}",
    "long": "long:3@{}",
    "corrupt once": "corrupt@{}#1",
    "corrupt": "corrupt@{}",
    "stall once": "stall:4@{}#1",
    "range ignored": "whole@{}",
    "another commit": "other@{}",
    **{odd: f"{odd}@{{}}" for odd in ("null", "list", "text", "empty", "html", "gone")},
}
FRUITLESS = "status:403@POST /api/.*/branch/"
"""Ends a job that has made a repo and nothing in it."""
Cell = tuple[Endpoint, str]
CELLS: tuple[Cell, ...] = tuple((endpoint, fault) for endpoint in ENDPOINTS for fault in FAULTS)


class Matrix:
    """Two Hubs, one with Xet and one without, both with the same small checkpoint."""

    def __init__(self, with_xet: InHouse, without: InHouse) -> None:
        self.hubs = {True: with_xet, False: without}
        shard(with_xet, SOURCE, "alice/reference", SIZE)
        self._weights = _weights_of(with_xet, "alice/reference")
        assert self._weights

    def run(self, endpoint: Endpoint, fault: str) -> str:
        """Return "survived" or what the job ended with. Raises AssertionError where anything is wrong afterwards."""
        hub, made, before, outcome = self.try_out(endpoint.job, endpoint.xet, FAULTS[fault].format(endpoint.pattern))
        assert hub.asked(endpoint.pattern), f"{endpoint.title} was not asked"
        self._check(hub, made, outcome, before)
        if endpoint.job != "fruitless":
            source = GATED if endpoint.job == "gated" else SOURCE
            shard(hub, source, made, SIZE, restart=endpoint.job == "again")
            assert _weights_of(hub, made) == self._weights
            assert branches(hub, made) == {"main"}
        hub.api().delete_repo(made, missing_ok=True)
        return outcome

    def try_out(self, kind: str, xet: bool, *rules: str) -> tuple[InHouse, str, set[str], str]:
        """Run a job of a kind on a Hub that fails by `rules`; return the Hub, the repo, what it held, and the outcome."""
        hub, made, before = self.hubs[xet], f"alice/made-{next(NUMBERS)}", set[str]()
        if kind == "resumed":
            until_shard(job.shard(SOURCE, made, SIZE, endpoint=hub.address, token=TOKEN), stop=True)
        elif kind == "again":
            shard(hub, SOURCE, made, SIZE)
            before = set(_weights_of(hub, made).values())
        source, size = (GATED if kind == "gated" else SOURCE), (SMALLER if kind == "again" else SIZE)
        hub.log.clear()
        with hub.failing(*rules, *([FRUITLESS] if kind == "fruitless" else [])):
            return hub, made, before, _outcome(hub, source, made, size)

    def _check(self, hub: InHouse, made: str, outcome: str, before: set[str]) -> None:
        """Nothing half-made is on main, and nothing is left that a later run would not go on from."""
        if not exists(hub, made):
            assert outcome != "survived"
            return
        shown = _weights_of(hub, made)
        assert shown == self._weights or set(shown.values()) == before or len(shown) > len(self._weights)
        if outcome != "survived" and not shown and STAGING_BRANCH not in branches(hub, made):
            assert re.search("empty|could not be removed", outcome), f"an empty repo is left: {outcome}"


def _outcome(hub: InHouse, source: str, made: str, size: str) -> str:
    try:
        *_, report = job.shard(source, made, size, endpoint=hub.address, token=TOKEN)
    except ShardingError as error:
        assert error.hint, error.message
        return f"{error.message} {error.hint}"
    assert isinstance(report, Report)
    if report.verification.identical:
        return "survived"
    (first, *_) = report.verification.mismatches
    return f"Not published: {first.tensor}: {first.problem}."


def _weights_of(hub: InHouse, repo_id: str) -> dict[str, str]:
    tree = hub.api().list_repo_tree(repo_id)
    return {file.path: file.lfs.sha256 for file in tree if getattr(file, "lfs", None)}


SIZE, SMALLER = "9kB", "5kB"
SHORT = {
    "answers.NETWORK_WAIT_SECONDS": 0.001,
    "source.READ_TIMEOUT_SECONDS": 1.5,
    "client.Hub.least_xet_bytes": 1900,
    "client.ANSWER_TIMEOUT_SECONDS": 2,
}


@contextmanager
def matrix(folder: Path) -> Iterator[Matrix]:
    """Serve two Hubs with a checkpoint of a few kilobytes while the block lasts; nobody waits long for anything."""
    from huggingface_hub.utils import get_session

    tensors = {f"layers.{n}.weight": np.random.default_rng(n).random(500, np.float32) for n in range(8)}
    checkpoint = write_checkpoint(folder / "checkpoint", {"model.safetensors": tensors}, index=False)
    with ExitStack() as stack:
        for name, value in SHORT.items():
            stack.enter_context(patch(f"sharding.storage.hub.{name}", value))
        with_xet = stack.enter_context(hub_in_house(folder / "with-xet"))
        without = stack.enter_context(hub_in_house(folder / "without", xet=False))
        push(with_xet, checkpoint, SOURCE)
        push(with_xet, checkpoint, GATED)
        with_xet.api().update_repo_settings(GATED, gated="auto")
        shard(without, str(checkpoint), SOURCE, "1GB", private=False)
        sleep = time.sleep
        stack.enter_context(patch("time.sleep", lambda seconds: sleep(min(seconds, 0.01))))
        client = get_session()
        usual, client.timeout = client.timeout, 2
        try:
            yield Matrix(with_xet, without)
        finally:
            client.timeout = usual


def draw(outcomes: dict[Cell, str]) -> str:
    said: list[str] = []
    lines = [f"| endpoint | {' | '.join(FAULTS)} |", "|---" * (len(FAULTS) + 1) + "|"]
    for endpoint in ENDPOINTS:
        cells = []
        for fault in FAULTS:
            outcome = _general(outcomes[endpoint, fault])
            if outcome != "survived" and outcome not in said:
                said.append(outcome)
            cells.append("·" if outcome == "survived" else str(said.index(outcome) + 1))
        lines.append(f"| {endpoint.title} | {' | '.join(cells)} |")
    survived, all_jobs = list(outcomes.values()).count("survived"), len(outcomes)
    head = f"{all_jobs} jobs: {survived} survived (·), {all_jobs - survived} ended with a message (its number)."
    return "\n".join([head, "", *lines, "", *(f"{number}. {text}" for number, text in enumerate(said, start=1))])


INTRODUCTION = """Each cell is a job from repo to repo. The Hub breaks the answers of one endpoint in one way: always, or as often as
the column says. Afterwards `main` holds nothing or everything. The same command without the fault then leaves the right
bytes and no staging branch. If not, the run writes no table and fails. Command: `make matrix`."""


_CHANGES = {
    r"http://127\.0\.0\.1:\d+": "http://hub",
    r"made-\d+": "made",
    r"\b[0-9a-f]{12,64}\b": "…",
    r"bytes \d+ to \d+|expected \d+": "…",
    r"\balice/(source|made|gated)\b": "alice/…",
    r"\b\d+-of-": "…-of-",
}
"""What differs from run to run."""


def _general(outcome: str) -> str:
    for pattern, same in _CHANGES.items():
        outcome = re.sub(pattern, same, outcome)
    return outcome


def sample(number: int, seed: int) -> list[Cell]:
    """Return so many cells, as many endpoints and faults as can be among them."""
    dice = random.Random(seed)
    faults = itertools.cycle(dice.sample(list(FAULTS), len(FAULTS)))
    chosen = list(zip(dice.sample(ENDPOINTS, len(ENDPOINTS)), faults, strict=False))
    others = [cell for cell in CELLS if cell not in chosen]
    return (chosen + dice.sample(others, len(others)))[:number]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cells in whose title this expression is found; writes no table")
    only = parser.parse_args().only
    outcomes: dict[Cell, str] = {}
    failures = []
    with tempfile.TemporaryDirectory() as folder, matrix(Path(folder)) as cells:
        for endpoint, fault in CELLS:
            if re.search(only, f"{endpoint.title} × {fault}"):
                try:
                    outcomes[endpoint, fault] = cells.run(endpoint, fault)
                except Exception as error:
                    failures.append(outcomes.setdefault((endpoint, fault), f"WRONG {type(error).__name__}: {error}"))
                print(f"{endpoint.title} × {fault}: {_general(outcomes[endpoint, fault])}", flush=True)
    if failures:
        raise SystemExit(f"{len(failures)} cells are wrong.")
    if not only:
        replace_section(RESULTS, "## Faults", f"{INTRODUCTION}\n\n{draw(outcomes)}")


if __name__ == "__main__":
    main()
