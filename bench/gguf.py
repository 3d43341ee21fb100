"""Merging a GGUF model in a folder and from Hub to Hub, against gguf-split and the Hub library's copy."""

import os
import struct
import subprocess
import sys
from pathlib import Path

from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.hubs import HubState, filled
from harness.processes import ROOT
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_OURS, _MERGE, _CHECKED = "ours", "gguf-split --merge + sync", "gguf-split --merge + sync + sha256sum"
_HUB, _UPLOAD, _DOWNLOAD = "ours, Hub to Hub", "upload_folder to an empty Hub", "snapshot_download"
_TOKENS, _ROW, _BLOCK_BYTES = 130_000, 4096, 144
_SPLIT = ROOT / ".venv/llama/gguf-split"


def main() -> None:
    """Build a model in three files, let all merge it in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the model (default: 1.5)")
    parser.add_argument("--hub", action="store_true", help="also from Hub to Hub")
    arguments = parser.parse_args()
    size = int(arguments.gigabytes * 1e9)
    if not _SPLIT.exists():
        subprocess.run([ROOT / ".ci/llama"], check=True)
    with scratch(arguments.folder, 8 * size) as folder:
        source, merged, downloaded, served = (folder / name for name in ("source", "merged", "downloaded", "served"))
        source.mkdir()
        whole = folder / "whole.gguf"
        _build(whole, size)
        asked = ["--split", "--split-max-size", f"{size // 3_000_000 + 1}M", whole, source / "model-Q4_K_M"]
        subprocess.run([_SPLIT, *asked], check=True, capture_output=True)
        whole.unlink()
        first = str(min(source.iterdir()))
        shard = (sys.executable, "-m", "sharding", "shard")
        peer = 'mkdir "$2" && "$0" --merge "$1" "$2/model.gguf" && sync "$2"/* "$2"'
        words = (str(_SPLIT), first, str(merged))
        contenders = [
            Contender(_OURS, (*shard, str(source), str(merged), "--single-file", "--json")),
            Contender(_MERGE, ("/bin/sh", "-c", peer, *words)),
            Contender(_CHECKED, ("/bin/sh", "-c", f'{peer} && sha256sum "$2/model.gguf"', *words)),
        ]
        if arguments.hub:
            full, hub = filled(folder, [source]), (sys.executable, str(ROOT / "bench/harness/peers.py"))
            there = HubState(served, full)
            contenders += [
                Contender(_HUB, (*shard, "alice/source", "alice/result", "--single-file", "--json"), within=there),
                Contender(_UPLOAD, (*hub, "upload", str(source), "alice/result"), within=HubState(served)),
                Contender(_DOWNLOAD, (*hub, "download", "alice/source", str(downloaded)), within=there),
            ]
        state = State((merged, downloaded, served), (source,), 2 * size)
        costs = take_turns(contenders, arguments.pairs, state)
        figures = [
            ratio(f"time, {_OURS} to {_CHECKED}", seconds(costs[_OURS]), seconds(costs[_CHECKED]), "at most 1"),
            ratio(f"time, {_OURS} to {_MERGE}", seconds(costs[_OURS]), seconds(costs[_MERGE])),
            Figure("peak anonymous memory, ours", anon_megabytes(costs[_OURS]), "{:.1f} MB", "at most 100"),
        ]
        if arguments.hub:
            both = zip(seconds(costs[_DOWNLOAD]), seconds(costs[_UPLOAD]), strict=True)
            copied = [one + other for one, other in both]
            title = f"time, {_HUB} to {_DOWNLOAD} + upload_folder"
            figures.append(ratio(title, seconds(costs[_HUB]), copied, "at most 1"))
        facts = [
            f"A random model of {size:,} bytes in Q4_K with a vocabulary of {_TOKENS:,} tokens, from three files into "
            "one; ours with digests, sync and verification.",
            str(state),
        ]
        print_figures("GGUF", figures, costs, facts, folder, ("blake3", "huggingface_hub", "hf-xet"))


def _build(path: Path, size: int) -> None:
    sys.path.insert(0, str(ROOT))
    from sharding.core.values import Tensor
    from sharding.formats.gguf import build_header
    from sharding.recipes.stored import Stored

    rows = 4096
    count = max(3, size // (rows * _ROW // 256 * _BLOCK_BYTES))
    bytes_ = rows * _ROW // 256 * _BLOCK_BYTES
    tensors = [Tensor(f"blk.{n}.ffn_up.weight", "Q4_K", (rows, _ROW), Stored(0, "", 0, bytes_)) for n in range(count)]
    words = b"".join(struct.pack("<Q", len(word)) + word for word in (b"token%d" % n for n in range(_TOKENS)))
    name = b"tokenizer.ggml.tokens"
    key = struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, 8, _TOKENS) + words
    with path.open("wb") as file:
        file.write(build_header(tensors, {name: key}))
        for _ in tensors:
            file.write(os.urandom(bytes_))


if __name__ == "__main__":
    main()
