"""Which login is used, what is said of one that cannot be read, and how a page is addressed."""

import os
import traceback
from pathlib import Path

import pytest

from sharding.core.environment import (
    desk_folder,
    hub_endpoint,
    hub_token,
    jobs_at_once,
    max_job_bytes,
    result_page,
    space_hosts,
)
from sharding.core.errors import Refused, UsageError
from sharding.core.limits import MAX_STORED_TOKENS_BYTES, MAX_TOKEN_BYTES


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for `token` and `stored_tokens`, where nothing else gives a login."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(tmp_path / "stored_tokens"))
    return tmp_path


def test_the_login_is_the_one_of_the_environment_then_the_saved_one_then_none(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_token() is None
    (saved / "token").write_text("hf_saved\n")
    assert hub_token() == "hf_saved"
    for blank in ("", " ", "\n"):
        monkeypatch.setenv("HF_TOKEN", blank)
        assert hub_token() == "hf_saved"
    monkeypatch.setenv("HF_TOKEN", "hf_told")
    assert hub_token() == "hf_told"
    (saved / "token").unlink()
    assert hub_token() == "hf_told"


def test_of_a_saved_login_that_is_no_text_nothing_is_said_but_where_it_is(saved: Path) -> None:
    (saved / "token").write_bytes(b"hf_secret\xff\xfe")
    with pytest.raises(Refused) as refused:
        hub_token()
    assert refused.value.message == (
        f"The saved login cannot be read from {saved / 'token'}: it does not contain a token."
    )
    assert "hf auth login" in refused.value.hint and "HF_TOKEN" in refused.value.hint


def test_the_reason_why_a_saved_login_cannot_be_read_is_said(saved: Path) -> None:
    (saved / "token").symlink_to("token")
    with pytest.raises(Refused, match=f"cannot be read from {saved / 'token'}: .*symbolic links"):
        hub_token()


@pytest.mark.parametrize(("name", "most"), [("token", MAX_TOKEN_BYTES), ("stored_tokens", MAX_STORED_TOKENS_BYTES)])
def test_each_file_of_a_saved_login_is_read_up_to_its_bound_and_no_further(
    name: str, most: int, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved / "token").write_text("hf_saved")
    text = "hf_saved" if name == "token" else ""
    (saved / name).write_text(text + "\n" * (most - len(text)))
    assert hub_token() == "hf_saved"
    os.truncate(saved / name, most + 1)
    with pytest.raises(Refused, match=f"The saved login cannot be read from {saved / name}: "):
        hub_token()
    monkeypatch.setenv("HF_TOKEN", "hf_told")
    assert hub_token() == "hf_told", "nothing saved is read then"


@pytest.mark.parametrize("login", ["me:hf_secret@", "hf_secret@", ":hf_secret@"])
def test_a_login_in_the_address_of_the_hub_is_shown_nowhere(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"https://{login}hub.example/path")
    with pytest.raises(UsageError, match="HF_ENDPOINT contains a login") as refused:
        hub_endpoint()
    assert "hf_secret" not in f"{refused.value.message} {refused.value.hint}"
    assert "hf_secret" not in "".join(traceback.format_exception(refused.value))


def test_an_address_of_a_hub_without_a_login_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, taken in (
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("https://hub.example/a@b", "https://hub.example/a@b"),
        ("", "https://huggingface.co"),
    ):
        monkeypatch.setenv("HF_ENDPOINT", given)
        assert hub_endpoint() == taken
    monkeypatch.delenv("HF_ENDPOINT")
    assert hub_endpoint() == "https://huggingface.co"


def test_cards_link_to_the_own_name_of_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_HOST", raising=False)
    assert result_page("alice/copy") is None and space_hosts() == []
    monkeypatch.setenv("SPACE_HOST", " own.hf.space , other.example,, third.example ")
    assert space_hosts() == ["own.hf.space", "other.example", "third.example"]
    assert result_page("alice/copy") == "https://own.hf.space/?result=alice/copy"


def test_from_one_to_64_jobs_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARD_JOBS_AT_ONCE", raising=False)
    assert jobs_at_once() == 1
    for text in ("1", "2", "64"):
        monkeypatch.setenv("SHARD_JOBS_AT_ONCE", text)
        assert jobs_at_once() == int(text)
    for text in ("0", "65", "-1", " 2x"):
        monkeypatch.setenv("SHARD_JOBS_AT_ONCE", text)
        with pytest.raises(UsageError, match="SHARD_JOBS_AT_ONCE"):
            jobs_at_once()


@pytest.mark.parametrize("space", ["acme/space", ""])
def test_the_largest_job_is_what_is_set_and_else_bounded_on_a_space_only(
    space: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPACE_ID", space)
    monkeypatch.delenv("SHARD_MAX_JOB_SIZE", raising=False)
    assert max_job_bytes() == (50_000_000_000 if space else None)
    monkeypatch.setenv("SHARD_MAX_JOB_SIZE", "80GB")
    assert max_job_bytes() == 80_000_000_000
    monkeypatch.setenv("SHARD_MAX_JOB_SIZE", "plenty")
    with pytest.raises(UsageError):
        max_job_bytes()


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
