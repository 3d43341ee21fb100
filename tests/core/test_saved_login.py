"""A login that is saved and cannot be read is one sentence that says where it is, whatever is wrong with it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sharding.core.environment import hub_token
from sharding.core.errors import Refused

TOKEN, RENEWAL = "token", "stored_tokens"
LOGINS: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a link in a circle": lambda path: path.symlink_to(path.name),
    "bytes": lambda path: path.write_bytes(bytes(range(128, 256))),
    "a gigabyte": lambda path: (path.touch(), os.truncate(path, 10**9)),
    "a pipe": lambda path: os.mkfifo(path),
    "below a file": lambda path: path.parent.rmdir() or path.parent.write_text(""),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where logins are saved: nothing is there."""
    place = tmp_path / "login"
    place.mkdir()
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(place / TOKEN))
    monkeypatch.setattr("huggingface_hub.constants.HF_STORED_TOKENS_PATH", str(place / RENEWAL))
    return place


@pytest.mark.parametrize("kind", LOGINS)
def test_it_is_a_sentence_with_a_hint(kind: str, place: Path) -> None:
    LOGINS[kind](place / TOKEN)
    for blank in ("", " "):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HF_TOKEN", blank)
            with pytest.raises(Refused) as refusal:
                hub_token()
        assert refusal.value.message.startswith(f"The saved login cannot be read from {place / TOKEN}: ")
        assert (refusal.value.hint, refusal.value.exit_status) == ("Run `hf auth login` again, or set HF_TOKEN.", 3)
        assert str(refusal.value.message).count("\n") == 0


@pytest.mark.parametrize("kind", ["a gigabyte", "a pipe"])
def test_what_renews_it_is_named_where_that_cannot_be_read(kind: str, place: Path) -> None:
    (place / TOKEN).write_text("hf_a")
    LOGINS[kind](place / RENEWAL)
    with pytest.raises(Refused, match=f"The saved login cannot be read from {place / RENEWAL}: "):
        hub_token()


def test_whatever_the_library_of_the_hub_raises_is_that_sentence(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / TOKEN).write_text("hf_a")
    assert hub_token() == "hf_a"
    for error in (ValueError("hf_a"), KeyError("hf_a"), RuntimeError("hf_a"), PermissionError(13, "Permission denied")):

        def broken(error: Exception = error) -> str:
            raise error

        monkeypatch.setattr("huggingface_hub.get_token", broken)
        with pytest.raises(Refused, match="The saved login cannot be read from") as refusal:
            hub_token()
        assert "hf_a" not in refusal.value.message


def test_a_login_in_the_environment_counts_before_one_that_is_saved(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hub_token() is None
    LOGINS["a pipe"](place / TOKEN)
    monkeypatch.setenv("HF_TOKEN", "hf_b")
    assert hub_token() == "hf_b"
