"""A job of the page reaches the Hub through the proxy of the page's machine, and shows nobody its password."""

import json
from pathlib import Path

import pytest

from sharding.desk.runner import Child
from tests.desk.actors import Stage
from tests.inhouse import InHouse
from tests.proxies import proxy


def test_a_job_passes_the_proxy_of_its_page(
    hub: InHouse, small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with proxy(hub.address) as (place, asked):
        monkeypatch.setenv("HTTP_PROXY", f"http://me:secret@{place}")
        child = Child(["plan", small, "--json"], tmp_path, "http://hub.invalid", "hf_alice")
        plan = json.loads(b"".join(child.lines()))
        assert child.wait() == 0 and plan["shards"], child.last_words
    assert asked and all(line.endswith("Basic bWU6c2VjcmV0") for line in asked)


def test_the_password_of_a_proxy_is_struck_out_of_all_that_a_job_says(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://me:se%40cret@proxy:1")
    actor = stage("it")
    child = Child(["shard", "it"], tmp_path, "http://hub", "hf_secret")
    actor.do('echo "$https_proxy, which is me:se@cret@proxy"; echo "at $https_proxy" >&2')
    actor.exit(3)
    assert list(child.lines()) == [b"http://[login]@proxy:1, which is [login]@proxy\n"]
    assert (child.wait(), child.last_words) == (3, "at http://[login]@proxy:1")
