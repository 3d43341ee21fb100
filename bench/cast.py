"""Casting while streaming, fp32 to fp16, against copying the same bytes and against loading, casting and saving."""

import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours, fp32 to fp16"
_ALONE = "ours, fp32 to fp16, no class asked"
_KEPT = "ours, no cast"
_COPY = "cp + sync"
_LOAD = "from_pretrained + .to(float16) + save_pretrained"
_TORCH = "import torch"


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 3.2e9)) as folder:
        source, destination, unnamed = folder / "source", folder / "destination", folder / "unnamed"
        build_llama(source, int(arguments.gigabytes * 1e9), "F32")
        unnamed.mkdir()
        for path in source.glob("model*"):
            (unnamed / path.name).hardlink_to(path)
        state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9))
        costs = take_turns(_contenders(source, unnamed, destination, arguments.max_shard_size), arguments.pairs, state)
        ours, bare = costs[_OURS], anon_megabytes(costs[_TORCH])
        above = tuple(one - other for one, other in zip(anon_megabytes(ours), bare, strict=True))
        figures = [
            ratio(f"time, ours to {_COPY}", seconds(ours), seconds(costs[_COPY])),
            ratio(f"time, {_LOAD} to ours", seconds(costs[_LOAD]), seconds(ours), "at least 1.5"),
            ratio(f"peak anonymous memory, {_LOAD} to ours", anon_megabytes(costs[_LOAD]), anon_megabytes(ours)),
            Figure(f"peak anonymous memory of all processes above {_TORCH}", above, "{:.1f} MB"),
        ]
        moving = tuple(one - other for one, other in zip(anon_megabytes(costs[_ALONE]), bare, strict=True))
        figures.append(Figure(f"the same where no class is asked, above {_TORCH}", moving, "{:.1f} MB", "at most 100"))
        facts = [
            f"A random fp32 Llama of {weight_bytes(source):,} bytes into fp16 shards of {arguments.max_shard_size}, "
            "digests, sync and verification included.",
            "Before a byte moves, a process of its own asks transformers what the class keeps in fp32, and ends: its "
            "memory counts above. Without a config.json there is nothing to ask, which shows what moving bytes takes.",
            str(state),
        ]
        print_figures("Casting", figures, costs, facts, folder, ("torch", "transformers", "safetensors"))


def _contenders(source: Path, unnamed: Path, destination: Path, max_shard_size: str) -> list[Contender]:
    ours = (sys.executable, "-m", "sharding", "shard", str(source), str(destination), "--json", "-s", max_shard_size)
    peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "cast", str(source), str(destination))
    copy = ("/bin/sh", "-c", 'cp -r "$1" "$2" && sync "$2"/* "$2"', "sh", str(source), str(destination))
    return [
        Contender(_OURS, (*ours, "--dtype", "fp16")),
        Contender(_ALONE, (*(str(unnamed) if word == str(source) else word for word in ours), "--dtype", "fp16")),
        Contender(_KEPT, ours),
        Contender(_COPY, copy),
        Contender(_LOAD, (*peer, "--max-shard-size", max_shard_size)),
        Contender(_TORCH, (sys.executable, "-c", "import time, torch; time.sleep(0.3)")),
    ]


if __name__ == "__main__":
    main()
