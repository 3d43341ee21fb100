"""What processes and workers of a job inherit: no login, nothing that could be one, and no folder of wherever they are."""

import os
from collections.abc import Callable, Mapping

import pytest

from sharding.core.environment import child_environment, child_variables, reading_variables, without_login
from tests.conftest import ROOT

SECRETS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")
LISTS = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
PLAIN = ("LANG", "LC_ALL", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HUB_DISABLE_XET", "HF_XET_LOG_DEST")
OF_LOADING = ("HOME", "TMPDIR", "OMP_NUM_THREADS")
CODE = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT")


def of_workers() -> Mapping[str, str]:
    with without_login():
        return dict(os.environ)


CHILDREN: dict[Callable[[], Mapping[str, str]], set[str]] = {
    child_environment: set(),
    reading_variables: {*OF_LOADING},
    child_variables: {*OF_LOADING, "HF_HUB_OFFLINE", "HF_HUB_DISABLE_PROGRESS_BARS", "CUDA_VISIBLE_DEVICES"},
    of_workers: {*OF_LOADING, "RAY_ADDRESS"},
}


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with all that a child may have, and secrets, and lists of folders that lead anywhere."""
    for name in list(os.environ):
        monkeypatch.delenv(name)
    given = {name: f"hf_secret {name}" for name in SECRETS} | dict.fromkeys(CODE, "/planted")
    given |= {
        name: os.pathsep.join(["", ".", "here", f"/{name}/one", "", "../up", f"/{name}/two", ""]) for name in LISTS
    }
    given |= {name: f"/of/{name}" for name in (*PLAIN, *OF_LOADING)} | {"PYTHONWARNINGS": "default"}
    given |= {"RAY_ADDRESS": "10.0.0.1:6379", "SHARD_FOLDER": "/jobs"}
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    return given


@pytest.mark.parametrize("inherit", CHILDREN, ids=lambda inherit: inherit.__name__)
def test_a_child_inherits_what_it_needs_and_nothing_else(
    inherit: Callable[[], Mapping[str, str]], crowded: dict[str, str]
) -> None:
    inherited = inherit()
    assert set(inherited) - {"CUDA_VISIBLE_DEVICES"} == (
        {*LISTS, *PLAIN, "PYTHONWARNINGS", *CHILDREN[inherit]} - {"CUDA_VISIBLE_DEVICES"}
    )
    assert not any("secret" in text for text in inherited.values())
    for name in (*PLAIN, *CHILDREN[inherit] & crowded.keys()):
        assert inherited[name] == crowded[name]


@pytest.mark.parametrize("inherit", CHILDREN, ids=lambda inherit: inherit.__name__)
def test_lists_of_folders_keep_their_absolute_paths_in_order_and_no_others(
    inherit: Callable[[], Mapping[str, str]], crowded: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LISTS:
        own = [str(ROOT)] if name == "PYTHONPATH" else []
        assert inherit()[name].split(os.pathsep) == [*own, f"/{name}/one", f"/{name}/two"]
    for name in LISTS:
        monkeypatch.setenv(name, os.pathsep.join(["", ".", "here"]))
    assert {name for name in LISTS if name in inherit()} == {"PYTHONPATH"}
    assert inherit()["PYTHONPATH"] == str(ROOT)


def test_the_login_is_back_once_the_workers_are_started(crowded: dict[str, str]) -> None:
    before = dict(os.environ)
    assert before.items() >= crowded.items()
    with without_login():
        os.environ["LEFT_BEHIND"] = "1"
    assert dict(os.environ) == before
    with pytest.raises(KeyError), without_login():
        raise KeyError
    assert dict(os.environ) == before
