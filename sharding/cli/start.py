"""Start a command, even without enough memory to import it or a working output."""

import json
import sys
from contextlib import suppress

from sharding.cli.outlet import open_outlets
from sharding.core.errors import Fault, ShardingError, unforeseen


def main() -> None:
    """Run a command. Exit with status 3 if memory is too small to start, or if the output cannot be written."""
    open_outlets()
    try:
        try:
            from sharding.cli import commands

            commands.main()
        finally:
            sys.stdout.flush()
    except Exception as error:
        lack = error if isinstance(error, ShardingError) else unforeseen(error)
        if isinstance(lack, Fault):
            raise
        print(lack.message, lack.hint, sep="\n", file=sys.stderr)
        if {"--json", "--events"} & set(sys.argv):
            with suppress(ShardingError):
                print(json.dumps({"error": lack.document()}), flush=True)
        sys.exit(lack.exit_status)
