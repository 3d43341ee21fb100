"""Run commands in forks of a process that has imported what they need: `python -m tests.forks MODULE…`.

Reads what to run as a line of JSON, `Order`; prints its process id, and its exit status at the end.
"""

import importlib
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass, field

UNREAD, CLOSED = "unread", "closed"


@dataclass(frozen=True)
class Order:
    """A function of a module to call, what it finds in `sys.argv` and the environment, where, and what takes its words.

    Without `error` both outputs go to one file. Instead of a file, UNREAD is a pipe that nobody reads, and CLOSED none.
    """

    entry: str
    arguments: list[str]
    output: str
    error: str = ""
    cwd: str = "."
    environment: dict[str, str] = field(default_factory=dict)

    def line(self) -> str:
        return json.dumps(asdict(self)) + "\n"


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _obey(Order(**json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _obey(order: Order) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(order.cwd)
    if order.environment:
        os.environ.clear()
        os.environ.update(order.environment)
    output = _opened(order.output)
    error = _opened(order.error) if order.error else output
    for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, error)):
        os.dup2(file, number)
    for number, place in ((1, order.output), (2, order.error)):
        if place == CLOSED:
            os.close(number)
    sys.argv = [order.entry, *order.arguments]
    module, _, function = order.entry.partition(":")
    sys.exit(getattr(importlib.import_module(module), function)())


def _opened(place: str) -> int:
    if place == UNREAD:
        reading, writing = os.pipe()
        os.close(reading)
        return writing
    return os.open(os.devnull if place == CLOSED else place, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)


if __name__ == "__main__":
    main()
