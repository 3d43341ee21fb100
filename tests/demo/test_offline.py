"""The page without a network ends as a whole: `make run` leaves nothing behind."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import environment


@pytest.mark.thorough
def test_whoever_ends_it_ends_its_hub_and_its_page(tmp_path: Path) -> None:
    # The page is one that only waits; the Hub is the real one.
    (tmp_path / "app.py").write_text("import time\nprint('page', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "sharding.demo.offline"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as program:
        assert program.stdout
        said = iter(program.stdout.readline, "")
        assert any("The Hub is http://127.0.0.1" in line for line in said)
        assert any(line == "page\n" for line in said)
        children = psutil.Process(program.pid).children(recursive=True)
        assert len(children) >= 2
        program.terminate()
        assert program.wait(60) == 0
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
