"""A job over a network of limited speed each way, compared with the Hub library's own upload and download."""

import sys
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.hubs import HubState, filled
from harness.processes import ROOT, Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_HUB, _FOLDER, _FETCH = "ours, Hub to Hub", "ours, folder to an empty Hub", "ours, Hub to folder"
_STATED, _FOLDER_STATED = f"{_HUB}, --proof stated", f"{_FOLDER}, --proof stated"
_UPLOAD, _DOWNLOAD, _BOTH = "upload_folder to an empty Hub", "snapshot_download", "hf download, then hf upload"
_SOURCE, _RESULT = "alice/source", "alice/result"


def main() -> None:
    """Build a checkpoint, put it on a Hub, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=3)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--megabytes-a-second", type=float, default=50.0, help="each way (default: 50)")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 6e9)) as folder:
        source, downloaded, served = folder / "source", folder / "downloaded", folder / "served"
        build_llama(source, int(arguments.gigabytes * 1e9))
        full = filled(folder, [source], ("--xet-over-http",))
        rate = f"{arguments.megabytes_a_second * 1e6:.0f}"
        line = ("--xet-over-http", f"--fault=link:{rate}@POST /cas/", f"--fault=link:{rate}@GET /cas/")
        size = ("--max-shard-size", arguments.max_shard_size, "--json")
        stated = ("--proof", "stated")
        ours = (sys.executable, "-m", "sharding", "shard")
        peer = (sys.executable, str(ROOT / "bench/harness/peers.py"))
        hf = Path(sys.executable).with_name("hf")
        both = f'{hf} download {_SOURCE} --local-dir "$0" && {hf} upload {_RESULT} "$0"'
        contenders = [
            Contender(_HUB, (*ours, _SOURCE, _RESULT, *size), within=HubState(served, full, line)),
            Contender(_STATED, (*ours, _SOURCE, _RESULT, *size, *stated), within=HubState(served, full, line)),
            Contender(_BOTH, ("/bin/sh", "-c", both, str(downloaded)), within=HubState(served, full, line)),
            Contender(_FOLDER, (*ours, str(source), _RESULT, *size), within=HubState(served, None, line)),
            Contender(
                _FOLDER_STATED, (*ours, str(source), _RESULT, *size, *stated), within=HubState(served, None, line)
            ),
            Contender(_UPLOAD, (*peer, "upload", str(source), _RESULT), within=HubState(served, None, line)),
            Contender(_FETCH, (*ours, _SOURCE, str(downloaded), *size), within=HubState(served, full, line)),
            Contender(_DOWNLOAD, (*peer, "download", _SOURCE, str(downloaded)), within=HubState(served, full, line)),
        ]
        state = State((downloaded, served), (source,), int(arguments.gigabytes * 2e9))
        costs = take_turns(contenders, arguments.pairs, state)
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes; ours into shards of {arguments.max_shard_size}, "
            "on a staging branch first, then read again and verified, or compared by hashes. The peers prove nothing.",
            "The loopback Hub serves its Xet store over HTTP; all that goes up shares "
            f"{arguments.megabytes_a_second:g} MB a second, and all that comes down as much.",
            str(state),
        ]
        print_figures("Behind a line", _figures(costs), costs, facts, folder, ("huggingface_hub", "hf-xet"))


def _figures(costs: dict[str, list[Cost]]) -> list[Figure]:
    pairs = [(_HUB, _BOTH, "less than 1"), (_FOLDER, _UPLOAD, "at most 1.15"), (_FETCH, _DOWNLOAD, "at most 1.1")]
    pairs += [(_STATED, _BOTH, "at most 0.6"), (_FOLDER_STATED, _UPLOAD, "at most 1.05")]
    return [
        *(ratio(f"time, {one} to {other}", seconds(costs[one]), seconds(costs[other]), to) for one, other, to in pairs),
        *(Figure(f"peak anonymous memory, {title}", anon_megabytes(costs[title]), "{:.1f} MB") for title in costs),
    ]


if __name__ == "__main__":
    main()
