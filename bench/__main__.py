"""Run all benchmarks, one after another, and put what each finds into RESULTS.md: hours, on a machine left alone."""

import subprocess
import sys
import time
from pathlib import Path

_HERE = Path(__file__).parent
_COMMANDS = (
    "shard.py --pairs 20",
    "tutorial.py --pairs 3 --cold --chart bench/tutorial.svg",
    "cast.py",
    "dequantize.py",
    "ordinary.py",
    "lora.py",
    "archive.py",
    "gguf.py --hub",
    "plan.py",
    "hostile.py --pairs 1",
    "scale.py --chart bench/scale.svg",
    "consolidate.py",
    "verl.py --verl .venv/loaders/lib/python3.11/site-packages",
    "hub.py",
    "link.py",
    "link.py --megabytes-a-second 0",
    "pipeline.py",
    "latency.py",
    "estimate.py",
    "backpressure.py",
    "loading.py --pairs 3",
    "page.py --seconds 30",
    "arriving.py",
    "looking.py",
    "fleet.py",
)


def main() -> None:
    """Run them; one that fails is told, and the others go on."""
    failed = []
    for command in _COMMANDS:
        script, *options = command.split()
        started = time.monotonic()
        done = subprocess.run([sys.executable, str(_HERE / script), *options, "--note"], cwd=_HERE.parent)
        print(f"{command}: ended with {done.returncode} after {time.monotonic() - started:.0f} s\n", flush=True)
        if done.returncode:
            failed.append(command)
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
