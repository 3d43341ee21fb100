"""Load one checkpoint and print the cost as one JSON object."""

import argparse
import json
import sys
from pathlib import Path

from sharding.loading.probe.child import METHODS
from sharding.loading.probe.watch import watch


def main() -> None:
    """Probe one folder. The exit status is 0 for every outcome, because a load that fails is an answer too."""
    parser = argparse.ArgumentParser(prog="python -m sharding.loading.probe", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--method", choices=METHODS, default="from_pretrained")
    parser.add_argument("--dtype", choices=["float32", "float16", "bfloat16"], help="default: as it is stored")
    parser.add_argument("--no-mmap", action="store_true", help="switch memory mapping off")
    parser.add_argument("--max-memory", type=int, metavar="BYTES", help="offload: limit for weights kept in memory")
    parser.add_argument("--memory-limit", type=int, metavar="BYTES", help="limit for the whole process")
    parser.add_argument("--limit-by", choices=["cgroup", "rlimit"], help="default: a cgroup if one can be created")
    parser.add_argument("--cold", action="store_true", help="drop the weights from the page cache first")
    parser.add_argument("--tokens", type=int, default=4, help="how many tokens to generate (default: 4)")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS")
    arguments = parser.parse_args()
    json.dump(watch(arguments), sys.stdout)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
