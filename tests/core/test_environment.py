"""What the environment says of a desk is read, or refused."""

import os
import tempfile
from pathlib import Path

import pytest

from sharding.core.environment import child_variables, desk_folder, outlives_restart, prepare_for_xet
from sharding.core.errors import UsageError
from sharding.desk.jobs import Settings

SPACE = "acme/shard-my-repo"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this user, where nothing else is said of a Space or of jobs."""
    for name in ("SPACE_ID", "SPACE_AUTHOR_NAME", "SHARD_MAX_JOB_SIZE", "SHARD_JOBS_AT_ONCE", "SHARD_FOLDER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_a_shared_space_limits_jobs_and_says_whose_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Settings.from_environment()
    assert (own.jobs_at_once, own.max_job_bytes, own.host) == (1, None, None)
    monkeypatch.setenv("SPACE_ID", SPACE)
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


def test_jobs_are_kept_at_home_and_not_among_temporary_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = desk_folder()
    assert folder.is_relative_to(home) and folder.name == "shard-my-repo"
    monkeypatch.setenv("SPACE_ID", SPACE)
    assert desk_folder() == folder
    monkeypatch.setenv("HOME", "/")
    assert desk_folder().name == "shard-my-repo" and len(desk_folder().parts) > 2, "also where the home is the root"


def test_off_a_space_jobs_are_kept_in_the_state_folder_also_where_it_cannot_be_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "file").write_text("")
    for state in (home, home / "file"):
        monkeypatch.setenv("XDG_STATE_HOME", str(state))
        assert desk_folder() == state / "shard-my-repo", "what is wrong with it is said, and no other is taken"
    monkeypatch.setenv("SHARD_FOLDER", str(home / "own"))
    for space in ("", SPACE):
        monkeypatch.setenv("SPACE_ID", space)
        assert desk_folder() == home / "own"


@pytest.mark.parametrize(("variable", "place"), [("HOME", ""), ("XDG_STATE_HOME", ".local/state")])
def test_a_space_whose_state_cannot_be_written_keeps_jobs_among_temporary_files(
    home: Path, variable: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / ".local").write_text("")  # root may write to every folder
    monkeypatch.setenv(variable, str(home / place))
    monkeypatch.setenv("SPACE_ID", SPACE)
    assert desk_folder() == Path(tempfile.gettempdir(), "shard-my-repo")


def test_a_user_whom_the_system_does_not_know_needs_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(UsageError, match="no home folder"):
        desk_folder()
    monkeypatch.setenv("SPACE_ID", SPACE)
    assert desk_folder() == Path(tempfile.gettempdir(), "shard-my-repo")


def test_a_folder_of_a_space_outlives_its_restart_only_on_a_disk_that_is_mounted_and_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_the_image, mounted = Path("/"), Path("/proc")
    assert outlives_restart(of_the_image) and outlives_restart(mounted)
    monkeypatch.setenv("SPACE_ID", SPACE)
    assert not outlives_restart(of_the_image) and not outlives_restart(mounted)
    monkeypatch.setenv("SHARD_FOLDER", "/data/jobs")
    assert (outlives_restart(of_the_image), outlives_restart(mounted)) == (False, True)


def test_hf_xet_writes_its_log_nowhere_unless_a_place_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads that when its first session begins."""
    from sharding.storage.hub.client import xet_session

    seen = []
    monkeypatch.setattr("hf_xet.XetSession", lambda *_: seen.append(os.environ.get("HF_XET_LOG_DEST")))
    monkeypatch.delenv("HF_XET_LOG_DEST", raising=False)
    xet_session()
    for place in ("/var/log/xet", ""):
        monkeypatch.setenv("HF_XET_LOG_DEST", place)
        xet_session()
    assert seen == [os.devnull, "/var/log/xet", ""]
    for text in (None, "/var/log/xet"):
        monkeypatch.setenv("HF_XET_LOG_DEST", text) if text else monkeypatch.delenv("HF_XET_LOG_DEST")
        prepare_for_xet()
        assert child_variables()["HF_XET_LOG_DEST"] == (text or os.devnull)
