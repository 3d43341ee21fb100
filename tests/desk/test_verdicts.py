"""What the page has found out about a copy outlives its jobs and a restart, and nobody else can write it."""

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from stat import S_IMODE
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding.core.options import Options
from sharding.core.verification import Outcome
from sharding.desk.desk import Desk
from sharding.desk.jobs import JobRequest, Settings
from sharding.desk.judgement import Reading, Verdict, Verdicts
from tests.conftest import random_tensors, write_checkpoint
from tests.desk.conftest import AS_ALICE, end
from tests.hubs import download, push, shard
from tests.localhub.conftest import Server
from tests.promises import promise
from tests.report.results import CAST, LORA, MERGE, SOURCE

HUB = "http://hub"
READ = Reading((SOURCE, LORA), {"variant": "fp16", "dtype": "bf16", "dequantize": True})
MADE = Verdict(HUB, "a/copy@1/a “sub”/", READ, "shard", Outcome("within", 3), 5.5, "0.1.0", "", (MERGE, CAST), True)
DIFFERENT, IDENTICAL = Outcome("different", 1), Outcome("identical", 9)
COPIES, READS = ("a/b@1", "a/b@11"), (READ, replace(READ, asked={"variant": ""}))


def kept(folder: Path) -> Iterable[Any]:
    """The rows of the file, as anybody reads it."""
    return [json.loads(line) for line in (folder / "verdicts.jsonl").read_text().splitlines()]


def of(verdicts: Verdicts, verdict: Verdict) -> Verdict | None:
    return verdicts.of(verdict.copy, verdict.read)


VERDICTS = st.builds(
    Verdict,
    hub=st.sampled_from((HUB, "http://other")),
    copy=st.sampled_from(COPIES),
    read=st.sampled_from(READS),
    kind=st.sampled_from(("shard", "verify")),
    outcome=st.sampled_from([Outcome(kind, 2) for kind in ("identical", "within", "undecided", "different")]),  # type: ignore[arg-type]
    ended=st.floats(0, 1e9),
    version=st.just("0.1.0"),
    error=st.text(st.characters(exclude_categories=["Cs"])),
    unreached=st.sampled_from(((), COPIES)),  # a row about one copy may name others
)


@given(st.lists(VERDICTS, max_size=12), st.booleans())
def test_a_difference_counts_whatever_came_before_or_after_it_also_after_a_restart(
    all_: list[Verdict], restarts: bool
) -> None:
    """Then what nobody can tell, then an agreement whose commits are on a branch; each of its own Hub, copy and reading."""
    with TemporaryDirectory() as folder:
        desks = {hub: Verdicts(Path(folder), hub) for hub in (HUB, "http://other")}
        for verdict in all_:
            (Verdicts(Path(folder), verdict.hub) if restarts else desks[verdict.hub]).add(verdict)
        for copy in COPIES:
            for read in READS:
                ours = [one for one in all_ if (one.hub, one.copy, one.read) == (HUB, copy, read)]
                said, answer = {one.outcome.kind for one in ours}, desks[HUB].of(copy, read)
                assert (answer in ours) if ours else answer is None
                if answer and not said & {"different", "undecided"}:
                    assert bool(answer.unreached) == all(one.unreached for one in ours)
                elif answer:
                    assert answer.outcome.kind == ("different" if "different" in said else "undecided")


def test_a_row_comes_back_as_it_was_and_says_what_was_read_by_which_version(tmp_path: Path) -> None:
    Verdicts(tmp_path, HUB).add(MADE)
    assert of(Verdicts(tmp_path, HUB), MADE) == MADE
    (row,) = kept(tmp_path)
    assert (row["version"], row["ended"], row["outcome"]) == ("0.1.0", 5.5, {"kind": "within", "tensors": 3})
    assert [place["revision"] for place in row["read"]["inputs"]] == [SOURCE.revision, LORA.revision]


def test_wherever_a_row_was_torn_the_others_are_read_and_the_next_is_kept(tmp_path: Path) -> None:
    verdicts, later = Verdicts(tmp_path, HUB), replace(MADE, copy="a/later@1")
    verdicts.add(replace(MADE, copy="a/first@1"))
    first = (tmp_path / "verdicts.jsonl").read_bytes()
    verdicts.add(MADE)
    whole = (tmp_path / "verdicts.jsonl").read_bytes()
    for size in range(len(first), len(whole)):
        (tmp_path / "verdicts.jsonl").write_bytes(whole[:size])
        assert verdicts.of("a/first@1", READ)
        assert (of(verdicts, MADE) is None) == (size < len(whole) - 1)
        verdicts.add(later)
        assert verdicts.of("a/first@1", READ) and of(verdicts, later) == later


FOREIGN: list[tuple[str, Any]] = [
    *((name, None) for name in ("hub", "copy", "read", "kind", "outcome", "ended", "version")),
    ("kind", "compare"),
    ("outcome", {"kind": "sound", "tensors": 3}),
    ("outcome", {"kind": "identical", "tensors": -1}),
    ("outcome", {"kind": "identical", "tensors": 3, "but": "not all"}),
    ("read", {"inputs": [], "asked": {}, "skipped": ["lm_head.weight"]}),
    ("ended", "5.5"),
    ("unstated", "no"),
    ("unstated", 0),
    ("revoked", True),
    ("version", "0.1.0"),  # as it is
]


@pytest.mark.parametrize(("name", "value"), FOREIGN)
def test_a_row_that_this_version_does_not_write_is_not_believed_in_part(name: str, value: Any, tmp_path: Path) -> None:
    """Such as one of a later version, or of a load."""
    verdicts = Verdicts(tmp_path, HUB)
    verdicts.add(MADE)
    (row,) = kept(tmp_path)
    row = {key: text for key, text in row.items() if (key, value) != (name, None)}
    foreign = json.dumps(row if value is None else row | {name: value}, ensure_ascii=False).encode()
    (tmp_path / "verdicts.jsonl").write_bytes(b"\n[1]\nnull\n\xff\n" + foreign + b"\n")
    for number in range(2):
        readings = (READ, Reading((), {}))
        assert [verdicts.of(MADE.copy, read) for read in readings] == [MADE if value == "0.1.0" else None, None]
        verdicts.add(replace(MADE, copy=f"a/other@{number}"))
        assert verdicts.of(f"a/other@{number}", READ)


def test_the_oldest_are_forgotten_and_no_agreement_outlives_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sharding.desk.judgement.MOST_VERDICTS", 5)
    verdicts, equal = Verdicts(tmp_path, HUB), replace(MADE, outcome=IDENTICAL)
    verdicts.add(replace(MADE, kind="verify", outcome=DIFFERENT, error="It differs."))
    verdicts.add(equal)
    found = []
    for number in range(7):
        verdicts.add(replace(MADE, copy=f"a/other@{number}"))
        known = of(verdicts, equal)
        found.append(known.outcome.kind if known else None)
        assert len([*kept(tmp_path)]) <= 5 and verdicts.of(f"a/other@{number}", READ)
    assert found == ["different"] * 4 + [None] * 3
    assert [path.name for path in tmp_path.iterdir()] == ["verdicts.jsonl"]


def test_nobody_else_can_read_or_write_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the mask of the one who starts the page, also once the oldest are forgotten."""
    monkeypatch.setattr("sharding.desk.judgement.MOST_VERDICTS", 2)
    before = os.umask(0)
    try:
        for number in range(4):
            Verdicts(tmp_path, HUB).add(replace(MADE, copy=f"a/other@{number}"))
            assert S_IMODE((tmp_path / "verdicts.jsonl").stat().st_mode) == 0o600
    finally:
        os.umask(before)


@promise("docs/security.md#get-what-the-page-has-read")
@pytest.mark.usefixtures("at_hand")
def test_what_was_read_here_stays_green_for_this_copy_alone_once_its_job_is_swept_and_the_page_restarted(
    hub: Server, settings: Settings, small: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a Space, the page says until when."""
    now, levels = [1_800_000_000.0], {f"{name}-made": "made-here", f"{name}-read": "read-now"}
    shard(hub, small, f"{name}-read", "70kB")
    with Desk(settings, clock=lambda: now[0]) as desk:
        jobs = [desk.submit(JobRequest(small, f"{name}-made", Options("70kB")), *AS_ALICE)]
        end(desk, jobs[0])
        jobs.append(desk.submit_about("verify", f"{name}-read", *AS_ALICE))
        end(desk, jobs[1])
    commits = {copy: hub.api().model_info(copy).sha for copy in levels}
    now[0] += 25 * 3600
    monkeypatch.delenv("SHARD_FOLDER", raising=False)
    for space in ("", "acme/shard-my-repo"):
        monkeypatch.setenv("SPACE_ID", space)
        with Desk(settings, clock=lambda: now[0]) as desk:
            assert desk.jobs_of("alice") == [] and desk.status(jobs[0], "alice") is None
            for copy, level in levels.items():
                trust = desk.results.judge(copy, None)[1]
                assert (trust.level, trust.until) == (level, "until this Space restarts" if space else "")
                assert "15 January 2027" in trust.reasons[0] and desk.results.compare(small, copy, None)[1] == trust
    with Desk(replace(settings, folder=tmp_path / "elsewhere")) as other:
        assert [other.results.judge(copy, None)[1].level for copy in levels] == ["fits", "fits"]
    # The same files and the same report in another repo, and other files in this one.
    stolen = push(hub, download(hub, f"{name}-read", tmp_path / "stolen"), f"{name}-stolen")
    other_weights = write_checkpoint(tmp_path / "other", {"model.safetensors": random_tensors(seed=9)}, False)
    shard(hub, push(hub, other_weights, f"{name}-other"), f"{name}-read", Options("70kB"), overwrite=True)
    with Desk(settings, clock=lambda: now[0]) as desk:
        for copy in (stolen, f"{name}-read"):
            assert desk.results.judge(copy, None)[1].level == "fits"
        assert desk.results.judge(f"{name}-read@{commits[f'{name}-read']}", None)[1].level == "read-now"
