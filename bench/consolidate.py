"""Torch's own way from rank-sharded files to ordinary ones, beside ours over ordinary files of the same tensors."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS, _TORCH = "ours", "consolidate_safetensors_files"
_RANKS = 2
_SAVE = """
import json, sys
from pathlib import Path
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
place, shapes = Path(sys.argv[1]), json.loads(sys.argv[2])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
torch.manual_seed(0)
whole = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
cut = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in whole.items()}
dcp.save(cut, storage_writer=dcp.HuggingFaceStorageWriter(str(place / "ranks"), save_distributed=True))
if dist.get_rank() == 0:
    (place / "whole").mkdir()
    save_file(whole, place / "whole/model.safetensors", metadata={"format": "pt"})
dist.destroy_process_group()
"""


def main() -> None:
    """Save both kinds of both checkpoints, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of either checkpoint (default: 1000)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, arguments.megabytes * 6_000_000) as folder:
        kinds = {"layers of 8 MB": _layers(arguments.megabytes), "one large embedding": _large(arguments.megabytes)}
        for kind, shapes in kinds.items():
            _save(folder / kind, shapes)
        size = ("--max-shard-size", arguments.max_shard_size)
        ours = (sys.executable, "-m", "sharding", "shard", *size, "--json")
        peer = (sys.executable, str(ROOT / "bench/harness/peers.py"), "consolidate", *size)
        out = folder / "out"
        contenders = [
            contender
            for kind in kinds
            for contender in (
                Contender(f"{_OURS}, {kind}", (*ours, str(folder / kind / "whole"), str(out))),
                Contender(f"{_TORCH}, {kind}", (*peer, str(folder / kind / "ranks"), str(out))),
            )
        ]
        sources = tuple(folder / kind / side for kind in kinds for side in ("ranks", "whole"))
        costs = take_turns(contenders, arguments.pairs, State((out,), sources, arguments.megabytes * 2_000_000))
        figures: list[Figure] = []
        for kind in kinds:
            one, other = costs[f"{_TORCH}, {kind}"], costs[f"{_OURS}, {kind}"]
            figures.append(ratio(f"time, {_TORCH} to ours, {kind}", seconds(one), seconds(other)))
            figures.append(
                ratio(f"peak anonymous memory, {_TORCH} to ours, {kind}", anon_megabytes(one), anon_megabytes(other))
            )
        facts = [
            f"Two checkpoints of {arguments.megabytes} MB in bf16, as {_RANKS} ranks leave them (torch's Hugging Face "
            f"storage, each tensor cut along its first dimension) and as one ordinary file; into shards of "
            f"{arguments.max_shard_size}.",
            f"{_TORCH} checks nothing: it hashes and reads nothing again, does not sync, and shows its files while it "
            "writes them. Ours includes all of that.",
        ]
        print_figures("From ranks", figures, costs, facts, folder, ("torch", "safetensors"))


def _layers(megabytes: int) -> dict[str, tuple[int, ...]]:
    return {f"model.layers.{n}.weight": (2000, 2000) for n in range(megabytes // 8)}


def _large(megabytes: int) -> dict[str, tuple[int, ...]]:
    return {"model.embed_tokens.weight": (megabytes * 500_000 // 4000, 4000)}


def _save(place: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    place.mkdir()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _SAVE, str(place), json.dumps(shapes)],
            env={
                **os.environ,
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "lo",
                "RANK": str(rank),
                "WORLD_SIZE": str(_RANKS),
            },
        )
        for rank in range(_RANKS)
    ]
    if any(rank.wait() for rank in ranks):
        raise SystemExit("The ranks could not save their files.")


if __name__ == "__main__":
    main()
