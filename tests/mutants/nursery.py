"""Run pytest again and again in a fork of this process, which has imported what takes long to import, and nothing of ours.

Reads the arguments of a run as a line of JSON; prints its process id, and its exit status at the end.
"""

import importlib
import json
import os
import sys

import pytest

HEAVY = ("numpy", "torch", "transformers.core_model_loading")
OUTPUT = "MUTANTS_OUTPUT"
"""The variable with the file that takes what a run prints."""


def main() -> None:
    for name in HEAVY:
        importlib.import_module(name)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os.setsid()
            output = os.open(os.environ[OUTPUT], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
                os.dup2(file, number)
            sys.exit(pytest.main(json.loads(line)))
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
