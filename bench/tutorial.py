"""Re-sharding against the ways that load the model to save it again, with a cast and without."""

import argparse
import filecmp
import sys
from pathlib import Path
from statistics import median

from harness.bars import Panel, draw_bars
from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT, Cost, run
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_PEERS = {
    "save_pretrained": "transformers",
    "Accelerator.save_model": "accelerate",
    "save_torch_state_dict": "hub",
}
_CASTS = {"keep": "", "fp16": ", cast to fp16"}


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before every run (as root)")
    parser.add_argument("--chart", type=Path, help="draw time and memory of all that do not cast into this SVG")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 3.2e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9))
        # Enough for a model in memory and its copy in the page cache.
        state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9), arguments.cold)
        commands = {
            _title(name, dtype): command
            for dtype in _CASTS
            for name, command in _commands(source, arguments.max_shard_size, dtype).items()
        }
        costs = take_turns(
            [Contender(title, (*command, str(destination))) for title, command in commands.items()],
            arguments.pairs,
            state,
        )
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes into shards of {arguments.max_shard_size}; "
            "the peers load it with from_pretrained first.",
            "Ours includes syncing to the disk, digests and verification; the peers do none of these.",
            "Each run is a process in a memory cgroup of its own, where one can be made.",
            _said_of_bytes(folder, commands),
            str(state),
        ]
        libraries = ("torch", "transformers", "accelerate", "safetensors", "huggingface_hub")
        print_figures("Against loading and saving", _figures(costs), costs, facts, folder, libraries)
        if arguments.chart:
            arguments.chart.write_text(_chart(costs, arguments))


def _title(name: str, dtype: str) -> str:
    return f"{name}{_CASTS[dtype]}"


def _commands(source: Path, max_shard_size: str, dtype: str) -> dict[str, tuple[str, ...]]:
    """Return the command of each, by name; the destination is to be added."""
    size = ("--max-shard-size", max_shard_size, "--dtype", dtype)
    peers = str(ROOT / "bench/harness/peers.py")
    return {
        "ours": (sys.executable, "-m", "sharding", "shard", "--json", *size, str(source)),
        **{name: (sys.executable, peers, what, *size, str(source)) for name, what in _PEERS.items()},
    }


def _figures(costs: dict[str, list[Cost]]) -> list[Figure]:
    figures = []
    for dtype in _CASTS:
        ours = costs[_title("ours", dtype)]
        for peer in _PEERS:
            theirs = costs[_title(peer, dtype)]
            figures.append(ratio(f"time, {_title(peer, dtype)} to ours", seconds(theirs), seconds(ours)))
            memory = anon_megabytes(theirs), anon_megabytes(ours)
            figures.append(ratio(f"peak anonymous memory, {_title(peer, dtype)} to ours", *memory))
    return figures


def _chart(costs: dict[str, list[Cost]], arguments: argparse.Namespace) -> str:
    names = {"ours": "shard-my-repo", **{peer: peer for peer in _PEERS}}
    state = "page cache empty" if arguments.cold else "source in the page cache"
    return draw_bars(
        f"{arguments.gigabytes:g} GB into shards of {arguments.max_shard_size}, {state}",
        [
            Panel("seconds", [(name, median(seconds(costs[title]))) for title, name in names.items()], "{:.1f} s"),
            Panel(
                "peak anonymous memory",
                [(name, median(anon_megabytes(costs[title]))) for title, name in names.items()],
                "{:,.0f} MB",
            ),
        ],
    )


def _said_of_bytes(folder: Path, commands: dict[str, tuple[str, ...]]) -> str:
    """Run the two that write the same once more and compare what they wrote."""
    ours, theirs = folder / "destination", folder / "transformers"
    State((ours,)).restore()
    run((*commands["ours"], str(ours)))
    run((*commands["save_pretrained"], str(theirs)))
    names = sorted(path.name for path in theirs.glob("model*"))
    same, _, _ = filecmp.cmpfiles(ours, theirs, names, shallow=False)
    return f"{len(same)} of the {len(names)} files (shards and index) of save_pretrained are byte for byte in ours."


if __name__ == "__main__":
    main()
