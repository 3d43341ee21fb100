"""Start the command where there may not even be the memory to import it."""

import json
import sys

from sharding.core.errors import Fault, unforeseen


def main() -> None:
    """Run a command. Where there is not even the memory to begin, a sentence says so, and the status is 3."""
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
