"""What child processes and clusters get of the environment, name by name, and what is left of it afterwards."""

import os
from collections.abc import Iterator

import pytest

from sharding.core.environment import (
    child_environment,
    child_variables,
    job_variables,
    prepare_for_ray,
    reading_variables,
    without_login,
)
from tests.conftest import ROOT

PLAIN = {
    **{"LANG": "C.UTF-8", "LC_ALL": "C", "TZ": "UTC", "SSL_CERT_FILE": "/etc/cert.pem", "SSL_CERT_DIR": "/etc/certs"},
    **{"HF_HUB_DISABLE_XET": "1", "HF_XET_LOG_DEST": "/var/log/xet", "PYTHONWARNINGS": "error"},
    **dict.fromkeys(("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", "DO_NOT_TRACK"), "1"),
}
FOLDERS = {"PATH": "/usr/bin", "LD_LIBRARY_PATH": "/opt/lib", "PYTHONPATH": "/opt/python"}
OF_LOADING = {"HOME": "/home/me", "TMPDIR": "/var/tmp", "OMP_NUM_THREADS": "2"}
OF_RAY = {"RAY_ADDRESS": "auto", "RAY_TMPDIR": "/var/ray"}
PROXIES = {
    **dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy"), "http://me:secret@proxy"),
    **dict.fromkeys(("NO_PROXY", "no_proxy"), "10.0.0.0/8,.corp"),
}
"""Whoever reaches a Hub needs them, although they may have a password."""
SECRETS = {
    **dict.fromkeys(("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "GITHUB_TOKEN"), "secret"),
    **dict.fromkeys(("OAUTH_CLIENT_SECRET", "OPENID_PROVIDER_URL", "AWS_SECRET_ACCESS_KEY", "MY_RAY_KEY"), "secret"),
    **{"HF_ENDPOINT": "http://hub", "HF_HUB_OFFLINE": "0", "CUDA_VISIBLE_DEVICES": "0,1", "SPACE_ID": "acme/space"},
    **{"HF_HUB_DISABLE_PROGRESS_BARS": "0", "LD_PRELOAD": "/opt/evil.so", "PYTHONSTARTUP": "/opt/evil.py"},
    **{"PYTHONHOME": "/opt/evil", "PYTHONINSPECT": "1", "SHARD_FOLDER": "/jobs"},
}
PACKAGE = {"PYTHONPATH": f"{ROOT}{os.pathsep}/opt/python"}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An environment with all that is inherited somewhere, and with secrets. Ray's settings go with it."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**PLAIN, **FOLDERS, **OF_LOADING, **OF_RAY, **PROXIES, **SECRETS})
    yield
    monkeypatch.undo()  # before the rest: it would put back what was set here
    os.environ.clear()
    os.environ.update(before)


def test_a_job_inherits_a_fixed_list_of_variables_and_no_other() -> None:
    assert child_environment() == {**PLAIN, **FOLDERS, **PACKAGE}
    assert job_variables() == {**PLAIN, **FOLDERS, **PACKAGE, **PROXIES}


def test_what_loads_a_model_has_no_login_no_network_and_no_gpu() -> None:
    nothing = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "CUDA_VISIBLE_DEVICES": ""}
    assert child_variables() == {**PLAIN, **FOLDERS, **PACKAGE, **OF_LOADING, **nothing}
    assert reading_variables() == {**PLAIN, **FOLDERS, **PACKAGE, **OF_LOADING, **PROXIES}


def test_what_is_empty_or_not_set_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "")
    monkeypatch.delenv("TZ")
    assert not {"LANG", "TZ"} & child_environment().keys()


@pytest.mark.parametrize("name", FOLDERS)
def test_of_a_list_of_folders_the_absolute_paths_are_inherited(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = [str(ROOT)] if name == "PYTHONPATH" else []
    for given, kept in (
        ("/one:.:./two:three::../four:~/five:/six/../seven:", ["/one", "/six/../seven"]),
        (".:bin", []),
        (":", []),
    ):
        monkeypatch.setenv(name, given)
        for variables in (child_environment(), child_variables(), reading_variables()):
            assert variables.get(name, "") == ":".join([*package, *kept]), given


def test_a_cluster_of_this_machine_gets_what_a_child_gets_and_what_is_of_ray_and_all_is_given_back() -> None:
    before = dict(os.environ)
    with without_login():
        assert dict(os.environ) == {**PLAIN, **FOLDERS, **PACKAGE, **OF_LOADING, **PROXIES, **OF_RAY}
        os.environ["LEFT_BEHIND"] = "1"
        del os.environ["TZ"]
    assert dict(os.environ) == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
def test_the_environment_is_given_back_after_an_error(error: type[BaseException]) -> None:
    before = dict(os.environ)
    with pytest.raises(error), without_login():
        raise error
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("address", "stays"),
    [("local", True), ("127.0.0.1:6379", True), ("[::1]:6379", True), ("auto", False), ("10.0.0.1:6379", False)],
)
def test_ray_is_quiet_and_tells_nobody_how_it_is_used(
    address: str, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare_for_ray(address)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    # What it says of workers, it leaves out where the pattern fits; this one fits all.
    assert (os.environ["RAY_DEDUP_LOGS"], os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"]) == ("1", ".")
    assert os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER") == ("0" if stays else None)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    prepare_for_ray(address)
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1", "who wants to tell it may"
