"""Re-sharding against the tutorials' way, which loads the model to save it again."""

import filecmp
import sys
from pathlib import Path

from checkpoints import build_llama, weight_bytes
from figures import anon_megabytes, print_figures, ratio, seconds
from processes import ROOT, run
from scratch import benchmark_arguments, scratch
from state import State
from turns import Contender, take_turns

_OURS = "ours"
_ACCELERATE = "from_pretrained(dtype=float16) + Accelerator.save_model"
_TRANSFORMERS = "from_pretrained + save_pretrained"
_PEERS = str(ROOT / "bench" / "peers.py")


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--cold", action="store_true", help="drop the page cache before every run (as root)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 3.2e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9))
        # Enough for a model in memory and its copy in the page cache.
        state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9), arguments.cold)
        commands = _commands(source, arguments.max_shard_size)
        costs = take_turns(
            [Contender(title, (*command, str(destination))) for title, command in commands.items()],
            arguments.pairs,
            state,
        )
        ours = costs[_OURS]
        figures = []
        for peer in (_ACCELERATE, _TRANSFORMERS):
            figures.append(ratio(f"time, {peer} to ours", seconds(costs[peer]), seconds(ours)))
            figures.append(
                ratio(f"peak anonymous memory, {peer} to ours", anon_megabytes(costs[peer]), anon_megabytes(ours))
            )
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes into shards of {arguments.max_shard_size}. "
            "Ours keeps every bit: no cast. The first peer casts to fp16, the second keeps bf16.",
            "Ours includes syncing to the disk, digests and verification; the peers do none of these.",
            _said_of_bytes(folder, commands),
            str(state),
        ]
        libraries = ("torch", "transformers", "accelerate", "safetensors", "huggingface_hub")
        print_figures("Against the tutorials' way", figures, costs, facts, folder, libraries)


def _commands(source: Path, max_shard_size: str) -> dict[str, tuple[str, ...]]:
    """Return the command of each, by title; the destination is to be added."""
    size = ("--max-shard-size", max_shard_size)
    return {
        _OURS: (sys.executable, "-m", "sharding", "shard", "--json", *size, str(source)),
        _ACCELERATE: (sys.executable, _PEERS, "accelerate", *size, str(source)),
        _TRANSFORMERS: (sys.executable, _PEERS, "transformers", *size, str(source)),
    }


def _said_of_bytes(folder: Path, commands: dict[str, tuple[str, ...]]) -> str:
    """Run the two that keep the dtype once more and compare what they wrote."""
    ours, theirs = folder / "destination", folder / "transformers"
    State((ours,)).restore()
    run((*commands[_OURS], str(ours)))
    run((*commands[_TRANSFORMERS], str(theirs)))
    names = sorted(path.name for path in theirs.glob("model*"))
    same, _, _ = filecmp.cmpfiles(ours, theirs, names, shallow=False)
    return f"{len(same)} of the {len(names)} files (shards and index) of save_pretrained are byte for byte in ours."


if __name__ == "__main__":
    main()
