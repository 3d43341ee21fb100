"""What the variables for certificates and proxies name is used, or said to be of no use; and what else ends a connection."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import close_session

from sharding import job
from sharding.core.errors import Refused, SourceError
from sharding.localhub import xet
from sharding.storage.hub import answers
from sharding.storage.hub import client as room
from sharding.storage.hub.client import Hub
from tests.commands import run_process
from tests.conftest import environment
from tests.hubs import SOURCE, TOKEN, shard
from tests.inhouse import InHouse, hub_in_house
from tests.proxies import behind_tls, certificates, proxy
from tests.storage.steps import answering, served_by_hand


@pytest.fixture(autouse=True)
def own_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The client of huggingface_hub reads the variables when it is made."""
    for name in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        for spelled in (name, name.lower()):
            monkeypatch.delenv(spelled, raising=False)
    close_session()
    yield
    monkeypatch.undo()
    close_session()


def refused(address: str, family: type[Exception] = Refused) -> tuple[str, str]:
    """The message and the hint of a question to the Hub at `address`."""
    with pytest.raises(family) as refusal:
        job.inspect(SOURCE, endpoint=address, token=TOKEN)
    return refusal.value.message, refusal.value.hint  # type: ignore[attr-defined]


@pytest.mark.parametrize("what", ["missing", "empty", "a folder", "no certificate"])
def test_certificates_that_cannot_be_read_are_named_with_their_variable(
    hub: InHouse, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cert.pem"
    if what == "a folder":
        place.mkdir()
    elif what != "missing":
        place.write_text("" if what == "empty" else "my certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(place))
    message, hint = refused(hub.address)
    why = {"missing": "No such file", "a folder": "Is a directory"}.get(what, "there is none in it")
    assert message.startswith(f"The certificates that SSL_CERT_FILE names ({place}) cannot be read: {why}")
    assert "unset it" in hint


def test_a_socks_proxy_without_its_library_is_named(hub: InHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret@127.0.0.1:1")
    message, hint = refused(hub.address)
    assert message == "ALL_PROXY names a SOCKS proxy, which needs the library socksio."
    assert "pip install socksio" in hint and "secret" not in message


@pytest.mark.parametrize("place", ["ftp://me:secret@127.0.0.1:1", "http://me:secret@127.0.0.1:port"])
def test_what_is_no_proxy_is_named(hub: InHouse, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", place)
    message, _ = refused(hub.address)
    assert message == "HTTP_PROXY does not name a proxy that can be used." and "secret" not in message


def test_the_certificate_of_a_company_is_missed_with_the_variable_for_it(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_tls(hub.address, tmp_path) as (address, trusted):
        message, hint = refused(address, SourceError)
        assert message == f"{address} cannot be reached: its certificate is not one that this machine trusts."
        assert "set SSL_CERT_FILE to" in hint
        trusted.rename(wrong := tmp_path / "wrong.pem")
        certificates(tmp_path)
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        close_session()
        assert f"SSL_CERT_FILE is set to {trusted}. Add" in refused(address, SourceError)[1]
        monkeypatch.setenv("SSL_CERT_FILE", str(wrong))
        close_session()
        assert job.inspect(SOURCE, endpoint=address, token=TOKEN).tensors


@pytest.mark.parametrize(
    ("of", "says"),
    [({"days": -1}, "certificate has expired"), ({"host": "10.0.0.1"}, "certificate is not valid for '127.0.0.1'")],
)
def test_a_certificate_that_is_out_of_date_or_of_another_host_is_told_from_one_that_is_not_trusted(
    hub: InHouse, tmp_path: Path, of: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with behind_tls(hub.address, tmp_path, **of) as (address, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        message, hint = refused(address, SourceError)
        assert message.startswith(f"{address} cannot be reached: ") and says in message
        assert "clock" in hint and "SSL_CERT_FILE" not in hint


def test_once_it_is_named_a_job_passes_to_the_end_and_so_does_what_goes_to_the_store(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hub").mkdir()
    with hub_in_house(tmp_path / "hub", xet_over_http=True) as hub, behind_tls(hub.address, tmp_path) as (place, cert):
        usual = xet._answer
        monkeypatch.setattr(xet, "_answer", lambda _, token, expires: usual(f"{place}/cas", token, expires))
        known = environment() | {"HF_ENDPOINT": place, "HF_TOKEN": TOKEN, "SSL_CERT_FILE": str(cert)}
        done = run_process("shard", folder, "alice/copy", "-s", "9kB", env=known)
        assert done.returncode == 0, done.stderr
        assert hub.asked("POST /cas/v1/shards") and hub.asked("POST /api/models/alice/copy/commit/main")


def test_a_certificate_that_is_not_trusted_is_asked_for_once(
    hub: InHouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To ask again changes nothing."""
    monkeypatch.setattr(answers, "wait_to_retry", lambda *_: pytest.fail("it is asked again"))
    monkeypatch.setattr(room, "wait_to_retry", answers.wait_to_retry)
    with behind_tls(hub.address, tmp_path) as (address, _):
        refused(address, SourceError)


@pytest.mark.parametrize(
    ("status", "says", "hint"),
    [
        ("407 Proxy Authentication Required", "the proxy asks for a login", "user:password@host:port"),
        ("403 Forbidden", "the proxy refuses it", "NO_PROXY"),
    ],
)
def test_a_proxy_that_refuses_a_host_is_told_from_the_hub(
    status: str, says: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served_by_hand(answering(b"", status=status)) as (place, asked):
        monkeypatch.setenv("HTTPS_PROXY", place)
        message, help = refused("https://hub.invalid", SourceError)
        assert message.startswith(f"https://hub.invalid cannot be reached: {says}") and hint in help
        assert "HTTPS_PROXY" in help and len(asked) == 1


def test_a_proxy_that_does_not_answer_is_named_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "NETWORK_TRIES", 1)
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.invalid:3128")
    message, hint = refused("https://hub.invalid", SourceError)
    assert "the proxy that HTTPS_PROXY names" in hint and "secret" not in message + hint


def test_a_job_passes_a_proxy_that_asks_for_a_login(hub: InHouse, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy(hub.address) as (place, asked):
        monkeypatch.setenv("http_proxy", f"http://me:secret@{place}")
        assert shard(hub, SOURCE, name).verification.identical
    assert len(asked) == len(hub.log) > 0 and all(line.endswith(" Basic bWU6c2VjcmV0") for line in asked)


@pytest.mark.parametrize("kind", [FileNotFoundError, PermissionError])
def test_errors_of_the_system_are_not_taken_for_those_of_the_store(hub: InHouse, kind: type[OSError]) -> None:
    """hf-xet raises the same classes, without a number."""
    with pytest.raises(SourceError, match="whose bytes it does not have|login is not valid"):
        Hub(hub.address, TOKEN).ask(SOURCE, SourceError, lambda: _raise(kind("no such thing")))
    with pytest.raises(kind):
        Hub(hub.address, TOKEN).ask(SOURCE, SourceError, lambda: _raise(kind(2, os.strerror(2), "/a")))


def _raise(error: Exception) -> None:
    raise error
