"""Import torch and transformers once, and fork for each process that is handed over: `python server.py LISTENER PARENT`.

Ends when the process PARENT has ended. Imports nothing of this package: every fork does that anew.
"""

import atexit
import builtins
import fcntl
import gc
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

LIBRARIES = (
    "accelerate",
    "torch",
    "transformers.core_model_loading",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "safetensors.torch",
)


def main() -> None:
    listener, parent = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    for name in LIBRARIES:
        __import__(name)
    threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
    assert threads == 1, "a fork of a process with threads may hang"
    gc.freeze()  # no fork looks through all of this for garbage, which would copy it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who keep watch
    while _is_alive(parent):
        if not select.select([listener], [], [], 1)[0]:
            continue
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _keep_watch(connection)
        connection.close()


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError:
        return False
    return True


def _keep_watch(connection: socket.socket) -> None:
    """Fork, and tell how the fork ends; kill it where the process that asked is gone. Never returns."""
    _, files, _, _ = socket.recv_fds(connection, 1, 100)
    order = json.loads(connection.makefile().readline())
    reading, writing = os.pipe()
    fork = os.fork()
    if fork == 0:
        os.close(reading)
        connection.close()
        _aside(writing)  # it closes when this process ends
        _take_over(order, files)
        _run(order["words"])
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # to take all modules apart would take longer than most of this work
    os.close(writing)
    for file in files:
        os.close(file)
    ready, _, _ = select.select([reading, connection], [], [])
    if reading not in ready:
        os.kill(fork, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
    with suppress(OSError):  # nobody waits for it
        connection.sendall(b"%d\n" % status)
    os._exit(0)


def _take_over(order: dict[str, Any], files: list[int]) -> None:
    """Become what the other process was started as: its files, folder, environment, path and limits."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for file, number in zip([_aside(file) for file in files], order["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:] = order["path"]
    for kind, limits in order["limits"]:
        resource.setrlimit(kind, tuple(limits))


def _aside(file: int) -> int:
    """Return another number for an open file, where none of the other process stands."""
    aside = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 500)
    os.close(file)
    return aside


def _run(words: list[str]) -> None:
    how, what, *more = words
    sys.argv = [what if how == "-m" else "-c", *more]
    if how == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        exec(compile(what, "<string>", "exec"), {"__name__": "__main__", "__builtins__": builtins})


if __name__ == "__main__":
    main()
