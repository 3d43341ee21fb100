"""What the environment says of a desk is read, or refused."""

import os
import tempfile
from pathlib import Path

import pytest

from sharding.core.environment import child_variables, desk_folder, keep_xet_logs_off_the_disk
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
    monkeypatch.setenv("SHARD_JOBS_AT_ONCE", "64")
    monkeypatch.setenv("SHARD_FOLDER", "/data/jobs")
    told = Settings.from_environment()
    assert (told.max_job_bytes, told.jobs_at_once, str(told.folder)) == (3_000_000_000, 64, "/data/jobs")


@pytest.mark.parametrize("text", ["0", "-1", "many", "", "1.5", "65", " 2x"])
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


def test_off_a_space_jobs_are_kept_in_the_state_folder_also_where_it_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHARD_FOLDER", raising=False)
    monkeypatch.delenv("SPACE_ID", raising=False)
    (tmp_path / "file").write_text("")
    for state in (tmp_path, tmp_path / "file"):
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        assert desk_folder() == state / "shard-my-repo", "what is wrong with it is said, and no other is taken"
    monkeypatch.setenv("SHARD_FOLDER", str(tmp_path / "own"))
    for space in ("", "acme/space"):
        monkeypatch.setenv("SPACE_ID", space)
        assert desk_folder() == tmp_path / "own"


def below_a_file(folder: Path) -> Path:
    folder.mkdir()
    (folder / ".local").write_text("")  # root may write to every folder
    return folder


@pytest.mark.parametrize("variable", ["HOME", "XDG_STATE_HOME"])
def test_a_space_whose_state_cannot_be_written_keeps_jobs_among_temporary_files(
    at_home: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = below_a_file(at_home / "home")
    monkeypatch.setenv(variable, str(place if variable == "HOME" else place / ".local/state"))
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    assert desk_folder() == Path(tempfile.gettempdir(), "shard-my-repo")


def test_a_user_whom_the_system_does_not_know_needs_a_home(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(UsageError, match="no home folder"):
        desk_folder()
    monkeypatch.setenv("SPACE_ID", "acme/shard-my-repo")
    assert desk_folder() == Path(tempfile.gettempdir(), "shard-my-repo")


def test_where_the_home_is_the_root_jobs_are_kept_below_it(at_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/")
    assert desk_folder().name == "shard-my-repo" and len(desk_folder().parts) > 2


def test_hf_xet_writes_its_log_nowhere_unless_a_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads that when its first session begins."""
    from sharding.storage.hub.client import xet_session

    seen = []

    def session(*_: object) -> None:
        seen.append(os.environ.get("HF_XET_LOG_DEST"))

    monkeypatch.setattr("hf_xet.XetSession", session)
    monkeypatch.delenv("HF_XET_LOG_DEST")
    xet_session()
    monkeypatch.setenv("HF_XET_LOG_DEST", "/var/log/xet")
    xet_session()
    monkeypatch.setenv("HF_XET_LOG_DEST", "")
    xet_session()
    assert seen == [os.devnull, "/var/log/xet", ""]
    for text in (None, "/var/log/xet"):
        monkeypatch.setenv("HF_XET_LOG_DEST", text) if text else monkeypatch.delenv("HF_XET_LOG_DEST")
        keep_xet_logs_off_the_disk()
        assert child_variables()["HF_XET_LOG_DEST"] == (text or os.devnull)
