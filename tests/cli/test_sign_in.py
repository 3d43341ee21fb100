"""What a command may read, remove and show with the login of this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sharding import job
from tests.commands import invoke
from tests.conftest import in_two_files, write_checkpoint
from tests.folders import until_shard
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


@pytest.fixture(autouse=True)
def signed_in(hub: InHouse, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("typed", "beyond"),
    [
        *((f"{typed} alice/hidden", "") for typed in ("inspect", "plan", "verify alice/hidden")),
        ("shard alice/hidden ./out", ""),
        # Of the model two commands say what they get to beyond opening it.
        ("devices alice/hidden --budget cpu=1GB", "has no config.json"),
        ("compare alice/hidden alice/none", "alice/none"),
    ],
)
def test_a_command_reads_what_the_login_may_read(typed: str, beyond: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = invoke(*typed.split())
    assert seen.exit_code == (3 if beyond else 0) and beyond in seen.stderr, seen.stderr
    monkeypatch.delenv("HF_TOKEN")
    hidden = invoke(*typed.split())
    assert hidden.exit_code == 3 and "alice/hidden" in hidden.stderr
    assert not beyond or beyond not in hidden.stderr


def test_discard_may_do_what_the_login_may(hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = in_two_files(tmp_path / "in")
    until_shard(job.shard(str(folder), "alice/staged", "60kB", endpoint=hub.address, token=TOKEN), stop=True)
    for token in ("hf_bob", ""):
        monkeypatch.setenv("HF_TOKEN", token)
        assert invoke("discard", "alice/staged").exit_code == 3 and exists(hub, "alice/staged")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done = invoke("discard", "alice/staged", "--json")
    assert json.loads(done.stdout) == {"found": True, "repo_deleted": True, "remark": ""}
    assert not exists(hub, "alice/staged")


@pytest.mark.parametrize(
    ("typed", "is_private"),
    [
        ("alice/open alice/new", False),
        ("alice/open alice/new --private", True),
        ("alice/hidden alice/new --public", None),
        ("alice/hidden alice/new --public --yes", False),
        ("./in alice/new", True),
        ("./in alice/new --public", False),
    ],
)
def test_a_new_repo_is_as_its_source_or_as_it_is_told(hub: InHouse, typed: str, is_private: bool | None) -> None:
    write_checkpoint(Path("in"), {"model.safetensors": {"w": np.zeros(9)}}, index=False)
    done = invoke("shard", *typed.split())
    assert done.exit_code == (3 if is_private is None else 0), done.output
    if is_private is None:
        assert "alice/hidden is private or gated" in done.stderr and "--yes" in done.stderr
        assert not exists(hub, "alice/new")
    else:
        assert hub.api().model_info("alice/new").private is is_private
        hub.api().delete_repo("alice/new")
