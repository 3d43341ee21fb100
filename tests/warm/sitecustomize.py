"""Have a server do what this process was started for, if that needs torch and a server is there.

This process waits, and ends as the other does. If it is killed, the other is killed too.
"""

import os
import sys

MODULES = (
    "sharding.model_class.meta_model",
    "sharding.loading.probe",
    "sharding.loading.probe.child",
    "sharding.loading.classic_child",
    "sharding.demo.samples",
    "tests.scenarios.trainer",
    "tests.scenarios.pp_worker",
)
LIBRARIES = (
    "import torch",
    "from torch",
    "import transformers",
    "from transformers",
    "import meta_model",
    "spawn_main",
)


def work() -> list[str] | None:
    """Return `-m` and a module, or `-c` and code, then its arguments; None if this process is to do it itself."""
    words = sys.orig_argv[1:]
    while words and words[0] not in ("-m", "-c") and words[0].startswith("-"):
        words = words[1:]
    if len(words) < 2:
        return None
    heavy = words[1] in MODULES if words[0] == "-m" else any(name in words[1] for name in LIBRARIES)
    return words if heavy else None


def hand_over(words: list[str]) -> None:
    """Have the server do it, and end as it ends. Returns where there is none."""
    import json
    import resource
    import socket

    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.path.join(os.path.dirname(__file__), "socket"))
        except OSError:
            return
        files = [number for number in map(int, os.listdir("/dev/fd")) if _is_inherited(number)]
        kinds = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
        limits = [(kind, resource.getrlimit(kind)) for kind in kinds]
        order = {
            "words": words,
            "path": sys.path,
            "cwd": os.getcwd(),
            "environment": dict(os.environ),
            "limits": limits,
            "files": files,
        }
        socket.send_fds(server, [b"\0"], files)
        server.sendall(json.dumps(order).encode() + b"\n")
        answer = server.makefile().readline()
    status = int(answer or "1")
    if status < 0:
        import signal

        if -status not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def _is_inherited(number: int) -> bool:
    try:
        return os.get_inheritable(number)
    except OSError:  # that of the list itself
        return False


if __name__ == "sitecustomize" and (given := work()):
    hand_over(given)
