"""Hub to Hub on 64 MB of disk, against its two directions alone, and against the Hub library's upload and download."""

import sys

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.hubs import HubState, filled
from harness.processes import ROOT, Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_HUB, _FOLDER, _FETCH = "ours, Hub to Hub", "ours, folder to an empty Hub", "ours, Hub to folder"
_UPLOAD, _DOWNLOAD = "upload_folder to an empty Hub", "snapshot_download"
_SOURCE, _RESULT = "alice/source", "alice/result"
_DISK_BYTES = 64_000_000


def main() -> None:
    """Build a checkpoint, put it on a Hub, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 6e9)) as folder:
        source = folder / "source"
        build_llama(source, int(arguments.gigabytes * 1e9))
        full = filled(folder, [source])
        size = ("--max-shard-size", arguments.max_shard_size, "--json")
        ours = (sys.executable, "-m", "sharding", "shard")
        peer = (sys.executable, str(ROOT / "bench/harness/peers.py"))
        served = folder / "served"
        downloaded = folder / "downloaded"
        contenders = [
            Contender(_HUB, (*ours, _SOURCE, _RESULT, *size), within=HubState(served, full, (), _DISK_BYTES)),
            Contender(_FOLDER, (*ours, str(source), _RESULT, *size), within=HubState(served, None, (), _DISK_BYTES)),
            Contender(_FETCH, (*ours, _SOURCE, str(downloaded), *size), within=HubState(served, full)),
            Contender(_UPLOAD, (*peer, "upload", str(source), _RESULT), within=HubState(served)),
            Contender(_DOWNLOAD, (*peer, "download", _SOURCE, str(downloaded)), within=HubState(served, full)),
        ]
        state = State((downloaded, served), (source,), int(arguments.gigabytes * 2e9))
        costs = take_turns(contenders, arguments.pairs, state)
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes; ours into shards of {arguments.max_shard_size}, "
            "read again and verified, on a staging branch first.",
            f"Ours had HF_HOME, TMPDIR and the working directory on a file system of {_DISK_BYTES:,} bytes, in memory.",
            f"The two directions: {_FETCH}, and {_FOLDER}; each with its own digests and verification.",
            "The loopback Hub's store is the one built into hf-xet. Each client reads and writes it on the disk in "
            "its own process. So there is no network, and the client's time includes the store's work.",
            str(state),
        ]
        print_figures("Hub to Hub", _figures(costs), costs, facts, folder, ("huggingface_hub", "hf-xet"))


def _figures(costs: dict[str, list[Cost]]) -> list[Figure]:
    both = [one + other for one, other in zip(seconds(costs[_DOWNLOAD]), seconds(costs[_UPLOAD]), strict=True)]
    directions = list(zip(seconds(costs[_FETCH]), seconds(costs[_FOLDER]), strict=True))
    return [
        ratio(f"time, {_HUB} to the slower direction", seconds(costs[_HUB]), map(max, directions), "about 1"),
        ratio(f"time, {_HUB} to both directions", seconds(costs[_HUB]), map(sum, directions), "about 0.5"),
        ratio(f"time, {_HUB} to {_DOWNLOAD} + upload_folder", seconds(costs[_HUB]), both, "less than 1"),
        ratio(f"time, {_FOLDER} to upload_folder", seconds(costs[_FOLDER]), seconds(costs[_UPLOAD])),
        *(
            Figure(f"peak anonymous memory, {title}", anon_megabytes(costs[title]), "{:.1f} MB", "at most 400 MB")
            for title in (_HUB, _FOLDER)
        ),
    ]


if __name__ == "__main__":
    main()
