"""What verl's own merger makes of a run is what `--dtype bf16` makes of it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import ROOT, environment
from tests.folders import reshard, tensors
from tests.kinds import libraries


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["verl", "hsdp"])
def test_verls_merger_makes_the_same_weights(way: str, tmp_path: Path) -> None:
    """verl also rounds integer buffers, and saves no buffer that the class does not know."""
    zipfile.ZipFile(ROOT / "tests/checkpoint/ranks.zip").extractall(tmp_path)
    (tmp_path / way / "truth.safetensors").unlink()
    command = [sys.executable, "-m", "tests.kinds.verl_merger", str(libraries.packages())]
    command += [str(tmp_path / way), str(tmp_path / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=ROOT, timeout=100)
    assert done.returncode == 0, done.stderr
    reshard(tmp_path / way, tmp_path / "ours", dtype="bf16")
    ours, theirs = tensors(tmp_path / "ours"), load_file(tmp_path / "theirs/model.safetensors")
    assert len(theirs) > 10
    for name in theirs.keys() - {"steps"}:
        assert torch.equal(ours[name], theirs[name]), name
    assert ours["steps"].tolist() == [2**40 + 1, 3]
