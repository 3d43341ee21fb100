"""What the environment says of a desk is read, or refused."""

import tempfile
from pathlib import Path

import pytest

from sharding.core.environment import desk_folder
from sharding.core.errors import UsageError
from sharding.desk import Settings


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


@pytest.fixture
def at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this user, where nothing else says where jobs are kept."""
    for name in ("SHARD_FOLDER", "XDG_STATE_HOME", "SPACE_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_jobs_are_kept_at_home_and_not_among_temporary_files(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk_folder()
    assert folder.is_relative_to(at_home) and folder.name == "shard-my-repo"
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    assert desk_folder() == folder


def test_a_space_whose_home_cannot_be_written_keeps_jobs_among_temporary_files(
    at_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    monkeypatch.setenv("HOME", str(at_home / "no/home"))
    assert desk_folder() == Path(tempfile.gettempdir(), "shard-my-repo")
