"""What a command may read, remove and show with the login of this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sharding import job
from sharding.core.events import ShardFinished
from tests.commands import invoke
from tests.conftest import in_two_files, write_checkpoint
from tests.hubs import TOKEN, exists, push
from tests.inhouse import InHouse, hub_in_house


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InHouse]:
    """A Hub with a public and a private model, which is without a configuration."""
    folder = write_checkpoint(tmp_path_factory.mktemp("in") / "in", {"model.safetensors": {"w": np.zeros(9)}}, False)
    with hub_in_house(tmp_path_factory.mktemp("hub")) as hub:
        push(hub, folder, "alice/open")
        (folder / "config.json").unlink()
        push(hub, folder, "alice/hidden", private=True)
        yield hub


@pytest.fixture
def signed_in(hub: InHouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "alice/hidden"],
        ["plan", "alice/hidden"],
        ["shard", "alice/hidden", "./out"],
        ["verify", "alice/hidden", "alice/hidden"],
        ["devices", "alice/hidden", "--budget", "cpu=1GB"],
        ["compare", "alice/hidden", "alice/none"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_reads_what_the_login_may_read(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Of the model two commands say what they get to beyond opening it.
    beyond = {"devices": "has no config.json", "compare": "alice/none"}.get(words[0], "")
    seen = invoke(*words)
    assert seen.exit_code == (3 if beyond else 0) and beyond in seen.stderr, seen.stderr
    monkeypatch.delenv("HF_TOKEN")
    hidden = invoke(*words)
    assert hidden.exit_code == 3 and "alice/hidden" in hidden.stderr
    assert not beyond or beyond not in hidden.stderr


@pytest.mark.usefixtures("signed_in")
def test_discard_may_do_what_the_login_may(hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = in_two_files(tmp_path / "in")
    events = job.shard(str(folder), "alice/staged", "60kB", endpoint=hub.address, token=TOKEN)
    next(event for event in events if isinstance(event, ShardFinished))
    events.close()
    for token in ("hf_bob", ""):
        monkeypatch.setenv("HF_TOKEN", token)
        assert invoke("discard", "alice/staged").exit_code == 3 and exists(hub, "alice/staged")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = invoke("discard", "alice/staged", "--json")
    assert json.loads(done.stdout) == {"found": True, "repo_deleted": True, "remark": ""}
    assert not exists(hub, "alice/staged")


@pytest.mark.usefixtures("signed_in")
@pytest.mark.parametrize(
    ("source", "options", "is_private"),
    [
        ("alice/open", [], False),
        ("alice/open", ["--private"], True),
        ("alice/hidden", ["--public"], None),
        ("alice/hidden", ["--public", "--yes"], False),
        ("FOLDER", [], True),
        ("FOLDER", ["--public"], False),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(given) if isinstance(given, list) else None,
)
def test_a_new_repo_is_as_its_source_or_as_it_is_told(
    hub: InHouse, tmp_path: Path, source: str, options: list[str], is_private: bool | None
) -> None:
    folder = str(write_checkpoint(tmp_path / "in", {"model.safetensors": {"w": np.zeros(9)}}, index=False))
    done = invoke("shard", source.replace("FOLDER", folder), "alice/new", *options)
    try:
        assert (done.exit_code == 3) == (is_private is None), done.output
        if is_private is None:
            assert "alice/hidden is private or gated" in done.stderr and "--yes" in done.stderr
            assert not exists(hub, "alice/new")
        else:
            assert hub.api().model_info("alice/new").private is is_private
    finally:
        hub.api().delete_repo("alice/new", missing_ok=True)
