"""Every bound has a reason, and is one."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from sharding import job
from sharding.core import limits
from sharding.core.errors import SourceError
from tests.conftest import random_tensors, write_checkpoint


def test_every_bound_has_its_reason() -> None:
    lines = Path(limits.__file__).read_text().splitlines()
    bounds = [(before, line) for before, line in pairwise(lines) if re.match(r"[A-Z_]+ = ", line)]
    assert len(bounds) > 50 and all("  # " in line or before.startswith("# ") for before, line in bounds)


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TENSORS"])
def test_what_is_beyond_all_bounds_is_refused(bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    for room in ("sharding.storage.folder_source", "sharding.checkpoint.read"):
        monkeypatch.setattr(f"{room}.{bound}", 1, raising=False)
    with pytest.raises(SourceError) as refusal:
        job.inspect(str(folder))
    assert refusal.value.hint
