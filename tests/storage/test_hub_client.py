"""What goes wrong with a Hub is put into words."""

import pytest

from sharding import job
from sharding.core.errors import SourceError
from sharding.storage.hub import retry
from sharding.storage.hub.client import Hub

pytestmark = pytest.mark.usefixtures("nothing_stays_on_this_disk")


@pytest.mark.parametrize("error", [RuntimeError("xet"), PermissionError("old"), FileNotFoundError("gone")])
def test_what_hf_xet_raises_is_put_into_words(error: Exception) -> None:
    with pytest.raises(SourceError) as refusal, Hub("http://127.0.0.1:1", None).explained("a/b", SourceError):
        raise error
    assert "a/b" in refusal.value.message
    assert refusal.value.hint


def test_a_hub_that_is_not_there_is_said_to_be_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "NETWORK_WAIT_SECONDS", 0.001)
    with pytest.raises(SourceError, match="cannot be reached") as refusal:
        job.inspect("alice/model", endpoint="http://127.0.0.1:1")
    assert "network" in refusal.value.hint
