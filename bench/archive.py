"""A `.bin` checkpoint into safetensors shards, against copying it and against loading and saving it."""

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT, Cost, run
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS = "ours"
_COPY = "cp + sync"
_TRANSFORMERS = "from_pretrained + save_pretrained"
_IMPORT = "python -c 'import torch'"
_AS_BIN = """
import sys, torch
from pathlib import Path
from safetensors.torch import load_file
folder = Path(sys.argv[1])
state = {name: tensor for path in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(path).items()}
if sys.argv[2] == "transposed":
    state = {name: tensor.t().contiguous().t() if tensor.ndim == 2 else tensor for name, tensor in state.items()}
torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=sys.argv[2] != "old")
for path in folder.glob("*.safetensors*"):
    path.unlink()
"""


def main() -> None:
    """Build a checkpoint, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument(
        "--form", choices=("zip", "old", "transposed"), default="zip", help="old: as before torch 1.6 (default: zip)"
    )
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 3.2e9)) as folder:
        source, destination = folder / "source", folder / "destination"
        build_llama(source, int(arguments.gigabytes * 1e9))
        size_bytes = weight_bytes(source)
        run((sys.executable, "-c", _AS_BIN, str(source), arguments.form))
        state = State((destination,), (source,), int(arguments.gigabytes * 3.2e9))
        costs = take_turns(_contenders(source, destination, arguments.max_shard_size), arguments.pairs, state)
        facts = [
            f"A random bf16 Llama of {size_bytes:,} bytes in one .bin file ({arguments.form}) into shards of "
            f"{arguments.max_shard_size}. Ours includes syncing, digests and verification; save_pretrained does not.",
            str(state),
        ]
        libraries = ("torch", "transformers", "safetensors")
        print_figures("Pickled weights", _figures(costs), costs, facts, folder, libraries)


def _contenders(source: Path, destination: Path, max_shard_size: str) -> list[Contender]:
    size = ("--max-shard-size", max_shard_size)
    ours = (sys.executable, "-m", "sharding", "shard", "--json", *size, str(source), str(destination))
    copy = ("/bin/sh", "-c", 'cp -r "$1" "$2" && sync "$2"/* "$2"', "sh", str(source), str(destination))
    peers = str(ROOT / "bench/harness/peers.py")
    transformers = (sys.executable, peers, "transformers", *size, str(source), str(destination))
    return [
        Contender(_OURS, ours),
        Contender(_COPY, copy),
        Contender(_TRANSFORMERS, transformers),
        Contender(_IMPORT, (sys.executable, "-c", "import torch, time; time.sleep(0.2)")),
    ]


def _figures(costs: dict[str, list[Cost]]) -> list[Figure]:
    ours = costs[_OURS]
    return [
        ratio(f"time, ours to {_COPY}", seconds(ours), seconds(costs[_COPY])),
        ratio(f"time, {_TRANSFORMERS} to ours", seconds(costs[_TRANSFORMERS]), seconds(ours), "at least 2"),
        ratio(
            f"peak anonymous memory, {_TRANSFORMERS} to ours",
            anon_megabytes(costs[_TRANSFORMERS]),
            anon_megabytes(ours),
        ),
        Figure("peak anonymous memory, ours", anon_megabytes(ours), "{:.1f} MB"),
        Figure(
            "the same beyond an interpreter with torch imported",
            _beyond(anon_megabytes(ours), anon_megabytes(costs[_IMPORT])),
            "{:.1f} MB",
            "at most 100 MB",
        ),
    ]


def _beyond(ours: Sequence[float], floor: Sequence[float]) -> tuple[float, ...]:
    return tuple(one - other for one, other in zip(ours, floor, strict=True))


if __name__ == "__main__":
    main()
