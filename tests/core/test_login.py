"""Which login is used, what is said of one that cannot be read, and how a page is addressed."""

import json
import os
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from sharding.core.environment import hub_endpoint, hub_token, result_page, space_hosts
from sharding.core.errors import Refused, UsageError
from sharding.core.limits import MAX_STORED_TOKENS_BYTES, MAX_TOKEN_BYTES
from tests.commands import run_process
from tests.conftest import environment


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for `token` and `stored_tokens`, where nothing else gives a login."""
    place = tmp_path / "login"
    place.mkdir()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(place / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(place / "stored_tokens"))
    return place


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
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert hub_token() is None


LOGINS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a folder": (lambda path: path.mkdir(), "Is a directory"),
    "a link in a circle": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "bytes": (lambda path: path.write_bytes(b"hf_secret\xff\xfe"), "it does not contain a token"),
    "a gigabyte": (lambda path: (path.touch(), os.truncate(path, 10**9)), "it does not contain a token"),
    "a pipe": (lambda path: os.mkfifo(path), "it does not contain a token"),
    "below a file": (lambda path: path.parent.rmdir() or path.parent.write_text(""), "Not a directory"),
}


@pytest.mark.parametrize("kind", LOGINS)
def test_a_saved_login_that_cannot_be_read_is_a_sentence_that_says_where_it_is_and_why(
    kind: str, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage, reason = LOGINS[kind]
    damage(saved / "token")
    for blank in ("", " "):
        monkeypatch.setenv("HF_TOKEN", blank)
        with pytest.raises(Refused) as refused:
            hub_token()
        assert refused.value.message == f"The saved login cannot be read from {saved / 'token'}: {reason}."
        assert (refused.value.hint, refused.value.exit_status) == ("Run `hf auth login` again, or set HF_TOKEN.", 3)
    monkeypatch.setenv("HF_TOKEN", "hf_told")
    assert hub_token() == "hf_told", "nothing saved is read then"


def test_whatever_the_library_of_the_hub_raises_is_that_sentence(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (saved / "token").write_text("hf_a")
    for error in (ValueError("hf_a"), KeyError("hf_a"), RuntimeError("hf_a"), PermissionError(13, "Permission denied")):
        monkeypatch.setattr("huggingface_hub.get_token", Mock(side_effect=error))
        with pytest.raises(Refused, match="The saved login cannot be read from") as refused:
            hub_token()
        assert "hf_a" not in refused.value.message


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


@pytest.mark.parametrize(
    "text", ["localhost:80", "ftp://hub", "https://", "http://[::1", "http://hub ", '"http://hub"']
)
def test_what_is_no_address_of_a_hub_is_named_before_anything_else(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", text)
    with pytest.raises(UsageError, match=re.escape(f"HF_ENDPOINT is {text.rstrip('/')!r}, not the address of a Hub.")):
        hub_endpoint()


def test_an_address_that_huggingface_hub_cannot_be_imported_with_is_wrong_usage() -> None:
    done = run_process("inspect", "gpt2", "--json", env=environment() | {"HF_ENDPOINT": "http://[::1"})
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (2, "UsageError"), done.stderr


def test_an_address_of_a_hub_without_a_login_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("http://127.0.0.1:8080", "https://hub.example/a@b", "HTTP://[::1]:80"):
        monkeypatch.setenv("HF_ENDPOINT", f"{address}/")
        assert hub_endpoint() == address
    for forget in (lambda: monkeypatch.setenv("HF_ENDPOINT", ""), lambda: monkeypatch.delenv("HF_ENDPOINT")):
        forget()
        assert hub_endpoint() == "https://huggingface.co"


def test_cards_link_to_the_own_name_of_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_HOST", raising=False)
    assert result_page("alice/copy") is None and space_hosts() == []
    monkeypatch.setenv("SPACE_HOST", " own.hf.space , other.example,, third.example ")
    assert space_hosts() == ["own.hf.space", "other.example", "third.example"]
    assert result_page("alice/copy") == "https://own.hf.space/?result=alice/copy"
