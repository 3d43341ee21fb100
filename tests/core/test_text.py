"""Sizes as people write them."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharding import job
from sharding.core import limits
from sharding.core.errors import SourceError, UsageError
from sharding.core.text import exact_size, format_bytes, parse_bytes
from sharding.desk import Settings
from tests.conftest import random_tensors, write_checkpoint


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("2GB", 2 * 10**9),
        ("2 GB", 2 * 10**9),
        ("2gb", 2 * 10**9),
        ("500MB", 500 * 10**6),
        ("1GiB", 2**30),
        ("1gib", 2**30),
        ("64MiB", 64 * 2**20),
        ("300000000", 300_000_000),
        (" 1.5GB ", 1_500_000_000),
        ("0.1 kB", 100),
        ("7B", 7),
    ],
)
def test_a_size_means_what_it_says(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["0", "0GB", "-1GB", "10 apples", "nan", "inf", "", "GB", "1e9", "0.1B", "1,5GB", "٢GB", "2GB2"]
)
def test_what_is_no_size_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes(text)
    assert refusal.value.hint


def test_a_forgotten_b_is_noticed() -> None:
    with pytest.raises(UsageError) as refusal:
        parse_bytes("200m")
    assert refusal.value.hint == "Did you mean 200MB?"


@given(st.integers(1, 10**15))
def test_a_formatted_size_is_within_a_twentieth_of_the_count(count: int) -> None:
    number, unit = format_bytes(count).split()
    assert float(number) < 1000 or unit == "TB"
    assert abs(float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}[unit] - count) <= 0.05 * count


@given(st.integers(1, 10**15))
def test_an_exact_size_means_exactly_that_many_bytes(count: int) -> None:
    assert parse_bytes(exact_size(count)) == count


@pytest.mark.parametrize(("count", "text"), [(200_000_000, "200MB"), (1 << 30, "1GiB"), (7_000, "7kB"), (1001, "1001")])
def test_an_exact_size_is_written_as_people_write_it(count: int, text: str) -> None:
    assert exact_size(count) == text


def test_a_shared_space_limits_jobs_and_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPACE_ID", "SPACE_AUTHOR_NAME", "SHARD_MAX_JOB_SIZE", "SHARD_JOBS_AT_ONCE", "SHARD_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    own = Settings.from_environment()
    assert (own.jobs_at_once, own.max_job_bytes, own.host) == (1, None, None)
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    monkeypatch.setenv("SPACE_AUTHOR_NAME", "acme")
    space = Settings.from_environment()
    assert (space.max_job_bytes, space.host) == (50_000_000_000, "acme")
    monkeypatch.setenv("SHARD_MAX_JOB_SIZE", "3GB")
    monkeypatch.setenv("SHARD_JOBS_AT_ONCE", "4")
    monkeypatch.setenv("SHARD_FOLDER", "/data/jobs")
    told = Settings.from_environment()
    assert (told.max_job_bytes, told.jobs_at_once, str(told.folder)) == (3_000_000_000, 4, "/data/jobs")


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", "1000"])
def test_a_wrong_number_of_jobs_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SHARD_JOBS_AT_ONCE", text)
    with pytest.raises(UsageError, match="SHARD_JOBS_AT_ONCE"):
        Settings.from_environment()


def test_every_bound_has_its_reason() -> None:
    body = ast.parse(Path(limits.__file__).read_text()).body
    bare = []
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            bare.append(node.targets[0].id)
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                bare.clear()
        else:
            assert [name for name in bare if not name.startswith("_")] == []
            bare.clear()


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TENSORS"])
def test_what_is_beyond_all_bounds_is_refused(bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    for room in ("sharding.storage.folder_source", "sharding.checkpoint.read"):
        monkeypatch.setattr(f"{room}.{bound}", 1, raising=False)
    with pytest.raises(SourceError) as refusal:
        job.inspect(str(folder))
    assert refusal.value.hint
