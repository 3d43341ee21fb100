"""Start the command where there may not even be the memory to import it."""

import json
import sys
from io import TextIOWrapper

from sharding.core.errors import Fault, unforeseen


def main() -> None:
    """Run a command. Where there is not even the memory to begin, a sentence says so, and the status is 3.

    What the encoding of an output cannot hold is written as an escape.
    """
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, TextIOWrapper):  # None where it is closed
            output.reconfigure(errors="backslashreplace")
    try:
        from sharding.cli import commands

        commands.main()
    except Exception as error:
        lack = unforeseen(error)
        if isinstance(lack, Fault):
            raise
        print(lack.message, lack.hint, sep="\n", file=sys.stderr)
        if {"--json", "--events"} & set(sys.argv):
            print(json.dumps({"error": {"kind": type(lack).__name__, "message": lack.message, "hint": lack.hint}}))
        sys.exit(lack.exit_status)
