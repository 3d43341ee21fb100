"""Every bound has a reason, and is one."""

import ast
from itertools import pairwise
from pathlib import Path

import pytest

from sharding import job
from sharding.core import limits
from sharding.core.errors import SourceError
from tests.conftest import random_tensors, write_checkpoint


def test_every_bound_has_its_reason() -> None:
    body = ast.parse(Path(limits.__file__).read_text()).body
    bare = []
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
            bare.append(node.targets[0].id)
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                bare.clear()
        else:
            assert [name for name in bare if not name.startswith("_")] == []
            bare.clear()


@pytest.mark.parametrize("bound", ["MAX_FILES", "MAX_TENSORS"])
def test_what_is_beyond_all_bounds_is_refused(bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path / "in", {"model.safetensors": random_tensors()}, index=False)
    for room in ("sharding.storage.folder_source", "sharding.checkpoint.read"):
        monkeypatch.setattr(f"{room}.{bound}", 1, raising=False)
    with pytest.raises(SourceError) as refusal:
        job.inspect(str(folder))
    assert refusal.value.hint
