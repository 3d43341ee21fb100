"""What a stranger's config.json describes is asked of transformers within bounds of time and memory."""

from pathlib import Path

import psutil
import pytest

from sharding import job
from sharding.core.errors import ModelRefused
from sharding.core.options import Options
from tests import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.save("llama", tmp_path_factory.mktemp("asked") / "llama", "30kB")


@pytest.mark.own_process
def test_who_asks_says_how_long_it_may_take_and_the_process_is_gone_then(folder: Path) -> None:
    before = psutil.Process().children()  # a browser of other tests may be there
    with pytest.raises(ModelRefused, match="too long"):
        job.hints_for(job.inspect(str(folder)), Options(dtype="bf16"), limit_seconds=0.01)
    with pytest.raises(ModelRefused, match="too long"):
        job.devices(str(folder), "cpu=1GB", limit_seconds=0.01)
    assert psutil.Process().children() == before
