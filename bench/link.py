"""A job over a network of limited speed each way, compared with the Hub library's own upload and download."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.checkpoints import build_llama, weight_bytes
from harness.figures import Figure, anon_megabytes, print_figures, ratio, seconds
from harness.hubs import UNKNOWN_CHUNKS, HubState, filled
from harness.processes import ROOT, Cost
from harness.scratch import benchmark_arguments, scratch
from harness.state import State
from harness.turns import Contender, take_turns

_HUB, _FOLDER, _FETCH = "ours, Hub to Hub", "ours, folder to an empty Hub", "ours, Hub to folder"
_STATED, _FOLDER_STATED = f"{_HUB}, --proof stated", f"{_FOLDER}, --proof stated"
_UPLOAD, _DOWNLOAD, _BOTH = "upload_folder to an empty Hub", "snapshot_download", "hf download, then hf upload"
_SOURCE, _RESULT = "alice/source", "alice/result"
_STEP_SECONDS = 2


def main() -> None:
    """Build a checkpoint, put it on a Hub, run all in turn, print the table."""
    parser = benchmark_arguments(__doc__, pairs=5)
    parser.add_argument("--gigabytes", type=float, default=1.5, help="size of the random Llama (default: 1.5)")
    parser.add_argument("--max-shard-size", default="200MB")
    parser.add_argument("--megabytes-a-second", type=float, default=50.0, help="each way; 0: no limit (default: 50)")
    parser.add_argument("--deduplicate", action="store_true", help="let the store say which chunks it has")
    arguments = parser.parse_args()
    with scratch(arguments.folder, int(arguments.gigabytes * 6e9)) as folder:
        source, downloaded, served = folder / "source", folder / "downloaded", folder / "served"
        build_llama(source, int(arguments.gigabytes * 1e9))
        full = filled(folder, [source], ("--xet-over-http",))
        rate = arguments.megabytes_a_second

        def hub(title: str, original: Path | None) -> HubState:
            faults = (f"--fault=link:{rate * 1e6:.0f}={log}@{verb} /cas/" for verb, log in _logs(folder, title).items())
            knows = () if arguments.deduplicate else (UNKNOWN_CHUNKS,)
            return HubState(served, original, ("--xet-over-http", *(faults if rate else ()), *knows))

        size = ("--max-shard-size", arguments.max_shard_size, "--json")
        stated = ("--proof", "stated")
        ours = (sys.executable, "-m", "sharding", "shard")
        peer = (sys.executable, str(ROOT / "bench/harness/peers.py"))
        hf = Path(sys.executable).with_name("hf")
        both = f'{hf} download {_SOURCE} --local-dir "$0" && {hf} upload {_RESULT} "$0"'
        commands = {
            _HUB: ((*ours, _SOURCE, _RESULT, *size), full),
            _BOTH: (("/bin/sh", "-c", both, str(downloaded)), full),
            _STATED: ((*ours, _SOURCE, _RESULT, *size, *stated), full),
            _FOLDER: ((*ours, str(source), _RESULT, *size), None),
            _FOLDER_STATED: ((*ours, str(source), _RESULT, *size, *stated), None),
            _UPLOAD: ((*peer, "upload", str(source), _RESULT), None),
            _FETCH: ((*ours, _SOURCE, str(downloaded), *size), full),
            _DOWNLOAD: ((*peer, "download", _SOURCE, str(downloaded)), full),
        }
        contenders = [
            Contender(title, command, within=hub(title, original)) for title, (command, original) in commands.items()
        ]
        state = State((downloaded, served), (source,), int(arguments.gigabytes * 2e9))
        costs = take_turns(contenders, arguments.pairs, state)
        facts = [
            f"A random bf16 Llama of {weight_bytes(source):,} bytes; ours into shards of {arguments.max_shard_size}, "
            "on a staging branch first, then read again and verified, or compared by hashes. The peers prove nothing.",
            "The loopback Hub serves its Xet store over HTTP"
            + (f"; all that goes up shares {rate:g} MB a second, and all that comes down as much." if rate else "."),
            "The store says which chunks it has, and nobody sends those. The real Hub may answer otherwise."
            if arguments.deduplicate
            else "The store says of no chunk that it has it, so everybody sends all bytes.",
            *(fact for title in (commands if rate else ()) for fact in _timeline(title, _logs(folder, title))),
            str(state),
        ]
        print_figures(
            "Behind a line" if rate else "Hub jobs without a limit",
            _figures(costs, is_limited=bool(rate)),
            costs,
            facts,
            folder,
            ("huggingface_hub", "hf-xet"),
        )


def _logs(folder: Path, title: str) -> dict[str, Path]:
    """Return where the Hub of a contender notes what comes down the line, and what goes up."""
    return {"GET": folder / f"{title}.down", "POST": folder / f"{title}.up"}


def _timeline(title: str, logs: dict[str, Path]) -> Iterator[str]:
    """Yield the megabytes that passed in each direction, step by step, in the last round."""
    passed = {
        verb: [(float(moment), int(count)) for moment, count in map(str.split, log.read_text().splitlines())]
        for verb, log in logs.items()
        if log.exists()
    }
    began = min((moment for lines in passed.values() for moment, _ in lines), default=0.0)
    for verb, lines in passed.items():
        steps = Counter[int]()
        for moment, count in lines:
            steps[int(moment - began) // _STEP_SECONDS] += count
        row = " ".join(f"{steps[step] / 1e6:.0f}" for step in range(max(steps) + 1))
        yield f"Megabytes {'down' if verb == 'GET' else 'up'} in every {_STEP_SECONDS} s, {title}: {row}."


def _figures(costs: dict[str, list[Cost]], *, is_limited: bool) -> list[Figure]:
    pairs = [(_HUB, _BOTH, "at most 1.05"), (_FOLDER, _UPLOAD, "at most 1.25"), (_FETCH, _DOWNLOAD, "at most 1.1")]
    pairs += [(_STATED, _BOTH, "at most 0.6"), (_FOLDER_STATED, _UPLOAD, "at most 1.05")]
    return [
        *(
            ratio(f"time, {one} to {other}", seconds(costs[one]), seconds(costs[other]), to if is_limited else "")
            for one, other, to in pairs
        ),
        *(Figure(f"peak anonymous memory, {title}", anon_megabytes(costs[title]), "{:.1f} MB") for title in costs),
    ]


if __name__ == "__main__":
    main()
