"""Make an ordinary checkpoint of what the ranks of a training run have saved: ours, and torch's own ways."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from harness.checkpoints import build_llama
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_PEERS = {"hf": "consolidate_safetensors_files", "plain": "dcp_to_torch_save + save_pretrained"}
_STORAGES = {"hf": "Hugging Face storage", "plain": ".distcp files"}
_TORCH = "import torch"
_RANKS = 2
_LARGE = """
import sys
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
folder, megabytes = Path(sys.argv[1]), int(sys.argv[2])
sizes = {"vocab_size": megabytes * 500_000 // 2048, "hidden_size": 2048, "intermediate_size": 64}
heads = {"num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 2}
config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True, dtype="bfloat16")
LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="100GB")
"""
_SAVE = """
import os, sys
from pathlib import Path
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
place, axis = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
whole = {name: tensor for path in (place / "base").glob("*.safetensors") for name, tensor in load_file(path).items()}
cut = {name: distribute_tensor(whole.pop(name), mesh, [Shard(axis if "embed" in name else 0)]) for name in list(whole)}
dcp.save(cut, storage_writer=dcp.HuggingFaceStorageWriter(str(place / "hf"), save_distributed=True))
dcp.save(cut, storage_writer=dcp.FileSystemWriter(place / "plain"))
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # threads of gloo may still be there, and would end it with an error
"""


def main() -> None:
    """Save both kinds of both checkpoints, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="of either checkpoint (default: 1000)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    kinds = ("a Llama, cut by rows", "one large embedding, cut by columns")
    with scratch(arguments.folder, arguments.megabytes * 9_000_000) as folder:
        build_llama(folder / kinds[0] / "base", arguments.megabytes * 1_000_000)
        command = [sys.executable, "-c", _LARGE, str(folder / kinds[1] / "base"), str(arguments.megabytes)]
        subprocess.run(command, check=True)
        for axis, kind in enumerate(kinds):
            _save(folder / kind, axis)
        contenders = [Contender(_TORCH, (sys.executable, "-c", "import time, torch; time.sleep(0.3)"))]
        for kind in kinds:
            for storage, peer in _PEERS.items():
                contenders += _contenders(folder, kind, storage, peer, arguments.max_shard_size)
        sources = tuple(folder / kind / storage for kind in kinds for storage in _PEERS)
        state = State((folder / "out", folder / "whole.pt"), sources, arguments.megabytes * 2_000_000)
        costs = take_turns(contenders, arguments.pairs, state)
        figures: list[Figure] = []
        for kind in kinds:
            for storage, peer in _PEERS.items():
                theirs, ours = costs[f"{peer}, {kind}"], costs[f"ours from {_STORAGES[storage]}, {kind}"]
                figures.append(ratio(f"time, {peer} to ours, {kind}", seconds(theirs), seconds(ours)))
                memory = anon_megabytes(theirs), anon_megabytes(ours)
                figures.append(ratio(f"peak anonymous memory, {peer} to ours, {kind}", *memory))
                title, most = f"ours from {_STORAGES[storage]}, {kind}", f"{_TORCH} + 100 MB"
                figures.append(Figure(f"peak anonymous memory, {title}", memory[1], "{:.1f} MB", most))
        facts = [
            f"Two checkpoints of {arguments.megabytes} MB in bf16 as {_RANKS} ranks leave them, each in torch's "
            f"Hugging Face storage and in .distcp files; into shards of {arguments.max_shard_size}.",
            "The others check nothing: they do not hash, read again or sync, and they show their files while they "
            "write them. Ours includes all of that.",
        ]
        print_figures("From ranks", figures, costs, facts, folder, ("torch", "transformers", "safetensors"))


def _contenders(folder: Path, kind: str, storage: str, peer: str, size: str) -> list[Contender]:
    source, base, out = (str(place) for place in (folder / kind / storage, folder / kind / "base", folder / "out"))
    ours = (sys.executable, "-m", "sharding", "shard", source, out, "--base", base, "--max-shard-size", size, "--json")
    script = (sys.executable, str(ROOT / "bench/harness/peers.py"), "--max-shard-size", size)
    theirs = ("consolidate", source, out) if storage == "hf" else ("torch-save", source, out, "--base", base)
    return [
        Contender(f"ours from {_STORAGES[storage]}, {kind}", ours),
        Contender(f"{peer}, {kind}", (*script, *theirs)),
    ]


def _save(place: Path, axis: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(_RANKS)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _SAVE, str(place), str(axis)], env={**os.environ, **group, "RANK": str(rank)}
        )
        for rank in range(_RANKS)
    ]
    if any([rank.wait() for rank in ranks]):
        raise SystemExit("The ranks could not save their files.")


if __name__ == "__main__":
    main()
