"""Processes that need torch and transformers start within milliseconds: forks of one that has imported them.

The folder of a running server is put first on PYTHONPATH. There `sitecustomize`, which Python runs first of all, hands
over a process that would import these libraries, with its words, its environment, its limits and its open files.
"""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

_HERE = Path(__file__).parent
_QUIET = {"PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def start(folder: Path, parent: int, environment: Mapping[str, str]) -> Path:
    """Start a server that ends with the process `parent`, if `folder` has none; return what goes onto PYTHONPATH."""
    place = Path(tempfile.mkdtemp(dir=folder))
    (place / "sitecustomize.py").symlink_to(_HERE / "sitecustomize.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place / "socket"))
        listener.listen(128)  # who comes before torch is imported waits
        try:
            place.rename(folder / "warm")
        except OSError:  # another process of this run has started one
            shutil.rmtree(place)
            return folder / "warm"
        listener.set_inheritable(True)
        outputs = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
        log = str(folder / "warm" / "log")
        outputs += [(os.POSIX_SPAWN_OPEN, n, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for n in (1, 2)]
        command = [sys.executable, str(_HERE / "server.py"), str(listener.fileno()), str(parent)]
        env = {**environment, **_QUIET, **_ONE_THREAD}
        os.posix_spawn(sys.executable, command, env, file_actions=outputs, setsid=True)
    return folder / "warm"
