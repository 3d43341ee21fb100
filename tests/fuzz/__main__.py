"""Fuzz one target: `python -m tests.fuzz TARGET [options of libFuzzer]`, from the root of the project.

It ends at the first input that crashes it, takes more than a second or more than 300 MB. What it finds new is kept
in `fuzz/TARGET`; the corpus in `tests/fuzz/corpus` is where it begins.
"""

import sys
from pathlib import Path

import atheris
import numpy  # noqa: F401  # otherwise imported by the first input that needs it, which would take more than a second

with atheris.instrument_imports(include=["sharding", "json"]):
    from tests.fuzz.targets import TARGETS, run

ROOT = Path(__file__).parent
LIMITS = ("-timeout=1", "-rss_limit_mb=300", "-max_len=65536", "-print_final_stats=1")


def main() -> None:
    name, *options = sys.argv[1:]
    found = Path("fuzz") / name
    found.mkdir(parents=True, exist_ok=True)
    folders = [str(found), str(ROOT / "corpus" / name)]
    prefix = f"-artifact_prefix={found.parent}/{name}-"
    atheris.Setup(["fuzz", *LIMITS, prefix, *options, *folders], lambda data: run(TARGETS[name], data) and None)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
